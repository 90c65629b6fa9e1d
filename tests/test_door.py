"""The door of a deployment: strangers, registered devices that mean no good, wrong clocks, a sick SuperLink.

First the parts by themselves, then one deployment of real processes that is attacked while its rounds go on.
"""

import asyncio
import contextlib
import gc
import os
import re
import resource
import signal
import socket
import sqlite3
import ssl
import time
import weakref
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import httpx
from benchmarks import scale
from cryptography.hazmat.primitives.asymmetric import ec

from fedsaddle.flower import deploy, door, keys, link, node, post, signing, supervise
from fedsaddle.flower.signing import Signature
from test_flower import NINE, Fleet, descendants, experiment, only, told, wait_for

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # in what Flower itself depends on
HERE, LEAVE, FETCH, ANSWER = (call + "0" * 32 for call in (post.HERE, post.LEAVE, post.FETCH, post.ANSWER))


# --- the post -----------------------------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def office():
    one = post.Post(Clock())
    for number in (1, 2):
        one.hear_of(number, "first")
    one.send([post.Sent("a", 1, 10.0, [b"x", b"y"]), post.Sent("b", 2, 10.0, [b"z", b"y"])])
    return one


def test_a_node_answers_what_is_addressed_to_it_once(office):
    assert office.next(1).parts == [b"x", b"y"]
    assert office.answer(2, "a", b"forged") == post.UNASKED
    assert office.answer(1, "never sent", b"order") == post.UNASKED
    assert office.answer(1, "a", b"mine") == post.ACCEPTED
    assert office.answer(1, "a", b"again") == post.TWICE
    assert office.next(1) is None
    assert (office.expects(1, "a"), office.expects(1, "b"), office.expects(2, "b")) == (0.0, 0.0, 10.0)
    assert office.collect(["a", "b"]) == ({"a": b"mine"}, [])
    assert office.answer(1, "a", b"late") == post.UNASKED


def test_what_nobody_will_answer_is_said_to_be_gone(office):
    office.answer(2, "b", b"before it went")
    office.leave(1)
    office.leave(2)
    assert office.collect(["a", "b", "c"])[0] == {"b": b"before it went"}
    office.hear_of(1, "second")
    office.hear_of(2, "second")
    office.send([post.Sent("d", 1, 5.0, []), post.Sent("e", 2, 500.0, [])])
    office.clock.now = 6.0
    assert office.next(1) is None  # too old
    assert office.answer(1, "d", b"") == post.UNASKED
    office.clock.now = 80.0
    office.hear_of(1, "second")
    office.clock.now = 100.0
    assert office.online() == {1}
    assert office.collect(["e"]) == ({}, ["e"])  # no sign of life of node 2
    office.send([])
    assert office.letters == {}


def test_a_key_is_of_one_device_at_a_time(office):
    assert not office.hear_of(1, "another")
    assert office.hear_of(1, "first")
    office.clock.now = post.LAPSE + 1
    assert office.hear_of(1, "another")
    assert office.letters["a"].lost  # the first has it, if anybody


def test_a_collection_is_cut_off_and_goes_on(office):
    office.answer(2, "b", b"12345")
    office.answer(1, "a", b"67890")
    assert office.collect(["a", "b"], most=3)[0] == {"b": b"12345"}
    assert office.collect(["a"], most=3)[0] == {"a": b"67890"}


def test_a_look_is_held_open_until_there_is_a_letter(office, monkeypatch):
    async def looks():
        stays, goes = asyncio.Future(), asyncio.Future()
        office.hear_of(3, "only")
        first = asyncio.ensure_future(office.fetch(3, stays))
        await asyncio.sleep(0.01)
        assert not first.done()
        office.send([post.Sent("f", 3, 5.0, [b"at last"])])
        assert (await first).parts == [b"at last"]
        office.answer(3, "f", b"")
        second = asyncio.ensure_future(office.fetch(3, goes))
        await asyncio.sleep(0.01)
        assert 3 in office.online()
        goes.set_result(None)  # its connection is lost
        assert await second is None
        assert 3 not in office.online()
        monkeypatch.setattr(post, "HOLD", 0.01)
        assert await office.fetch(3, stays) is None

    asyncio.run(looks())


def test_letters_are_written_with_what_they_share_once():
    letters = [post.Sent(f"{n}", n, 1.5, [f"head {n}".encode(), b"\n" * 1000]) for n in range(5)]
    data = post.write_letters(letters)
    assert len(data) < 1500
    assert post.read_letters(data) == letters


def test_a_device_asks_ever_less_often_and_never_stops(tmp_path, monkeypatch):
    keys.make(tmp_path, 1)
    private, ca = keys.node_key(tmp_path / "node-0")
    line = node.Connection(node.Address("127.0.0.1:1", ca, private), say=(said := []).append)
    slept = []

    def call():
        if len(slept) < 100:
            raise httpx.ConnectError("nobody there")
        return httpx.Response(200, request=httpx.Request("POST", "https://a/"))

    monkeypatch.setattr(node.time, "sleep", slept.append)
    assert line.until_done(call).status_code == 200
    assert slept[0] < 2
    assert max(slept[50:]) <= 1.3 * node.LONGEST_PAUSE
    assert min(slept[50:]) >= 0.7 * node.LONGEST_PAUSE >= 60
    assert [line.split("127.0.0.1:1 ")[1][:7] for line in said] == ["is away", "is ther"]


# --- who is let in ------------------------------------------------------------------------------------------

KEY = ec.generate_private_key(keys.CURVE)
OWN = Signature(KEY)


@pytest.fixture
def outside():
    one = door.Outside(post.Post(), door.Visitors(8), 1000)
    one.members = door.members({OWN.public.decode(): (0, 77)})
    return one


def ask(outside, path, method="POST", length=b"10", key=OWN, **more):
    shown = {} if key is None else key.headers(path)
    headers = [(name.lower().encode(), value.encode()) for name, value in {**shown, **more}.items()]
    headers += [] if length is None else [(b"content-length", length)]
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "client": None}
    return outside.look_at(scope)[1:]


def test_only_a_nodes_paths_are_open(outside):
    for path in (HERE, LEAVE, FETCH, ANSWER):
        assert ask(outside, path) == (200, "")
        assert ask(outside, path, method="GET")[0] == 403
    for path in (
        *("/v1/control/start-run", "/v1/runtime/acquire-task", "/v1/fleet/register-node", "/docs", "/", ""),
        *("/v1/fleet/push-messages", "/v1/fleet/pull-messages", "/v1/fleet/push-object", "/v1/fleet/get-fab"),
        *("/v1/fleet/../control/start-run", "//v1/control/start-run", "/post/send", "/v1/post/send"),
        *("/v1/fleet/activate-node", "/v1/post/fetch", "/v1/post/fetch/a/b", "/v1/post/"),
    ):
        assert ask(outside, path) == (403, ""), path
    outside.post.close()
    assert ask(outside, FETCH) == (503, "")
    outside.post.closed, outside.members = False, {}
    assert ask(outside, FETCH) == (503, "")


def test_a_body_is_bounded_before_it_is_read(outside):
    for path, most in ((FETCH, 16384), (HERE, 16384), (ANSWER, 1000)):
        assert ask(outside, path, length=str(most).encode())[0] == 200
        for bad in (str(most + 1).encode(), b"-1", b"9" * 5000, "²".encode(), None):
            assert ask(outside, path, length=bad)[0] == 413
        assert ask(outside, path, **{"transfer-encoding": "chunked"})[0] == 413


def test_identities_are_not_believed_without_a_signature_of_this_time(outside):
    assert ask(outside, FETCH, key=None) == (401, "no registered key")
    assert ask(outside, FETCH, key=Signature(ec.generate_private_key(keys.CURVE)))[1] == "no registered key"
    forged = Signature(ec.generate_private_key(keys.CURVE))
    forged.public = OWN.public
    assert ask(outside, FETCH, key=forged) == (401, "client 0, node 77: not signed by its key")
    for header in ("fedsaddle-signature", "fedsaddle-time", "fedsaddle-digest"):
        for value in ("", "!", "9" * 3000, "2026-01-01"):
            assert ask(outside, FETCH, **{header: value})[0] == 401
    for ahead, why in ((10, "its clock is 10 s ahead of the server's"), (-400, "its clock is 400 s behind")):
        wrong = Signature(KEY)
        wrong.ahead = ahead
        status, text = ask(outside, FETCH, key=wrong)
        assert status == 401
        assert why in text
    past = datetime.now(UTC) - timedelta(seconds=100)
    headers = [(name.lower().encode(), value.encode()) for name, value in OWN.headers(FETCH).items()]
    assert outside.identify(FETCH, headers, past).startswith("client 0, node 77: its clock is 100 s ahead")


def test_what_is_signed_is_one_request_and_no_other():
    """Who ends TLS between them, such as a proxy, can put nothing else in its place."""

    def headers(path, *parts):
        told = OWN.headers(path, *parts)
        return [(name.encode(), value.encode()) for name, value in told.items()]

    shown = headers(ANSWER, b"mine, ", b"and more")
    assert signing.signed_at(shown, ANSWER, KEY.public_key()) is not None
    assert signing.header_named(shown, signing.DIGEST) == signing.digest_of([b"mine, and more"])
    assert signing.signed_at(shown, FETCH, KEY.public_key()) is None
    other = dict(shown) | {signing.DIGEST.encode(): signing.digest_of([b"theirs"])}
    assert signing.signed_at(list(other.items()), ANSWER, KEY.public_key()) is None


def hear(outside, path, signed, *events):
    """What the door says to a request whose body comes in these parts: status and text."""
    shown = {**OWN.headers(path, signed), "content-length": str(len(signed))}
    headers = [(name.encode(), value.encode()) for name, value in shown.items()]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "client": None}
    coming, sent = list(events), []

    async def receive():
        if not coming:
            await asyncio.sleep(60)
        return {"type": "http.request", "more_body": True, **coming.pop(0)}

    async def send(event):
        sent.append(event)

    asyncio.run(outside(scope, receive, send))
    return sent[0]["status"], b"".join(event.get("body", b"") for event in sent)


def test_only_the_body_that_was_signed_is_taken_and_only_in_time(outside, monkeypatch):
    outside.post.hear_of(77, "first")
    outside.post.send([post.Sent("a", 77, 100.0, [])])
    path, end = post.ANSWER + "a", {"more_body": False}
    monkeypatch.setattr(door, "BODY_SECONDS", 0.05)
    assert hear(outside, path, b"mine", {"body": b"theirs"}, end)[0] == 401
    assert hear(outside, path, b"mine", {"type": "http.disconnect"})[0] == door.LEFT
    assert hear(outside, path, b"mine", {"body": b"mi"}, {"body": b"ne", **end}) == (post.ACCEPTED, b"")
    assert outside.post.letters["a"].answer == b"mine"
    assert hear(outside, path, b"more", {"body": b"more", **end})[0] == post.TWICE
    assert (
        hear(outside, post.HERE + "first", b"1234", {"body": b"12"})[0] == door.TOO_LATE
    )  # and then nothing


def test_who_asks_without_end_waits(outside, monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(door.asyncio, "sleep", sleep)
    outside.asking = door.Allowance(0.0, 5.0)
    for _ in range(8):
        assert hear(outside, post.HERE + "first", b"", {"more_body": False})[0] == 200
    assert slept == [door.SLOWLY] * 3


def test_a_pace_is_of_each_and_forgets_those_not_seen_for_longest():
    pace = door.Allowance(rate=2.0, burst=3.0, most=2)
    assert [pace.allows("a", 0.0) for _ in range(4)] == [True, True, True, False]
    assert [pace.allows("a", 1.0) for _ in range(3)] == [True, True, False]
    assert pace.allows("b", 1.0)
    assert pace.allows("c", 1.0)
    assert set(pace.left) == {"b", "c"}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_one_machines_addresses_are_one(one, other, same):
    assert (door.network_of(one) == door.network_of(other)) is same


def test_the_same_line_is_not_logged_every_time(outside, capsys):
    for _ in range(50):
        outside.note("refused: no registered key")
    for number in range(3000):
        outside.note(f"refused: {number}")
    assert capsys.readouterr().err.count("no registered key") == 1
    assert len(outside.said) <= 1000


def test_strangers_are_few_and_make_room():
    dropped = []

    def come(visitors, address, port, since):
        at = (address, port)
        visitors.strangers[at] = door.Visitor(address, since, lambda: dropped.append(at))

    visitors = door.Visitors(16)  # so 8 strangers, 4 from one address
    for port in range(4):
        assert visitors.room_for("a", 0.0)
        come(visitors, "a", port, 0.0)
    assert not visitors.room_for("a", 1.0)
    assert visitors.room_for("a", 3.0)  # the first has dawdled
    assert dropped == [("a", 0)]
    come(visitors, "a", 4, 3.0)
    for port in range(4):
        assert visitors.room_for(f"b{port}", 3.0)
        come(visitors, f"b{port}", port, 3.0)
    assert visitors.room_for("c", 3.0)
    assert dropped == [("a", 0), ("a", 1)]
    del dropped[:]
    for port in range(door.OF_NODE + 2):
        visitors.strangers = {}
        come(visitors, "d", port, 4.0)
        visitors.introduce(("d", port), b"key")
        for at in dropped:
            visitors.leave(at)
    assert dropped == [("d", 0), ("d", 1)]  # a node has a few connections, the newest


def test_what_lost_connections_leave_is_found_soon(monkeypatch):
    class Circle:
        def __init__(self):
            self.own = self

    async def lose():
        task = asyncio.create_task(link.collect_garbage())
        await asyncio.sleep(0.01)
        lost = weakref.ref(Circle())
        assert lost() is not None
        await asyncio.sleep(0.2)
        task.cancel()
        return lost()

    monkeypatch.setattr(link, "COLLECT_EVERY", 0.05)
    try:
        assert asyncio.run(lose()) is None
        assert len(gc.get_objects()) < 50_000  # what was there before is not looked through
    finally:
        gc.unfreeze()


def test_logs_are_short(tmp_path, monkeypatch):
    monkeypatch.setattr(supervise, "LOG", 10_000)
    log = tmp_path / "log"

    def talk():
        for _ in range(12):
            os.write(1, b"x" * 4000)
            time.sleep(0.2)

    family = supervise.Processes()
    child = family.start("talker", talk, log)
    wait_for(lambda: not child.alive(), 60)
    assert {path.name for path in tmp_path.iterdir()} == {"log", "log.1"}
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 48_000


def test_a_log_that_is_gone_is_begun_again(tmp_path):
    """Removed by a person, or put aside when no descriptor was left for the next one."""
    log = tmp_path / "log"

    def talk():
        log.unlink()
        until = time.monotonic() + 20
        while not log.exists() and time.monotonic() < until:
            time.sleep(0.05)
        os.write(1, b"said")
        time.sleep(0.5)

    family = supervise.Processes()
    child = family.start("talker", talk, log)
    wait_for(lambda: not child.alive(), 60)
    assert log.read_text().endswith("said")


def test_what_dies_soon_is_started_again_ever_later(monkeypatch):
    slept = []
    monkeypatch.setattr(deploy.time, "sleep", slept.append)
    monkeypatch.setattr(deploy.time, "monotonic", lambda: sum(slept))
    pause, lasted = deploy.Pause(), []
    for seconds in (1, 1, 1, 1, 1, 1, 1, 1, 100):
        before = sum(slept)
        pause.after(seconds, lambda: False)
        lasted.append(round(sum(slept) - before))
    assert lasted == [1, 2, 4, 8, 16, 32, 60, 60, 1]


# --- real processes -----------------------------------------------------------------------------------------

FILES = 256  # that the server may have open


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """A server with few file descriptors, two devices, and one whose clock is an hour ahead.

    Its rounds go on until the last test is done. Client 3 has a key that is not registered.
    """
    folder = tmp_path_factory.mktemp("door")
    path = experiment(folder, only(NINE, "cdma-one"), rounds=100_000, evaluate_every=100_000)
    keys.make(folder / "keys", 4)
    (folder / "keys" / "server" / "nodes" / "node-3.pub").unlink()
    with Fleet(folder, path, nodes=3) as one:
        resource.prlimit(one.serve.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
        one.join(0)
        one.revoked = one.join(1)  # by the last test
        one.join(2, ahead=3600.0)
        one.stranger = one.join(3)
        wait_for(lambda: rounds(one) > 2, 300, [one.serve])
        yield one


def rounds(fleet):
    path = fleet.run / "history.jsonl"
    return len(told(fleet.run)) // 2 if path.exists() else 0


def goes_on(fleet, more=2):
    """Rounds are completed while this is asked."""
    before = rounds(fleet)
    wait_for(lambda: rounds(fleet) >= before + more, 60, [fleet.serve])
    assert all(line["verdict"] == "go" for line in told(fleet.run)[2 * before :])


def hub(fleet):
    return descendants(fleet.serve.pid)[0]


def memory(pid):
    """MB"""
    line = next(one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in one)
    return int(line.split()[1]) / 1024


def link_log(fleet):
    return (fleet.run / "deployment" / "superlink.log").read_text()


@contextlib.contextmanager
def tls(fleet):
    context = ssl.create_default_context(cafile=str(fleet.keys / "node-0" / "ca.crt"))
    with (
        socket.create_connection(("127.0.0.1", fleet.port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        yield secure


def sent_before_closed(fleet, start, more, most):
    """Bytes that could be sent before the server closed the connection."""
    sent = 0
    with contextlib.suppress(OSError), tls(fleet) as secure:
        secure.sendall(start)
        while sent < most:
            secure.sendall(more)
            sent += len(more)
    return sent


def test_headers_and_urls_without_end_are_cut_off(fleet):
    before = memory(hub(fleet))
    line = b"x: " + b"a" * 8000 + b"\r\n"
    for start, more in ((b"POST / HTTP/1.1\r\nhost: a\r\n", line), (b"POST /", b"a" * 8000)):
        assert sent_before_closed(fleet, start, more, most=50_000_000) < 50_000_000
    goes_on(fleet)
    assert memory(hub(fleet)) < before + 30


def test_strangers_cannot_keep_others_out(fleet):
    """200 half-sent requests, then 260 connections that say nothing, with 256 file descriptors."""
    before, opened = memory(hub(fleet)), []
    for _ in range(200):
        with contextlib.suppress(OSError):
            opened.append(contextlib.ExitStack())
            opened[-1].enter_context(tls(fleet)).sendall(b"POST / HTTP/1.1\r\nhost: a\r\nx: ")
    idle = [socket.create_connection(("127.0.0.1", fleet.port)) for _ in range(260)]
    goes_on(fleet)
    time.sleep(door.SHOW)
    ended = 0
    for one in idle:
        one.settimeout(5)
        with contextlib.suppress(TimeoutError):
            try:
                ended += one.recv(1) == b""
            except ConnectionResetError:
                ended += 1
        one.close()
    for stack in opened:
        with contextlib.suppress(OSError):
            stack.close()
    assert ended == 260
    goes_on(fleet)
    assert memory(hub(fleet)) < before + 60
    log = fleet.run / "deployment" / "superlink.log"
    assert log.stat().st_size < 100_000
    assert "Traceback" not in link_log(fleet)


def test_websockets_are_off(fleet):
    upgrade = "GET /v1/post/fetch/0 HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    more = "sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    with tls(fleet) as secure:
        secure.sendall((upgrade + more).encode())
        assert secure.recv(100).startswith(b"HTTP/1.1 403")
    assert "Traceback" not in link_log(fleet)


def test_a_device_can_neither_flood_the_server_nor_speak_for_others(fleet):
    own, _ = keys.node_key(fleet.keys / "node-1")
    context = ssl.create_default_context(cafile=str(fleet.keys / "node-0" / "ca.crt"))
    signature, large = Signature(own), b"0" * 680_000
    with httpx.Client(verify=context, base_url=f"https://127.0.0.1:{fleet.port}", timeout=60) as client:

        def status(path, content):
            return client.post(path, content=content, headers=signature.headers(path, content)).status_code

        for call in ("push-messages", "push-object", "pull-messages"):  # an envelope of 10,000 objects
            assert status(f"/v1/fleet/{call}", large) == 403
        for path in (FETCH, HERE, LEAVE):
            assert status(path, large) == 413
        for _ in range(50):  # what nobody has asked for is not kept
            assert status(ANSWER, large) == post.UNASKED
    goes_on(fleet)


def test_a_wrong_clock_keeps_nobody_out(fleet):
    """The device says it, and is believed again once it goes by the server's clock."""
    assert re.search(r"this device's clock is 36\d\d s ahead of the server's", fleet.log("client-2"))
    assert re.search(r"refused: client 2, node \d+: its clock is 36\d\d s ahead", link_log(fleet))
    assert any(2 in line["used"] for line in told(fleet.run))


def test_a_device_that_is_refused_does_not_give_up(fleet):
    assert fleet.stranger.poll() is None
    said = fleet.log("client-3")
    # Once; and again where others took its place at the door for a while.
    assert 1 <= said.count("does not let this device in: no registered key; trying again") <= 5
    assert "refused: no registered key" in link_log(fleet)


def test_a_superlink_that_fails_is_started_again(fleet):
    """As if somebody held its database's lock; the run goes on afterwards."""
    database = sqlite3.connect(fleet.run / "deployment" / "link.db", isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    sick, app = descendants(fleet.serve.pid)
    os.kill(app, signal.SIGKILL)
    # While no ServerApp holds the run's folder, another server does not take the run away.
    other = fleet.start("other", fleet.command(deploy.free_port(), "--resume"))
    assert other.wait(60) == 2
    assert fleet.log("other") == f"error: {fleet.run} is in use by another server\n"
    wait_for(lambda: "the SuperLink does not answer" in fleet.log("server"), 120, [fleet.serve])
    database.execute("ROLLBACK")
    database.close()
    wait_for(lambda: len(descendants(fleet.serve.pid)) == 2 and hub(fleet) != sick, 120, [fleet.serve])
    goes_on(fleet)
    for path in (fleet.run / "deployment").glob("link.db*"):  # and without its database
        path.unlink()
    os.kill(descendants(fleet.serve.pid)[1], signal.SIGKILL)
    goes_on(fleet)
    assert "Traceback" not in fleet.log("server")


def test_what_changed_while_a_server_was_away_counts(fleet):
    """A renewed certificate, a revoked key, another experiment; and who waited at the door was let go of."""
    fleet.serve.terminate()
    assert fleet.serve.wait(60) == 130
    assert "Traceback" not in link_log(fleet)
    assert not keys.renew(fleet.keys)
    keys.revoke(fleet.keys, 1)
    keys.make(fleet.keys, 3)
    other = fleet.start("changed", fleet.command(fleet.port, "--resume", "--set", "K=4"))
    assert other.wait(60) == 2
    (line,) = fleet.log("changed").splitlines()
    change = "K was 3, is 4; algorithms.cdma-one.K was 3, is 4"
    assert f"error: {fleet.run} was made by another experiment ({change}): resume it with" in line
    fleet.begin("--resume")
    refused = "does not let this device in: no registered key"
    wait_for(lambda: refused in fleet.log("client-1"), 60, [fleet.serve])
    fleet.revoked.terminate()
    assert fleet.revoked.wait(20) == 0
    fleet.join(1)
    goes_on(fleet)


def test_a_history_that_somebody_has_changed_ends_a_server_in_one_line(fleet):
    """It says whose memory counts: nobody goes on from that."""
    path = fleet.run / "history.jsonl"
    with path.open("r+b") as file:
        file.write(b"[")
    os.kill(descendants(fleet.serve.pid)[1], signal.SIGKILL)
    assert fleet.serve.wait(60) == 2
    last = fleet.log("server").splitlines()[-1]
    assert f"Z error: {path} is damaged: its checksum does not match" in last
    assert "Traceback" not in fleet.log("server")


def test_many_devices_answer_within_a_deadline(monkeypatch):
    """Once a device and phase cost the SuperLink 0.4 to 1.1 CPU seconds, and 64 devices were too many."""
    monkeypatch.setattr(scale, "DEADLINE", 15.0)
    found = scale.scale(40, rounds=2)
    assert found["abandoned"] == 0
    assert found["answers_used"] == 40
    assert found["seconds_most"] < 15.0
    assert found["superlink_cpu_per_node"] < 0.1

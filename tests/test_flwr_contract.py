"""What FedSaddle relies on in Flower's private parts, name by name.

Written for Flower 1.41.0. Under another version, what fails here says which name has changed; CONTRIBUTING.md
says how to move on. Real processes are in test_flower.py.
"""

import ast
import importlib
import inspect
import re
import threading
import time
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import httpx
import uvicorn
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.descriptor import FieldDescriptor

from fedsaddle.flower import QUIET
from fedsaddle.flower.keys import CURVE

try:
    from fedsaddle.flower import _flwr, door, keys, link, node, post, signing
    from fedsaddle.flower.grid import PostGrid
    from fedsaddle.flower.post import Post
except ImportError:  # says of one name that it is gone; the tests below say it of all
    _flwr = door = keys = link = node = post = signing = PostGrid = Post = None

WRITTEN_FOR = "1.41.0"
ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "fedsaddle"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # in what Flower itself depends on
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}


def changed(name: str, what: object) -> str:
    return f"{name} has changed: {what} (written for Flower {WRITTEN_FOR}, installed is {version('flwr')})"


def imports(path: Path) -> list[tuple[str, str]]:
    """(module, name) of all that a file imports, wherever in it."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [(node.module, alias.name) for alias in node.names]
    return [(module, name) for module, name in found if module.split(".")[0] == "flwr"]


HOME = {name: module for module, name in imports(SOURCE / "flower" / "_flwr.py")}


def find(name: str) -> object:
    """A name that _flwr.py imports, or `module:name`."""
    module, _, name = name.rpartition(":")
    try:
        return getattr(importlib.import_module(module or HOME[name]), name)
    except (ImportError, AttributeError) as error:
        raise AssertionError(changed(name, error)) from None


# --- one file -------------------------------------------------------------------------------------------


def test_one_file_imports_flower():
    paths = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if imports(path)}
    assert paths == {"flower/_flwr.py"}
    for path in SOURCE.rglob("*.py"):
        assert not re.search(r"(import_module|__import__)\(.flwr", path.read_text()), path


def test_the_version_is_one_that_can_be_installed():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (least, below) = re.fullmatch(r"flwr>=([\d.]+),<([\d.]+)", extras["flower"][0]).groups()
    least, written, below = (tuple(map(int, one.split("."))) for one in (least, WRITTEN_FOR, below))
    assert least <= written < below
    assert WRITTEN_FOR in __doc__


def test_public_names_are_public():
    for name, module in HOME.items():
        if module in PUBLIC:
            assert name in importlib.import_module(module).__all__, changed(name, "no longer public")


# --- functions and classes: what is passed by position, and what by name ------------------------------------

CALLS = {
    "make_message": ("metadata", "content error"),
    "build_fab_from_files": ("files", ""),
    "context_from_proto": ("context_proto", ""),
    "message_from_proto": ("message_proto", ""),
    "message_to_proto": ("message", ""),
    "run_from_proto": ("run_proto", ""),
    "ControlHttpClient": ("base_url", "interceptors"),
    "RuntimeHttpClient": ("base_url", "interceptors"),
    "RuntimeTokenHttpInterceptor": ("token", ""),
    "RuntimeVersionHttpInterceptor": ("", "component_name"),
    "load_control_authn_plugin": ("", ""),
    "SuperLinkLifespan": ("config state_factory", ""),  # create_app makes it
    "create_app": ("config superlink_lifespan_class", ""),
    "HttpGrid": ("", "insecure token"),
    "SuperLinkLifespanConfig": (
        "",
        "control_address health_server_address host port insecure certificates superexec_auth_secret "
        "authn_plugin event_log_plugin fleet_event_log_plugin enable_event_log artifact_provider "
        "enable_supernode_auth fleet_api_type fleet_api_address simulation ssl_ca_certfile ssl_certfile "
        "ssl_keyfile database isolation runtime_dependency_install",
    ),
}
METHODS = {
    ("HttpGrid", "set_run"): "self run",
    ("HttpGrid", "push_messages"): "self messages",  # these three are ours, as Flower calls them
    ("HttpGrid", "pull_messages"): "self message_ids",
    ("HttpGrid", "get_node_ids"): "self",
}


def assert_callable(name: str, function: object, positional: str, named: str = "") -> None:
    parameters = inspect.signature(function).parameters
    first, given = positional.split(), {*positional.split(), *named.split()}
    assert list(parameters)[: len(first)] == first, changed(name, f"its parameters are {list(parameters)}")
    missing = given - set(parameters)
    assert not missing, changed(name, f"it no longer takes {', '.join(sorted(missing))}")
    plain = [one for one in parameters.values() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    needed = {one.name for one in plain if one.default is one.empty} - given
    assert not needed, changed(name, f"it now needs {', '.join(sorted(needed))}")


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    assert_callable(name, find(name), *CALLS[name])


@pytest.mark.parametrize(("kind", "method"), METHODS)
def test_methods(kind, method):
    assert hasattr(find(kind), method), changed(f"{kind}.{method}", "it is gone")
    assert_callable(f"{kind}.{method}", getattr(find(kind), method), METHODS[kind, method])


# --- calls over HTTP: the fields that are written and read, and the path -----------------------------------

RPCS = {
    "control": {
        "ListNodes": ("ListNodesRequest", "", "nodes_info.public_key nodes_info.node_id nodes_info.status"),
        "RegisterNode": ("RegisterNodeRequest", "public_key name", "node_id"),
        "UnregisterNode": ("UnregisterNodeRequest", "node_id", ""),
        "StartRun": ("StartRunRequest", "fab.hash_str fab.content", "run_id"),
        "StopRun": ("StopRunRequest", "run_id", ""),
    },
    "runtime": {
        "AcquireTask": ("AcquireTaskRequest", "supported_task_types", "token task.run_id"),
        "PullTaskInput": ("PullTaskInputRequest", "", "task_id run.run_id context.node_id"),
        "PushTaskOutput": ("PushTaskOutputRequest", "sub_status details", ""),
        "SendTaskHeartbeat": ("SendTaskHeartbeatRequest", "", ""),
    },
}
CLIENTS = {"control": "ControlHttpClient", "runtime": "RuntimeHttpClient"}


def assert_fields(name: str, message: type, paths: str) -> None:
    for path in paths.split():
        kind = message.DESCRIPTOR
        for field in path.split("."):
            known = {} if kind is None else kind.fields_by_name
            assert field in known, changed(name, f"{message.__name__} has no {path}")
            single = known[field].type == FieldDescriptor.TYPE_MESSAGE
            kind = known[field].message_type if single else None


@pytest.mark.parametrize(("api", "method"), [(api, method) for api in RPCS for method in RPCS[api]])
def test_requests_and_responses(api, method):
    name, (request, written, read) = f"{CLIENTS[api]}.{method}", RPCS[api][method]
    function = getattr(find(CLIENTS[api]), method, None)
    assert function is not None, changed(name, "it is gone")
    hints = inspect.get_annotations(function, eval_str=True)
    assert hints["request"] is find(request), changed(name, f"it takes {hints['request'].__name__}")
    assert_fields(name, hints["request"], written)
    assert_fields(name, hints["return"], read)


def test_messages_without_a_call_of_their_own():
    assert_fields("Fab", find("Fab"), "hash_str content")
    assert_fields("Message", find("message_pb2").Message, "metadata content.items.key error")


# --- constants, exceptions, variables -----------------------------------------------------------------------

CONSTANTS = {
    "ErrorCode": {
        "CLIENT_APP_RAISED_EXCEPTION": 2,
        "MESSAGE_UNAVAILABLE": 3,
        "REPLY_MESSAGE_UNAVAILABLE": 4,
        "NODE_UNAVAILABLE": 5,
    },
    "SubStatus": {"COMPLETED": "completed"},
    "TaskType": {"SERVER_APP": "flwr-serverapp"},
    "flwr.supercore.constant:NodeStatus": {"UNREGISTERED": "unregistered"},
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(name):
    for constant, value in CONSTANTS[name].items():
        got = getattr(find(name), constant, None)
        assert got == value, changed(f"{name}.{constant}", got)


TEXTS = {
    "flwr.common.constant:TRANSPORT_TYPE_GRPC_RERE": "grpc-rere",  # fleet_api_type
    "flwr.common.constant:ISOLATION_MODE_PROCESS": "process",  # isolation
    "flwr.supercore.logger:LOGGER_NAME": "flwr",  # deploy.py turns it down
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name):
    assert find(name) == TEXTS[name], changed(name, find(name))


def test_attributes_that_are_set_from_outside():
    for name in CLIENTS.values():
        with find(name)("http://nowhere") as client:
            assert isinstance(client._client, httpx.Client), changed(f"{name}._client", client._client)
    grid = find("HttpGrid")(insecure=True, token="token")
    assert vars(grid).get("_client", "gone") is None, changed("HttpGrid._client", vars(grid))
    grid._client = object()
    assert grid._runtime_client is grid._client, changed("HttpGrid._runtime_client", grid._runtime_client)
    reply = find("flwr.app:Message")(find("flwr.app:RecordDict")(), reply_to=received())
    assert "_message_id" in vars(reply.metadata), changed("Metadata._message_id", vars(reply.metadata))


def received() -> object:
    """A message as a node has it."""
    about = {"run_id": 1, "message_id": "a", "src_node_id": 1, "dst_node_id": 2, "reply_to_message_id": ""}
    about |= {"group_id": "", "created_at": time.time(), "ttl": 60.0, "message_type": "train"}
    content = find("flwr.app:RecordDict")()
    return find("flwr.app.message:make_message")(metadata=find("flwr.app:Metadata")(**about), content=content)


def test_flower_still_reads_what_keeps_it_quiet():
    folder = Path(importlib.import_module("flwr").__file__).parent
    text = "".join(path.read_text() for path in folder.rglob("*.py"))
    for variable in QUIET:
        assert f'"{variable}"' in text, changed(variable, "Flower no longer reads it")


def test_every_private_name_is_held_to_something():
    held = {*CALLS, *CONSTANTS, *TEXTS, "Fab", "message_pb2", "TaskIdentity"}
    held |= {request for calls in RPCS.values() for request, _, _ in calls.values()}
    private = {name for name, module in HOME.items() if module not in PUBLIC}
    assert private <= held, f"say in this file what is relied on: {sorted(private - held)}"
    stale = {name for name in held if ":" not in name} - private
    assert not stale, f"no longer imported: {sorted(stale)}"


# --- behaviour: a SuperLink, a ServerApp and a node in this process -----------------------------------------


class Inside(httpx.HTTPTransport):
    """To the Unix socket, also what was meant for the outer door and its TLS."""

    def handle_request(self, request):
        request.url = request.url.copy_with(scheme="http")
        return super().handle_request(request)


@pytest.fixture
def superlink(tmp_path, monkeypatch):
    """A SuperLink's socket. Every HTTP client that Flower or FedSaddle opens leads there."""
    socket, client = tmp_path / "socket", httpx.Client
    monkeypatch.setattr(
        httpx,
        "Client",
        lambda **told: client(transport=Inside(uds=str(socket)), base_url=told.get("base_url", "")),
    )
    flower = _flwr.superlink(tmp_path / "link.db", ("127.0.0.1", 1))
    outside = door.Outside(Post(), door.Visitors(8), 100_000)
    inside = link.Inside(flower, outside)

    async def both(scope, receive, send):
        nodes = scope.get("path", "").startswith("/v1/post/")
        await (outside if nodes else inside)(scope, receive, send)

    server = uvicorn.Server(uvicorn.Config(both, uds=str(socket), ws="none", log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    assert link.wait_until_up(socket, thread.is_alive)
    yield socket
    server.should_exit = True
    thread.join()


@pytest.fixture
def key():
    return ec.generate_private_key(CURVE)


def public(key) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form)


@pytest.fixture
def grid(superlink, key):
    """A ServerApp's grid, in a run for which this key is registered."""
    link.register(superlink, {0: public(key)})
    run, token = link.start_run(superlink)
    grid = PostGrid(superlink, token)
    context, identity = grid.begin(), find("TaskIdentity")
    assert identity.run_id == grid.run.run_id == run
    assert identity.node_id == grid.node.node_id == context.node_id
    yield grid
    grid.close()


def letter(node: int):
    content = _flwr.RecordDict({"floats": _flwr.ConfigRecord({"z.x": b"\0" * 40})})
    return _flwr.Message(content, dst_node_id=node, message_type="train.visit", ttl=60.0, group_id="0")


def test_nodes_are_registered_once(superlink, key):
    with _flwr.open_client(_flwr.ControlHttpClient, superlink) as control:
        assert _flwr.list_nodes(control) == {}
        node = _flwr.register_node(control, public(key), "client-0")
        assert _flwr.list_nodes(control) == {public(key): node}
        with pytest.raises(httpx.HTTPStatusError):
            _flwr.register_node(control, public(key), "client-1")
        _flwr.unregister_node(control, node)
        assert _flwr.list_nodes(control) == {}
        with pytest.raises(httpx.HTTPStatusError):  # nor after it was locked out
            _flwr.register_node(control, public(key), "client-0")


@pytest.fixture
def line(tmp_path, monkeypatch, key):
    """A node's way to the server."""
    keys.make(tmp_path / "keys", 1)
    monkeypatch.setattr(node, "PAUSE", 0.01)
    monkeypatch.setattr(post, "HOLD", 0.2)
    line = node.Connection(node.Address("superlink", tmp_path / "keys" / "node-0" / "ca.crt", key))
    yield line
    line.close()


def test_a_message_there_and_back(superlink, grid, line, tmp_path):
    grid.heartbeat()
    assert list(grid.get_node_ids()) == []
    with node.online(line, tmp_path / "memo") as number:
        assert line.fetch(1000) is None
        assert list(grid.get_node_ids()) == [number]
        sent, other = grid.push_messages([letter(number), letter(number + 1)])
        message = _flwr.message_of(line.fetch(1000))
        assert message.metadata.message_id == sent
        assert message.metadata.dst_node_id == number
        assert message.content["floats"]["z.x"] == b"\0" * 40
        again = _flwr.message_of(line.fetch(1000))  # it may have been lost on the way
        assert again.metadata.message_id == sent

        reply = _flwr.Message(message.content, reply_to=message)
        reply.metadata.__dict__.update(_src_node_id=1, _reply_to_message_id=other)  # nobody goes by that
        assert [gone.metadata.reply_to_message_id for gone in grid.pull_messages([sent, other])] == [other]
        assert line.answer(other, reply) == post.UNASKED
        assert line.answer(sent, reply) == post.ACCEPTED
        assert line.answer(sent, reply) == post.TWICE
        (back,) = grid.pull_messages([sent])
        assert (back.metadata.src_node_id, back.metadata.reply_to_message_id) == (number, sent)
        assert back.content["floats"]["z.x"] == b"\0" * 40
        assert line.answer(sent, reply) == post.UNASKED
        grid.push_messages([letter(number)])
        with pytest.raises(ValueError, match="more than 10 bytes"):
            line.fetch(10)
        grid.complete()
        link.stop_run(superlink, grid.run.run_id)  # it may have ended already
    assert list(grid.get_node_ids()) == []


def many(records):
    """A message of so many records, in few bytes."""
    whole = _flwr.message_to_proto(letter(1))
    del whole.content.items[:]
    for number in range(records):
        whole.content.items.add(key=str(number)).config_record.SetInParent()
    return whole.SerializeToString()


def test_what_is_no_message_is_refused(superlink, grid, line, tmp_path):
    """Nor is one that would keep the ServerApp busy: that is its sender's doing."""
    with node.online(line, tmp_path / "memo") as number:
        line.fetch(1000)
        for nonsense, why in ((b"no protobuf", "DecodeError"), (many(_flwr.MOST_PIECES + 1), "10001 pieces")):
            (sent,) = grid.push_messages([letter(number)])
            assert line.post(post.ANSWER + sent, nonsense).status_code == post.ACCEPTED
            (back,) = grid.pull_messages([sent])
            assert not back.has_content()
            assert back.error.code == _flwr.ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            assert why in back.error.reason


def test_a_message_is_its_parts_strung_together():
    message = letter(5)
    parts = _flwr.parts_of(message)
    other = _flwr.parts_of(letter(6))
    assert len(parts) == 2
    assert parts[1] == other[1]  # the floats, which many letters share
    back = _flwr.message_of(b"".join(parts))
    assert back.content["floats"]["z.x"] == b"\0" * 40
    assert back.metadata.dst_node_id == 5
    failed = _flwr.Message(_flwr.Error(2, "why"), reply_to=received())
    assert _flwr.message_of(b"".join(_flwr.parts_of(failed))).error.reason == "why"


def test_strangers_are_not_let_in(superlink, grid, line):
    line.signature = signing.Signature(ec.generate_private_key(CURVE))
    response = line.post(post.FETCH + line.session)
    assert (response.status_code, response.text) == (401, "no registered key")


def test_a_node_that_was_killed_says_so_afterwards(grid, line, tmp_path):
    """Only its own next start can: while it lives, its key is in use."""
    memo = tmp_path / "memo"
    killed = node.online(line, memo)
    number = killed.__enter__()
    (sent,) = grid.push_messages([letter(number)])
    other = node.Connection(line.address)
    taken = other.post(post.FETCH + other.session)
    assert (taken.status_code, other.refused(taken)) == (post.TWICE, True)
    assert "another device is there with its key" in taken.text
    with node.online(other, memo) as again:
        assert again == number
        (gone,) = grid.pull_messages([sent])
        assert gone.error.code == _flwr.ErrorCode.NODE_UNAVAILABLE
    other.close()


def test_a_clock_that_is_wrong_is_put_right_by_the_servers(superlink, grid, line, tmp_path):
    """Whether ahead or behind, and it is said once."""
    for error in (3600.0, -3600.0):
        said = []
        line.say, line.signature.ahead = said.append, error
        line.set_clock(httpx.Response(401, headers={"date": "nonsense"}))
        with node.online(line, tmp_path / f"memo{error}"):
            line.fetch(1000)
        assert len(said) == 1
        assert "signing by the server's" in said[0]
        assert abs(line.signature.ahead) < 3

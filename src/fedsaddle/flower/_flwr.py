"""All that is taken from Flower. No other file imports `flwr`.

Below `public` is what Flower documents. Below `private` is what it may change in any version: each name with
what it is used for, and, further down, behind functions that speak of sockets, keys and messages instead of
requests. tests/test_flwr_contract.py says of each private name what we rely on.

What FedSaddle does with it does not belong here: see link.py, node.py, grid.py and deploy.py.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec

# --- public ---------------------------------------------------------------------------------------------
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

# isort: split
# --- private --------------------------------------------------------------------------------------------
from flwr.app.message import remove_content_from_message  # an envelope goes ahead of its contents
from flwr.cli.build import build_fab_from_files  # a run needs an app, though ours is empty
from flwr.common.constant import (
    ErrorCode,  # why there is no answer
    SubStatus,  # how a ServerApp's task has ended
)
from flwr.common.serde import context_from_proto, run_from_proto  # what a ServerApp is given
from flwr.proto.control_pb2 import (  # the control API's calls
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fab_pb2 import Fab  # the empty app on its way to the SuperLink
from flwr.proto.fleet_pb2 import DeactivateNodeRequest  # a node that was killed says so afterwards
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,  # an answer is here: the SuperLink may forget it
    ObjectTree,  # the names of a message's pieces
)
from flwr.proto.runtime_pb2 import (  # the runtime API's calls
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,  # by which the outer door tells nodes apart
    TaskType,  # the only kind of task that is taken: a ServerApp's
)
from flwr.supercore.control import ControlHttpClient  # who may join, and runs
from flwr.supercore.inflatable.inflatable_object import (  # a message as pieces
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf  # one piece
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,  # a piece will never come
    ObjectUnavailableError,  # a piece is not here yet
    inflate_object_from_contents,  # pieces as a message
    pull_and_inflate_object_from_tree,  # both, with retries
    push_objects,
)
from flwr.supercore.interceptors import (  # headers that the SuperLink wants
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
)
from flwr.supercore.run import RunNotRunningException  # raised by a node's calls once the run has ended
from flwr.supercore.runtime import RuntimeHttpClient  # a ServerApp's life, and its answers
from flwr.supercore.task_identity import TaskIdentity  # who sends a message: Message() looks here
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan  # create_app wants it
from flwr.superlink.config_loader import (  # the SuperLink's settings
    SuperLinkLifespanConfig,
    load_control_authn_plugin,
)
from flwr.superlink.grid import HttpGrid  # push_messages and get_node_ids
from flwr.superlink.main import create_app  # the SuperLink itself
from flwr.supernode.fleet_http_client import FleetHttpClient  # the fleet API, outside a connection
from flwr.supernode.fleet_http_connection import http_request_response  # a node's connection
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor  # a node's signature

__all__ = [
    "ClientApp",
    "ConfigRecord",
    "Context",
    "ControlHttpClient",
    "Error",
    "ErrorCode",
    "Grid",
    "Message",
    "ObjectPullError",
    "ObjectUnavailableError",
    "RecordDict",
    "RunNotRunningException",
    "RuntimeHttpClient",
    "ServerApp",
]

HttpClient = TypeVar("HttpClient", ControlHttpClient, RuntimeHttpClient)

KEY_HEADER = FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode()  # as ASGI gives it


# --- the SuperLink ----------------------------------------------------------------------------------------


def superlink(database: Path, address: tuple[str, int]) -> Any:
    """The SuperLink's ASGI application. It lets in only nodes whose keys are registered, and runs no apps."""
    config = SuperLinkLifespanConfig(
        control_address="",
        health_server_address=None,
        host=address[0],
        port=address[1],
        insecure=False,
        certificates=None,
        superexec_auth_secret=None,
        authn_plugin=load_control_authn_plugin(),
        event_log_plugin=None,
        fleet_event_log_plugin=None,
        enable_event_log=False,
        artifact_provider=None,
        enable_supernode_auth=True,
        fleet_api_type="grpc-rere",
        fleet_api_address=None,
        simulation=False,
        ssl_ca_certfile=None,
        ssl_certfile=None,
        ssl_keyfile=None,
        database=str(database),
        isolation="process",
        runtime_dependency_install=False,
    )
    return create_app(config, SuperLinkLifespan)


def open_client(kind: type[HttpClient], socket: Path, *interceptors: Any) -> HttpClient:
    """One of Flower's clients, through the SuperLink's Unix socket."""
    client = kind(
        "http://superlink",
        interceptors=[RuntimeVersionHttpInterceptor(component_name="fedsaddle"), *interceptors],
    )
    client._client.close()
    client._client = httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), timeout=30.0)
    return client


def list_nodes(control: ControlHttpClient) -> dict[bytes, int]:
    """The nodes that may join, by their keys."""
    listed = control.ListNodes(ListNodesRequest()).nodes_info
    return {one.public_key: one.node_id for one in listed if one.status != "unregistered"}


def register_node(control: ControlHttpClient, key: bytes, name: str) -> int:
    return int(control.RegisterNode(RegisterNodeRequest(public_key=key, name=name)).node_id)


def unregister_node(control: ControlHttpClient, node: int) -> None:
    control.UnregisterNode(UnregisterNodeRequest(node_id=node))


def begin_run(control: ControlHttpClient, pyproject: bytes) -> int:
    """Begin a run of an app that is its pyproject.toml and nothing else; the run's number."""
    content, _ = build_fab_from_files({"pyproject.toml": pyproject})
    fab = Fab(hash_str=hashlib.sha256(content).hexdigest(), content=content)
    return int(control.StartRun(StartRunRequest(fab=fab)).run_id)


def end_run(control: ControlHttpClient, run: int) -> None:
    control.StopRun(StopRunRequest(run_id=run))


def acquire_task(runtime: RuntimeHttpClient) -> tuple[int, str] | None:
    """The run of a ServerApp that waits to be executed, and the token to it."""
    got = runtime.AcquireTask(AcquireTaskRequest(supported_task_types={TaskType.SERVER_APP}))
    return (got.task.run_id, got.token) if got.token else None


# --- the ServerApp ----------------------------------------------------------------------------------------


class SocketGrid(HttpGrid):
    """Flower's Grid through the Unix socket; what its runner and its `pull_messages` do, step by step."""

    def __init__(self, socket: Path, token: str) -> None:
        super().__init__(insecure=True, token=token)
        self._client = open_client(RuntimeHttpClient, socket, RuntimeTokenHttpInterceptor(token))

    def begin(self) -> Context:
        """Take up the task: from here on messages can be made and sent."""
        task = self._runtime_client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
        TaskIdentity.node_id = task.context.node_id
        self.set_run(run_from_proto(task.run))
        return context_from_proto(task.context)

    def heartbeat(self) -> None:
        self._runtime_client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    def complete(self) -> None:
        """Say that the task is done."""
        output = PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details="")
        self._runtime_client.PushTaskOutput(output)

    def envelopes(self, message_ids: set[str]) -> Iterator[tuple[str, str, list[str]]]:
        """The answers to these messages: the name of each, what it answers, and the names of its pieces."""
        got = self._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=message_ids))
        for envelope, tree in zip(got.messages_list, got.message_object_trees, strict=True):
            pieces = list(dict.fromkeys(one.object_id for one in iterate_object_tree(tree)))
            yield envelope.metadata.message_id, envelope.metadata.reply_to_message_id, pieces

    def piece(self, name: str) -> bytes:
        return make_pull_object_fn_protobuf(self._runtime_client.PullObject, self.node, self.run.run_id)(name)

    def confirm(self, name: str) -> None:
        """Say that all pieces of an answer are here."""
        run = self.run.run_id
        request = ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=name)
        self._runtime_client.ConfirmMessageReceived(request)


def assemble(name: str, pieces: dict[str, bytes]) -> Message:
    """An answer from its pieces. They come from a node: anything may be wrong with them."""
    message = inflate_object_from_contents(name, pieces)
    if not isinstance(message, Message):
        raise TypeError(f"expected a message, got {type(message).__name__}")
    return _identify(message, name)


def _identify(message: Message, name: str) -> Message:
    message.metadata.__dict__["_message_id"] = name  # it is not part of the content
    return message


# --- a node -----------------------------------------------------------------------------------------------

SendEnvelope = Callable[[Message, ObjectTree, float], tuple[set[str], str]]


class Connection(NamedTuple):
    """What a node can do while it is online."""

    node: int
    receive: Callable[[], tuple[Message, ObjectTree] | None]  # an envelope, and the names of its pieces
    send: SendEnvelope  # an envelope; the pieces that are wanted, and the session they belong to
    pull_object: Callable[[int, str], bytes]  # run, piece
    push_object: Callable[[int, str, str, bytes], None]  # run, session, piece
    confirm: Callable[[int, str], None]  # run, message


@contextlib.contextmanager
def connected(server: str, ca: bytes, key: ec.EllipticCurvePrivateKey) -> Iterator[Connection]:
    """Be online. A server that does not let the node in ends the process (SystemExit)."""
    with http_request_response(server, False, ca, (key, key.public_key())) as calls:
        node, receive, send, _get_run, _get_fab, pull_object, push_object, confirm = calls
        yield Connection(node, receive, send, pull_object, push_object, confirm)


def deactivate_node(server: str, ca: bytes, key: ec.EllipticCurvePrivateKey, node: int) -> None:
    """Say that a node is no longer online."""
    identity = NodeAuthHttpInterceptor(key, key.public_key())
    with FleetHttpClient.from_server_address(server, False, ca, [identity]) as client:
        client.DeactivateNode(DeactivateNodeRequest(node_id=node))


def pull_message(
    tree: ObjectTree, pull: Callable[[str], bytes], confirm: Callable[[str], None], seconds: float
) -> Message:
    """A message whose pieces may still be on their way to the SuperLink; they have so many seconds."""
    message = pull_and_inflate_object_from_tree(
        tree, pull, confirm, return_type=Message, initial_backoff=0.05, backoff_cap=1.0, max_time=seconds
    )
    return _identify(message, tree.object_id)


def push_message(
    reply: Message, seconds: float, send: SendEnvelope, push_object: Callable[[str, str, bytes], None]
) -> None:
    """Send an answer that took so many seconds: its envelope, then those pieces that the SuperLink lacks."""
    _identify(reply, reply.object_id)
    with no_object_id_recompute():
        tree, objects = get_object_tree(reply), get_all_nested_objects(reply)
        wanted, session = send(remove_content_from_message(reply), tree, seconds)
        push_objects(objects, partial(push_object, session), object_ids_to_push=wanted)

"""All that is taken from Flower. No other file imports `flwr`.

Below `public` is what Flower documents. Below `private` is what it may change in any version: each name with
what it is used for, and, further down, behind functions that speak of sockets, keys and messages instead of
requests. tests/test_flwr_contract.py says of each private name what we rely on.

What FedSaddle does with it does not belong here: see link.py, node.py, grid.py and deploy.py.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any, TypeVar

import httpx

# --- public ---------------------------------------------------------------------------------------------
from flwr.app import ConfigRecord, Context, Error, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

# isort: split
# --- private --------------------------------------------------------------------------------------------
from flwr.app.message import make_message  # one that did not come from Message()
from flwr.cli.build import build_fab_from_files  # a run needs an app, though ours is empty
from flwr.common.constant import (
    ErrorCode,  # why there is no answer
    SubStatus,  # how a ServerApp's task has ended
)
from flwr.common.serde import (
    context_from_proto,  # what a ServerApp is given
    message_from_proto,  # bytes as a message
    message_to_proto,  # and back
    run_from_proto,
)
from flwr.proto import message_pb2  # a message as bytes
from flwr.proto.control_pb2 import (  # the control API's calls
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fab_pb2 import Fab  # the empty app on its way to the SuperLink
from flwr.proto.runtime_pb2 import (  # the runtime API's calls
    AcquireTaskRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import (
    TaskType,  # the only kind of task that is taken: a ServerApp's
)
from flwr.supercore.control import ControlHttpClient  # who may join, and runs
from flwr.supercore.interceptors import (  # headers that the SuperLink wants
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient  # a ServerApp's life, and its answers
from flwr.supercore.task_identity import TaskIdentity  # who sends a message: Message() looks here
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan  # create_app wants it
from flwr.superlink.config_loader import (  # the SuperLink's settings
    SuperLinkLifespanConfig,
    load_control_authn_plugin,
)
from flwr.superlink.grid import HttpGrid  # a ServerApp's end of the wire
from flwr.superlink.main import create_app  # the SuperLink itself

__all__ = [
    "ClientApp",
    "ConfigRecord",
    "Context",
    "ControlHttpClient",
    "Error",
    "ErrorCode",
    "Grid",
    "Message",
    "RecordDict",
    "RuntimeHttpClient",
    "ServerApp",
]

HttpClient = TypeVar("HttpClient", ControlHttpClient, RuntimeHttpClient)


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
    """Flower's Grid through the Unix socket; what its runner does, step by step."""

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


# --- messages as bytes --------------------------------------------------------------------------------------

MOST_PIECES = 10_000  # records and their entries, of a message that came: each becomes an object of Python's


def parts_of(message: Message) -> list[bytes]:
    """A message as bytes: its head, and each record. Strung together they are the whole of it.

    That is how protobuf reads a message whose parts are written twice. Records that many messages share need
    not be copied.
    """
    whole = message_to_proto(message)
    records = list(whole.content.items)
    if message.has_content():
        del whole.content.items[:]
    alone = (type(whole)(content=type(whole.content)(items=[record])) for record in records)
    return [one.SerializeToString(deterministic=True) for one in (whole, *alone)]


def message_of(data: bytes) -> Message:
    """Bytes as a message. ValueError if they are none, or one of more pieces than ours have."""
    try:
        whole = message_pb2.Message.FromString(data)
        pieces = sum(
            1 + len(one.config_record.items) + len(one.metric_record.items) + len(one.array_record.items)
            for one in whole.content.items
        )
        if pieces > MOST_PIECES:
            raise ValueError(f"it has {pieces} pieces")
        message = message_from_proto(whole)
    except Exception as error:  # what the other side may put together has no end
        raise ValueError(f"what came is no message: {type(error).__name__}: {error}") from None
    message.metadata.__dict__["_created_at"] = time.time()  # by this side's clock: a reply counts from it
    return message


def answer_of(data: bytes, reply_to: str, node: int) -> Message:
    """Bytes as an answer. What it answers, and who sent it, the post knows, whatever the bytes say."""
    message = message_of(data)
    message.metadata.__dict__.update(_reply_to_message_id=reply_to, _src_node_id=node)
    return message


NODE_GONE = Error(ErrorCode.NODE_UNAVAILABLE, "the node has gone")


def unreadable(why: str) -> Error:
    """Of an answer that is none: that is its sender's doing."""
    return Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, why)


def nothing_from(node: int, reply_to: str, error: Error = NODE_GONE) -> Message:
    """In place of an answer that will not come, by default since its node has gone."""
    about = Metadata(
        run_id=TaskIdentity.run_id,
        message_id="",
        src_node_id=node,
        dst_node_id=TaskIdentity.node_id,
        reply_to_message_id=reply_to,
        group_id="",
        created_at=time.time(),
        ttl=1.0,
        message_type="train",
    )
    return make_message(about, error=error)

"""Flower's Grid, whose `pull_messages` never waits.

A node first pushes an answer's envelope, then its contents. Flower's own `pull_messages` takes the envelope
and then waits for the contents, with growing pauses and for up to two hours: a node that dies in between, or
never means to send the rest, would stop the server. Here an answer is handed out once all of it is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.superlink.grid import HttpGrid


@dataclass
class Arriving:
    """An answer whose envelope is here."""

    reply_to: str
    missing: list[str]  # the names of its pieces that are not
    pieces: dict[str, bytes] = field(default_factory=dict)


class PromptGrid(HttpGrid):
    """Hands out answers as they become whole."""

    def __init__(self, token: str) -> None:
        super().__init__(insecure=True, token=token)
        self.arriving: dict[str, Arriving] = {}

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The answers to these messages that are whole by now."""
        wanted, client, run = set(message_ids), self._runtime_client, self.run.run_id
        # Flower hands out an envelope once; asked again, it says that the message is gone.
        new = wanted - {answer.reply_to for answer in self.arriving.values()}
        got = client.PullMessages(PullAppMessagesRequest(message_ids=new))
        for envelope, tree in zip(got.messages_list, got.message_object_trees, strict=True):
            names = list(dict.fromkeys(one.object_id for one in iterate_object_tree(tree)))
            about = envelope.metadata
            self.arriving[about.message_id] = Arriving(about.reply_to_message_id, names)
        pull = make_pull_object_fn_protobuf(client.PullObject, self.node, run)
        whole = []
        for name, answer in list(self.arriving.items()):
            if answer.reply_to not in wanted:  # nobody waits for it any more
                del self.arriving[name]
                continue
            try:
                while answer.missing:
                    answer.pieces[answer.missing[-1]] = pull(answer.missing[-1])
                    answer.missing.pop()
            except ObjectUnavailableError:
                continue
            except ObjectPullError:  # it will never be whole; its time will run out
                del self.arriving[name]
                continue
            del self.arriving[name]
            client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=name)
            )
            try:
                message = inflate_object_from_contents(name, answer.pieces)
            except Exception:  # whatever a node may put together; it is as good as lost
                continue
            if isinstance(message, Message) and message.metadata.reply_to_message_id == answer.reply_to:
                message.metadata.__dict__["_message_id"] = name
                whole.append(message)
        return whole

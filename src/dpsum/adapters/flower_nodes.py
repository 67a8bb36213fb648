"""Flower's nodes in this process: its server loop and its client apps run without a SuperLink, for tests and audits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class InProcess(Grid):
    """A grid whose nodes are called one after another, as `strategy.start(grid, ...)` asks for them.

    Args:
        app: the clients'; called as Flower's own supernode calls it, with its mods.
        nodes: their ids and what each one's `context.node_config` has.
    """

    def __init__(self, app: ClientApp, nodes: Mapping[int, dict[str, Any]]) -> None:
        self._app = app
        # As Flower's own processes do at their start: a message says whose it is.
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self._contexts = {
            node: Context(run_id=1, node_id=node, node_config=dict(config), state=RecordDict(), run_config={})
            for node, config in nodes.items()
        }
        self._ids = map(str, itertools.count())
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        """There is one run."""

    @property
    def run(self) -> Any:
        """There is one run, of which nothing is known here."""
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Former Flower; strategies make messages themselves."""
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        """All nodes, always."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Each is answered at once."""
        ids = []
        for message in messages:
            ids.append(next(self._ids))
            self._replies[ids[-1]] = self._answer(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers."""
        return [self._replies.pop(one) for one in message_ids]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """The answers, in the order of the messages."""
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        call: Callable[[Message, Context], Message] = self._app
        return call(message, self._contexts[node])

"""Flower in one process, without a SuperLink: a grid of nodes, a release to audit."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import Grid
from flwr.serverapp.strategy.dp_adaptive_clipping import DifferentialPrivacyAdaptiveBase

# Flower's public modules have neither of these two.
from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM
from flwr.supercore.task_identity import TaskIdentity


class InProcess(Grid):
    """A grid for `strategy.start(grid, ...)` that calls its nodes one after another.

    Args:
        app: app of the clients, called with its mods as Flower's supernode does.
        nodes: `context.node_config` of each node, by its id.
        run_config: `context.run_config` of each node.
    """

    def __init__(
        self,
        app: ClientApp,
        nodes: Mapping[int, dict[str, Any]],
        *,
        run_config: Mapping[str, Any] | None = None,
    ) -> None:
        self._app = app
        _identify()
        self._contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config=dict(config),
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for node, config in nodes.items()
        }
        self._ids = map(str, itertools.count())
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Any:
        """Return the one run, with its id alone."""
        return SimpleNamespace(run_id=1)

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Refuse: strategies create messages themselves."""
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Call the node of each message at once, and store its reply."""
        ids = []
        call = self._app
        for message in messages:
            ids.append(next(self._ids))
            self._replies[ids[-1]] = call(
                message, self._contexts[message.metadata.dst_node_id]
            )  # type: ignore[operator]
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to messages, by their ids."""
        return [self._replies.pop(number) for number in message_ids]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the replies, in the order of the messages."""
        return self.pull_messages(self.push_messages(messages))


def _identify() -> None:
    """Set the ids that messages carry, as Flower's own processes do at their start."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


def release_of(strategy: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return the strategy's aggregation as a function for an audit.

    The function maps equally weighted updates [n, d] to their noised mean [d]. Flower's
    own mods do the clipping by the client. The strategy does not change: a copy answers
    each call, as if it were the next round.
    """
    _identify()
    shared = copy.copy(strategy)
    inner = copy.copy(strategy.strategy)
    for copied in (shared, inner):
        for name in ("start", "configure_train", "aggregate_train", "_noisy_fraction"):
            vars(copied).pop(name, None)
    shared.strategy = inner
    shared.accountant = None
    mod = (
        adaptiveclipping_mod
        if isinstance(strategy, DifferentialPrivacyAdaptiveBase)
        else fixedclipping_mod
    )
    logger = logging.getLogger("flwr")

    def release(rows: np.ndarray) -> np.ndarray:
        again = copy.copy(shared)
        level = logger.level
        before = ArrayRecord({"row": Array(np.zeros(rows.shape[1]))})
        again.current_arrays = before  # what clipping at the server's side starts from
        config = ConfigRecord({KEY_CLIPPING_NORM: float(again.clipping_norm)})
        request = Message(
            RecordDict({"arrays": before, "config": config}),
            dst_node_id=1,
            message_type="train",
        )

        def answer(row: np.ndarray) -> Callable[[Message, Any], Message]:
            # Flower divides by an update's norm: use a tiny update instead of zero.
            arrays = ArrayRecord(
                {"row": Array(row if np.any(row) else np.full(row.shape, 1e-30))}
            )
            metrics = MetricRecord({inner.weighted_by_key: 1})
            return lambda message, _: Message(
                RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message
            )

        logger.setLevel(logging.ERROR)
        try:
            at_server = hasattr(strategy, "current_arrays")
            replies = [
                answer(row)(request, None)
                if at_server
                else mod(request, None, answer(row))
                for row in rows
            ]
            arrays, _ = again.aggregate_train(1, replies)
        finally:
            logger.setLevel(level)
        return np.asarray(arrays.to_numpy_ndarrays()[0])

    return release

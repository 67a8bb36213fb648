"""Hooks in torch: steps of optimisers that no watch saw."""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any

from dpwatch.check.hooks import Session


def hook_steps(module: ModuleType, session: Session) -> None:
    """Count the steps of each optimiser of this process."""
    steps: Counter[int] = Counter()
    optimizers: dict[int, Any] = {}

    def count(optimizer: Any, args: Any, kwargs: Any) -> None:
        optimizer = getattr(optimizer, "original_optimizer", optimizer)
        steps[id(optimizer)] += 1
        optimizers[id(optimizer)] = optimizer

    def report() -> None:
        watched = set()
        for library, _, watch in session.watches:
            if library == "opacus":
                watched.add(id(watch.optimizer.original_optimizer))
        for number, optimizer in optimizers.items():
            if number not in watched:
                session.say(
                    "optimizer",
                    name=type(optimizer).__name__,
                    steps=steps[number],
                )

    module.register_optimizer_step_pre_hook(count)
    session.at_end.append(report)

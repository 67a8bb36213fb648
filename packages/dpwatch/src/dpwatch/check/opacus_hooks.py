"""Hooks in Opacus: a watch from `make_private` on, and a test of the model."""

from __future__ import annotations

import copy
import functools
from types import ModuleType
from typing import Any

from dpwatch.check.hooks import Session

LARGEST_MODEL = 50_000_000
"""Most parameters of a model that is copied, to test whether it mixes records."""


def install(module: ModuleType, session: Session) -> None:
    """Watch each training that `PrivacyEngine.make_private` begins."""
    engine = module.PrivacyEngine
    make_private = engine.make_private
    make_private_with_epsilon = engine.make_private_with_epsilon
    get_epsilon = engine.get_epsilon

    @functools.wraps(make_private)
    def watched(self: Any, **options: Any) -> Any:
        model = options.get("module")
        copies: list[Any] = []
        session.attempt("opacus", _copy, model, copies)
        result = make_private(self, **options)
        session.attempt("opacus", _begin, session, self, result)
        if copies:
            session.attempt("opacus", _test_model, session, model, copies[0])
        return result

    @functools.wraps(make_private_with_epsilon)
    def targeted(self: Any, **options: Any) -> Any:
        epsilon = options.get("target_epsilon")
        delta = options.get("target_delta")
        if epsilon is not None and delta is not None:
            session.claim("opacus", epsilon, delta)
        return make_private_with_epsilon(self, **options)

    @functools.wraps(get_epsilon)
    def claimed(self: Any, delta: float, **options: Any) -> float:
        epsilon = float(get_epsilon(self, delta, **options))
        session.claim("opacus", epsilon, delta)
        return epsilon

    engine.make_private = watched
    engine.make_private_with_epsilon = targeted
    engine.get_epsilon = claimed


def _begin(session: Session, engine: Any, result: Any) -> None:
    from dpwatch.adapters.opacus import TrainingWatch

    module, optimizer, *_, loader = result
    watch = TrainingWatch(
        engine, module, optimizer, loader, epochs=None, ledger=session.ledger("opacus")
    )
    session.add("opacus", watch)


def _copy(model: Any, copies: list[Any]) -> None:
    """Append a copy of the model, taken before Opacus puts its hooks on it."""
    if sum(parameter.numel() for parameter in model.parameters()) <= LARGEST_MODEL:
        copies.append(copy.deepcopy(model))


def _test_model(session: Session, model: Any, clean: Any) -> None:
    """Test at its first batch whether the model's output for a record needs others.

    Args:
        model: the model in training.
        clean: a copy of it without Opacus's hooks.
    """

    def at_first_batch(model: Any, args: Any, kwargs: Any) -> None:
        from dpwatch.check.record_mixing import records_mixed

        if not model.training:
            return
        handle.remove()
        mixed = records_mixed(clean, args, kwargs)
        if mixed:
            session.say(
                "finding",
                pitfall="cross-example-operations",
                place=type(model).__name__,
                text=(
                    "the model's output for one record changes when another record of"
                    " the batch changes: clipping does not bound a record's effect"
                ),
            )

    def guarded(*args: Any) -> None:
        session.attempt("opacus", at_first_batch, *args)

    handle = model.register_forward_pre_hook(guarded, with_kwargs=True)

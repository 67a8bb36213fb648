"""Hooks in Opacus: a watch from `make_private` on, and a test of the model."""

from __future__ import annotations

import copy
import functools
import weakref
from types import ModuleType
from typing import Any

from dpwatch.check.hooks import Session

LARGEST_MODEL = 50_000_000
"""Most parameters of a model that is copied, to test whether it mixes records."""


def hook_engine(module: ModuleType, session: Session) -> None:
    """Watch each training that `PrivacyEngine.make_private` begins."""
    engine = module.PrivacyEngine
    make_private = engine.make_private
    make_private_with_epsilon = engine.make_private_with_epsilon
    accountants: weakref.WeakSet[Any] = weakref.WeakSet()
    hooked: set[type] = set()

    def hook_accountant(engine: Any) -> None:
        accountant = engine.accountant
        accountants.add(accountant)
        if type(accountant) not in hooked:
            hooked.add(type(accountant))
            _take_claims(type(accountant), accountants, session)

    @functools.wraps(make_private)
    def watched(self: Any, **options: Any) -> Any:
        model = options.get("module")
        clean = session.attempt("opacus", _copy, model)
        session.attempt("opacus", hook_accountant, self)
        result = make_private(self, **options)
        session.attempt("opacus", _begin, session, self, result)
        if clean is not None:
            session.attempt("opacus", _test_model, session, model, clean)
        return result

    @functools.wraps(make_private_with_epsilon)
    def targeted(self: Any, **options: Any) -> Any:
        epsilon = options.get("target_epsilon")
        delta = options.get("target_delta")
        if epsilon is not None and delta is not None:
            session.claim("opacus", epsilon, delta)
        return make_private_with_epsilon(self, **options)

    engine.make_private = watched
    engine.make_private_with_epsilon = targeted


def _take_claims(kind: Any, accountants: Any, session: Session) -> None:
    """Take what the accountants of engines answer as claims of the script.

    Accountants by which Opacus calibrates the noise are others.

    Args:
        kind: class of an accountant.
        accountants: the engines' accountants.
        session: takes the claims.
    """
    get_epsilon = kind.get_epsilon

    @functools.wraps(get_epsilon)
    def claimed(self: Any, delta: float, *args: Any, **options: Any) -> Any:
        epsilon = get_epsilon(self, delta, *args, **options)
        if self in accountants:
            session.claim("opacus", epsilon, delta)
        return epsilon

    kind.get_epsilon = claimed


def _begin(session: Session, engine: Any, result: Any) -> None:
    from dpwatch.adapters.opacus import TrainingWatch

    module, optimizer, *_, loader = result
    watch = TrainingWatch(
        engine, module, optimizer, loader, epochs=None, ledger=session.ledger("opacus")
    )
    session.add("opacus", watch)


def _copy(model: Any) -> Any:
    """Return a copy of the model, taken before Opacus puts its hooks on it.

    None: the model is too large.
    """
    if sum(parameter.numel() for parameter in model.parameters()) > LARGEST_MODEL:
        return None
    return copy.deepcopy(model)


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

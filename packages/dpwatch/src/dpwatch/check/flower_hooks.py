"""Hooks in Flower: watches of its private strategies and of its local mod."""

from __future__ import annotations

import functools
import weakref
from types import ModuleType
from typing import Any

from dpwatch.check.hooks import Session


def hook_strategies(module: ModuleType, session: Session) -> None:
    """Watch each private strategy, and note each other one."""
    strategy = module.Strategy
    start = strategy.start
    seen: weakref.WeakSet[Any] = weakref.WeakSet()

    @functools.wraps(start)
    def watched(
        self: Any,
        grid: Any,
        initial_arrays: Any,
        num_rounds: int = 3,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if self not in seen and not _is_private(self):
            seen.add(self)
            session.say("plain", name=type(self).__name__)
        elif self not in seen:
            seen.add(self)
            session.attempt("flwr", _begin, session, self, num_rounds)
        result = start(self, grid, initial_arrays, num_rounds, *args, **kwargs)
        session.attempt("flwr", _claim, session, self)
        session.attempt("flwr", _compare_noise, session, self)
        return result

    strategy.start = watched


def _is_private(strategy: Any) -> bool:
    return any(
        kind.__name__.startswith("DifferentialPrivacy")
        for kind in type(strategy).__mro__
    )


def _begin(session: Session, strategy: Any, rounds: int) -> None:
    from dpwatch.adapters.flower import StrategyWatch

    watch = StrategyWatch(
        strategy,
        session.ledger("flwr"),
        rounds=rounds,
        cohorts=session.settings["cohorts"],
        metrics=session.settings["metrics"],
    )
    session.add("flwr", watch)


def _claim(session: Session, strategy: Any) -> None:
    accountant = getattr(strategy, "accountant", None)
    if accountant is not None:
        delta = accountant.config.target_delta
        session.claim("flwr", accountant.get_epsilon(delta), delta)


def _compare_noise(session: Session, strategy: Any) -> None:
    """Note noise that is less, over what one client moves, than the strategy states."""
    for _, _, watch in session.watches:
        if not hasattr(watch, "strategy") or watch.strategy is not strategy:
            continue
        stated = float(strategy.noise_multiplier)
        multipliers = [
            line.noise_multiplier for line in watch.releases() if not line.reason
        ]
        least = min(multipliers, default=stated)
        if least < stated * (1 - 1e-6):
            session.say(
                "finding",
                pitfall="division-by-batch-size",
                place=type(strategy).__name__,
                text=(
                    f"the noise is {least:.4g} times what one client moves, and not the"
                    f" stated {stated:.4g}: num_sampled_clients is not the number of"
                    " clients in the mean"
                ),
            )


def hook_local_mods(module: ModuleType, session: Session) -> None:
    """Watch each local mod."""
    mod = module.LocalDpMod
    call = mod.__call__
    watches: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def begin(self: Any) -> None:
        from dpwatch.adapters.flower import ModWatch

        folder = session.ledger("flwr-local").with_suffix("")
        folder.mkdir()
        watches[self] = ModWatch(
            self, folder, rounds=None, metrics=session.settings["metrics"]
        )
        watches[self].on_client = functools.partial(session.add, "flwr")
        session.claim("flwr", self.epsilon, self.delta)

    @functools.wraps(call)
    def watched(self: Any, message: Any, context: Any, call_next: Any) -> Any:
        from dpwatch.adapters.watch import guarded

        if self not in watches:
            watches[self] = None
            session.attempt("flwr", begin, self)
        watch = watches[self]
        if watch is None:
            return call(self, message, context, call_next)

        def observe(method: Any, message: Any, context: Any, call_next: Any) -> Any:
            watch.call_mod = method
            return watch(message, context, call_next)

        def fault(error: Exception) -> None:
            session.say("fault", library="flwr", ledger="", text=str(error))

        original = functools.partial(call, self)
        return guarded(observe, original, fault, message, context, call_next)

    mod.__call__ = watched


def refuse_former(module: ModuleType, session: Session) -> None:
    """Name each strategy of Flower's former interface, which no watch knows."""

    def refuse(kind: Any) -> None:
        create = kind.__init__

        @functools.wraps(create)
        def created(self: Any, *args: Any, **kwargs: Any) -> None:
            create(self, *args, **kwargs)
            if type(self) is kind:
                session.say(
                    "refused",
                    library="flwr",
                    text=(
                        f"{kind.__name__} is of flwr.server.strategy, Flower's former"
                        " interface, which no watch knows: use the strategy of the same"
                        " name in flwr.serverapp.strategy"
                    ),
                )

        kind.__init__ = created

    for kind in list(vars(module).values()):
        if isinstance(kind, type) and kind.__module__ == module.__name__:
            refuse(kind)

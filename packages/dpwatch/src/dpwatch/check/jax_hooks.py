"""Hooks in jax_privacy and dp_accounting: a watch of each loop outside `jax.jit`.

A loop has three parts, and each is seen where the script calls it: the batch selection
(`batch_iterator`), the clipped function (`clipped_grad`, `clipped_fun`), and the update
of a privatizer. The first update begins a watch (`adapters.jax_privacy`).

Under `jax.jit` no hook sees values. A training whose clipped function or privatizer is
compiled is refused, with the parts that were seen and those that were not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from dpwatch.check.hooks import Session

_LIBRARY = "jax_privacy"
_WAY_OUT = (
    "Call the clipped function and the privatizer outside jax.jit, or account for the"
    " plan's dp_event by dpwatch.adapters.dp_event.from_event, which says what is proven"
    " if the loop does what its plan says"
)


@dataclasses.dataclass(frozen=True)
class _Draw:
    """A batch that was drawn: its selection, the number of examples, indices [n]."""

    selection: Any
    examples: int
    indices: Any


@dataclasses.dataclass(frozen=True)
class _ClippedSum:
    """A result of a clipped function, with the function and its arguments."""

    function: Any
    result: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


@dataclasses.dataclass
class _Privatizer:
    """A privatizer of the script.

    Attributes:
        name: name of the function that made it.
        stddev: deviation of its noise, as the script gave it.
        updates: number of calls outside `jax.jit`.
        compiled: whether it was called under `jax.jit`.
        watch: its watch; None before the first update, or where it was refused.
    """

    name: str
    stddev: float
    updates: int = 0
    compiled: bool = False
    watch: Any = None


class _Loop:
    """The parts of the trainings of this process, as the script calls them."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.batch_argnums: dict[int, int] = {}
        self.functions: list[Any] = []
        self.privatizers: list[_Privatizer] = []
        self.selections: dict[str, int] = {}
        self.sensitivities: dict[float, None] = {}
        self.is_sum_compiled = False
        self.is_calibrating = False
        self._draw: _Draw | None = None
        self._sum: _ClippedSum | None = None
        self._claim: Any = None
        session.at_end.append(self.report)

    @contextlib.contextmanager
    def calibration(self) -> Iterator[None]:
        """Return a context in which an accountant's epsilon is not a claim."""
        before = self.is_calibrating
        self.is_calibrating = True
        try:
            yield
        finally:
            self.is_calibrating = before

    def see_batch(self, draw: _Draw) -> None:
        """Remember the batch that was drawn last."""
        name = f"{type(draw.selection).__name__} of {draw.examples:,} examples"
        self.selections[name] = self.selections.get(name, 0) + 1
        self._draw = draw

    def see_sum(self, clipped: _ClippedSum) -> None:
        """Remember the clipped sum that was computed last."""
        from dpwatch.adapters.jax_privacy import is_compiled

        self.sensitivities[float(clipped.function.sensitivity())] = None
        if is_compiled(clipped.result):
            self.is_sum_compiled = True
            return
        self._sum = clipped

    def see_update(
        self, privatizer: _Privatizer, updates: Any, state: Any, noisy: Any
    ) -> None:
        """Write the line of a privatizer's release, or note that it is compiled."""
        from dpwatch.adapters.jax_privacy import is_compiled

        if is_compiled(noisy):
            privatizer.compiled = True
            return
        privatizer.updates += 1
        if privatizer.updates == 1:
            self._begin(privatizer)
        watch = privatizer.watch
        if watch is None:
            return
        if self._draw is not None and self._draw.selection is watch.selection:
            watch.record_batch(self._draw.indices)
        if self._sum is not None:
            watch.record_sum(self._sum.result, self._sum.args, self._sum.kwargs)
            if float(self._sum.function.sensitivity()) != watch.bound:
                watch.forget_sum()
        self._draw = None
        self._sum = None
        try:
            watch.record_release(updates, state, noisy)
        except Exception as error:
            privatizer.watch = None
            watch.on_fault(error)

    def _begin(self, privatizer: _Privatizer) -> None:
        """Begin the watch of a privatizer at its first update.

        Raises:
            DpsumError: a part of the loop was not seen.
        """
        from dpsum.errors import DpsumError
        from dpwatch.adapters.jax_privacy import JaxPrivacyWatch

        if privatizer.name != "gaussian_privatizer":
            raise DpsumError(
                f"{privatizer.name} correlates its noise over the rounds, which no watch"
                " of jax_privacy knows"
            )
        if self._sum is None:
            where = (
                "under jax.jit" if self.is_sum_compiled else "by no clipped function"
            )
            raise DpsumError(
                f"the privatizer's input was computed {where}: no hook saw its records"
            )
        if self._draw is None:
            raise DpsumError(
                "no batch selection of jax_privacy drew the batch: its sampler is"
                " unknown"
            )
        watch = JaxPrivacyWatch(
            self._draw.selection,
            self._sum.function,
            None,
            self.session.ledger(_LIBRARY),
            examples=self._draw.examples,
            stddev=privatizer.stddev,
            batch_argnum=self.batch_argnums.get(id(self._sum.function), 1),
        )
        if self._claim is not None:
            watch.take_claim(self._claim)
        self.session.add(_LIBRARY, watch)
        privatizer.watch = watch

    def see_claim(
        self,
        accountant: Any,
        epsilon_of: Callable[[float], float],
        epsilon: float,
        delta: float,
    ) -> None:
        """Take an accountant's epsilon as the claim of the trainings of this process.

        Args:
            accountant: the accountant.
            epsilon_of: function of delta that returns its epsilon.
            epsilon, delta: the values that the script got.
        """
        if _LIBRARY not in sys.modules or self.is_calibrating:
            return
        from dpwatch.adapters.jax_privacy import StatedClaim

        self.session.claim(_LIBRARY, epsilon, delta)
        self._claim = StatedClaim(accountant, epsilon_of)
        for privatizer in self.privatizers:
            if privatizer.watch is not None:
                privatizer.watch.take_claim(self._claim)

    def report(self) -> None:
        """Refuse the trainings whose privatizer was compiled, or never called."""
        for privatizer in self.privatizers:
            if privatizer.compiled:
                self._refuse(self._compiled_text(privatizer))
            elif not privatizer.updates:
                self._refuse(
                    f"a {privatizer.name} was made, but no hook saw its update"
                )

    def _refuse(self, text: str) -> None:
        self.session.say("refused", library=_LIBRARY, text=text)

    def _compiled_text(self, privatizer: _Privatizer) -> str:
        seen = [
            f"{count:,} batches of {name}" for name, count in self.selections.items()
        ] or ["no batch selection of jax_privacy, so that the sampler is unknown"]
        seen += [
            f"a clipped function of sensitivity {sensitivity:.4g}"
            for sensitivity in self.sensitivities
        ]
        if math.isfinite(privatizer.stddev):
            seen.append(f"a {privatizer.name} of deviation {privatizer.stddev:.4g}")
        return (
            "the script adds its noise in compiled code (jax.jit), which no hook sees."
            f" Seen: {'; '.join(seen)}. Not seen: whether the noise is added to the"
            " clipped sum of the batch that was drawn, how large it is, and how often"
            f" the step ran. {_WAY_OUT}"
        )


_loop_of = functools.cache(_Loop)
"""The one loop of a session."""


def hook_selections(module: ModuleType, session: Session) -> None:
    """See each batch that is drawn."""
    loop = _loop_of(session)
    for kind in list(vars(module).values()):
        is_strategy = isinstance(kind, type) and issubclass(
            kind, module.BatchSelectionStrategy
        )
        if is_strategy and "batch_iterator" in vars(kind):
            _hook_selection(kind, loop)


def _hook_selection(kind: Any, loop: _Loop) -> None:
    iterate = kind.batch_iterator

    @functools.wraps(iterate)
    def watched(
        self: Any, num_examples: int, *args: Any, **kwargs: Any
    ) -> Iterator[Any]:
        for indices in iterate(self, num_examples, *args, **kwargs):
            draw = _Draw(self, int(num_examples), indices)
            loop.session.attempt(_LIBRARY, loop.see_batch, draw)
            yield indices

    kind.batch_iterator = watched


def hook_clipping(module: Any, session: Session) -> None:
    """See each clipped sum."""
    loop = _loop_of(session)
    kind = module.BoundedSensitivityCallable
    call = kind.__call__
    create = module.clipped_fun

    @functools.wraps(call)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(self, *args, **kwargs)
        clipped = _ClippedSum(self, result, args, kwargs)
        loop.session.attempt(_LIBRARY, loop.see_sum, clipped)
        return result

    def note(function: Any, bound: inspect.BoundArguments) -> None:
        bound.apply_defaults()
        positions = bound.arguments["batch_argnums"]
        first = positions if isinstance(positions, int) else positions[0]
        loop.batch_argnums[id(function)] = int(first)
        loop.functions.append(function)  # so that its identity stays its own

    @functools.wraps(create)
    def created(*args: Any, **kwargs: Any) -> Any:
        function = create(*args, **kwargs)
        bound = inspect.signature(create).bind(*args, **kwargs)
        loop.session.attempt(_LIBRARY, note, function, bound)
        return function

    kind.__call__ = watched
    module.clipped_fun = created


def hook_privatizers(module: ModuleType, session: Session) -> None:
    """See each update of a privatizer."""
    loop = _loop_of(session)
    for name in list(vars(module)):
        if name.endswith("_privatizer") and not name.startswith("_"):
            _hook_privatizer(module, name, loop)


def _hook_privatizer(module: ModuleType, name: str, loop: _Loop) -> None:
    create = getattr(module, name)

    @functools.wraps(create)
    def created(*args: Any, **kwargs: Any) -> Any:
        result = create(*args, **kwargs)
        privatizer = _Privatizer(name, float(kwargs.get("stddev", math.nan)))
        loop.privatizers.append(privatizer)
        original = result.update

        @functools.wraps(original)
        def update(updates: Any, state: Any, *rest: Any, **options: Any) -> Any:
            noisy, new_state = original(updates, state, *rest, **options)
            loop.session.attempt(
                _LIBRARY, loop.see_update, privatizer, updates, state, noisy
            )
            return noisy, new_state

        return result._replace(update=update)

    setattr(module, name, created)


def hook_calibration(module: Any, session: Session) -> None:
    """Take the epsilon of the calibrated mechanism as the claim, and none on the way."""
    loop = _loop_of(session)
    calibrate = module.calibrate_dp_mechanism
    signature = inspect.signature(calibrate)

    def claim(bound: inspect.BoundArguments, parameter: Any) -> None:
        new_accountant = bound.arguments["make_fresh_accountant"]
        event = bound.arguments["make_event_from_param"](parameter)

        def epsilon_of(delta: float) -> float:
            with loop.calibration():
                return float(new_accountant().compose(event).get_epsilon(delta))

        delta = float(bound.arguments["target_delta"])
        loop.see_claim(new_accountant(), epsilon_of, epsilon_of(delta), delta)

    @functools.wraps(calibrate)
    def calibrated(*args: Any, **kwargs: Any) -> Any:
        with loop.calibration():
            parameter = calibrate(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        loop.session.attempt(_LIBRARY, claim, bound, parameter)
        return parameter

    module.calibrate_dp_mechanism = calibrated


_CALIBRATED = {
    "calibrate_num_updates": "num_updates",
    "calibrate_noise_multiplier": "noise_multipliers",
    "calibrate_batch_size": "batch_sizes",
}
"""Calibrations of jax_privacy's training accountants, and what each returns."""


def hook_training_calibrations(module: Any, session: Session) -> None:
    """Take the epsilon of each calibrated training as the claim."""
    loop = _loop_of(session)
    for name, calibrated in _CALIBRATED.items():
        _hook_training_calibration(module, name, calibrated, loop)


def _hook_training_calibration(
    module: Any, name: str, calibrated: str, loop: _Loop
) -> None:
    """Take the epsilon of the calibrated training as the claim, and none on the way."""
    calibrate = getattr(module, name)

    def claim(arguments: Mapping[str, Any], value: Any) -> None:
        values = {**arguments, calibrated: value}
        parameters = module.analysis.DpParams(
            noise_multipliers=values["noise_multipliers"],
            batch_size=values["batch_sizes"],
            num_samples=values["num_samples"],
            delta=values["target_delta"],
            examples_per_user=values.get("examples_per_user"),
            cycle_length=values.get("cycle_length"),
            truncated_batch_size=values.get("truncated_batch_size"),
        )
        # The hook in the accountant that it asks takes the claim.
        values["accountant"].compute_epsilon(values["num_updates"], parameters)

    @functools.wraps(calibrate)
    def watched(**arguments: Any) -> Any:
        with loop.calibration():
            value = calibrate(**arguments)
        loop.session.attempt(_LIBRARY, claim, arguments, value)
        return value

    setattr(module, name, watched)


def hook_accountants(module: ModuleType, session: Session) -> None:
    """Take each accountant's epsilon as a claim."""
    loop = _loop_of(session)
    for kind in list(vars(module).values()):
        if isinstance(kind, type) and kind.__module__ == module.__name__:
            _hook_accountant(kind, loop)


def _hook_accountant(kind: Any, loop: _Loop) -> None:
    get_epsilon = vars(kind).get("get_epsilon")
    if get_epsilon is None:
        return

    @functools.wraps(get_epsilon)
    def watched(self: Any, target_delta: float, *args: Any, **kwargs: Any) -> Any:
        epsilon = get_epsilon(self, target_delta, *args, **kwargs)
        loop.session.attempt(
            _LIBRARY,
            loop.see_claim,
            self,
            functools.partial(get_epsilon, self),
            epsilon,
            target_delta,
        )
        return epsilon

    kind.get_epsilon = watched

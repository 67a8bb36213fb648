"""Watch a Flower run: a ledger of the releases of its private strategies and mods.

`watch` wraps a strategy of `flwr.serverapp.strategy` (fixed or adaptive clipping, by
the server or by the client) and does not change the run. Each aggregation becomes a
line, or two where the clipping threshold is adaptive (the count of clipped updates is a
release too):

- The sampler is the one that ran: FedAvg draws a cohort of fixed size without
  replacement (`random.sample`) in each round. A strategy that selects its nodes in
  another way has an unknown sampler, and no epsilon is reported.
- Flower clips each update to C and lets FedAvg average the updates, *weighted* by
  `num-examples`. It adds noise of deviation z C / `num_sampled_clients`. So a client
  moves the average by its weight times C, not by C over the number of clients: with n_i
  examples the sensitivity of the average is C max n_i / sum n_j. A line describes the
  average times the number of clients that answered, so that its sensitivity is C where
  the weights are equal. The numbers of examples count as public: in a neighbour, the
  client's update is zero and has the same weight.
- The watch measures the noise, array by array (`watch.NoiseSeen`), and the norms of the
  averaged updates. It checks that the noise was added to their weighted mean.
- Flower averages and shows the clients' metrics without noise. They are a release that
  no epsilon covers, unless the caller states that only the server sees them.

`watch_mod` does the same for `LocalDpMod` in each client: a ledger of its own messages.

The watch does not see what a client sends elsewhere, the evaluation on the server by
`evaluate_fn`, who knows the cohorts, and rounding: comparisons allow for the rounding of
the arrays' own type, which is a thousandth for half precision.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy.dp_adaptive_clipping import DifferentialPrivacyAdaptiveBase
from flwr.serverapp.strategy.dp_fixed_clipping import (
    DifferentialPrivacyFixedClippingBase,
)

from dpsum.accounting.claims import Claim
from dpsum.errors import DpsumError
from dpwatch.adapters.flower_nodes import release_of
from dpwatch.adapters.watch import (
    Watch,
    check_cohorts,
    check_scale,
    differences,
    norm,
    spacing,
)

_MEND = "or metrics='kept', if only the server sees them"
_MANY_ROUNDS = 10**6  # more than any run has, where the number is not known
Arrays = list[np.ndarray]


class StrategyWatch(Watch):
    """Watch of a strategy with differential privacy, from its first round (`watch`).

    Args:
        strategy: one of Flower's four wrappers, before `start`.
        ledger: path of the ledger; the file must not exist.
        rounds: planned number of rounds; None: taken from `start`.
        cohorts: "secret": nobody who sees the models knows who was in which round;
            "known": they may know, and sampling does not amplify privacy.
        examples: least and greatest number of examples of a client, which bound the
            weights over all cohorts. None: the weights are those of the cohorts that
            were drawn. Where these are unequal, secret cohorts need bounds, since
            another cohort's weights might be more unequal.
        metrics: "released" or "kept"; see `Watch`.

    Raises:
        DpsumError: the strategy is not one of Flower's wrappers of
            `flwr.serverapp.strategy`, or is watched already; an argument is out of
            bounds; the ledger exists.
    """

    follows_number = (
        "the cohort is a share of all clients, and the mean is over those who answer"
    )

    def __init__(
        self,
        strategy: Any,
        ledger: Path | str,
        *,
        rounds: int | None = None,
        cohorts: str = "secret",
        examples: tuple[float, float] | None = None,
        metrics: str = "released",
    ) -> None:
        adaptive = isinstance(strategy, DifferentialPrivacyAdaptiveBase)
        if not adaptive and not isinstance(
            strategy, DifferentialPrivacyFixedClippingBase
        ):
            raise DpsumError(
                f"{type(strategy).__name__} is not a DifferentialPrivacy... wrapper"
                " of flwr.serverapp.strategy: give the wrapper itself, before it"
                " starts"
            )
        if "aggregate_train" in vars(strategy):
            raise DpsumError(
                "the strategy is watched already, or its aggregate_train was replaced:"
                " watch a new one, once"
            )
        check_cohorts(cohorts)
        if examples is not None and not 0 < examples[0] <= examples[1]:
            raise DpsumError(
                f"examples is {examples}: give the smallest and the largest number of"
                " examples of a client"
            )
        check_scale(
            float(strategy.clipping_norm),
            float(strategy.noise_multiplier)
            * float(strategy.clipping_norm)
            / strategy.num_sampled_clients,
        )
        super().__init__(ledger, metrics)
        self.strategy = strategy
        self._rounds = rounds
        self._cohorts = cohorts
        self._examples = examples
        self._inner = strategy.strategy
        self._sampler: dict[str, Any] = {}
        self._mean: tuple[list[Arrays], list[float], Arrays] | None = None
        self._count: tuple[float, float] | None = None
        if adaptive:
            # the noise is proportional to the next round's C, which follows the noisy
            # count
            self.adaptive = None
            self.replace(strategy, "_noisy_fraction", self._counted)
        self.replace(strategy, "start", self._started)
        self.replace(strategy, "configure_train", self._configured)
        self.replace(strategy, "aggregate_train", self._released)
        self.replace(self._inner, "aggregate_train", self._averaged)

    def _started(
        self,
        start: Any,
        grid: Any,
        arrays: Any,
        num_rounds: int = 3,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        self._rounds = self._rounds or num_rounds
        return start(grid, arrays, num_rounds, *args, **kwargs)

    def _configured(
        self, inner: Any, server_round: int, arrays: Any, config: Any, grid: Any
    ) -> Any:
        if self._rounds is None:
            raise DpsumError(
                "the number of planned rounds is unknown: call start, or give"
                " watch(rounds=...)"
            )
        drawn: list[tuple[set[int], list[int]]] = []
        sample = random.sample

        def seen(population: Sequence[int], k: int, **kwargs: Any) -> list[int]:
            cohort = sample(population, k, **kwargs)
            drawn.append((set(population), list(cohort)))
            return cohort

        random.sample = seen  # type: ignore[assignment]
        try:
            messages = list(inner(server_round, arrays, config, grid))
        finally:
            random.sample = sample
        cohort = [message.metadata.dst_node_id for message in messages]
        nodes = set(grid.get_node_ids())
        fixed = (
            len(drawn) == 1
            and drawn[0][0] == nodes
            and sorted(drawn[0][1]) == sorted(cohort)
        )
        self._threshold = float(self.strategy.clipping_norm)
        self._mean = None
        self._count = None
        self._before = arrays.to_numpy_ndarrays()
        if cohort:
            kind = (
                "unknown"
                if not fixed
                else "fixed-size"
                if self._cohorts == "secret"
                else "min-separation"
            )
            known = (
                {"separation": 1, "participations": self._rounds}
                if kind == "min-separation"
                else {}
            )
            self._sampler = {
                "kind": kind,
                "clients": len(nodes),
                "cohort": len(cohort),
                "rounds": self._rounds,
                "rate": len(cohort) / len(nodes),
                **known,
            }
        return messages

    def _averaged(self, inner: Any, server_round: int, replies: Iterable[Any]) -> Any:
        replies = list(replies)
        key = self._inner.weighted_by_key
        updates = []
        weights = []
        for reply in replies:
            if reply.has_error():
                continue
            updates.append(_first_arrays(reply))
            weights.append(
                float(
                    next(iter(reply.content.metric_records.values())).get(key, np.nan)
                )
            )
        arrays, metrics = inner(server_round, replies)
        if arrays:
            self._mean = (
                updates,
                weights,
                [np.array(array) for array in arrays.to_numpy_ndarrays()],
            )
        return arrays, metrics

    def _counted(self, inner: Any, count: int, total: int) -> float:
        fraction = float(inner(count, total))
        self._count = (
            fraction * total - count,
            float(self.strategy.clipped_count_stddev),
        )
        return fraction

    def _released(self, inner: Any, server_round: int, replies: Iterable[Any]) -> Any:
        arrays, metrics = inner(server_round, replies)
        if arrays:
            if self._mean is None:
                raise DpsumError(
                    "the strategy released a model that its FedAvg did not make: it"
                    " cannot be watched"
                )
            self._write(arrays.to_numpy_ndarrays(), sorted(metrics or ()))
            self.round += 1
        return arrays, metrics

    def _write(self, after: Arrays, metrics: list[str]) -> None:
        assert self._mean is not None
        updates, weights, mean = self._mean
        strategy = self.strategy
        threshold = self._threshold
        factor, reasons = self._factor(weights)
        reasons += _norms(updates, self._before, threshold)
        if not _is_mean(updates, weights, mean):
            reasons.append(
                f"{type(self._inner).__name__} did not release the weighted mean of"
                " the clipped updates, so its sensitivity is unknown"
            )
        if self.metrics == "released":
            if metrics:
                reasons.append(
                    f"the clients' {', '.join(metrics)} were averaged and released"
                    f" without noise: send {self._inner.weighted_by_key} alone,"
                    f" {_MEND}"
                )
            if getattr(self._inner, "fraction_evaluate", 1.0) > 0:
                reasons.append(
                    "clients evaluate the model on their data and their results are"
                    f" released without noise: set fraction_evaluate to 0, {_MEND}"
                )
        answered = len(updates)
        if self._count is not None:
            self._write_count(reasons, answered)
        self.write(
            name="update-mean",
            threshold=threshold,
            sensitivity=threshold * factor,
            deviation=strategy.noise_multiplier
            * strategy.clipping_norm
            / strategy.num_sampled_clients,
            draws=[differences(after, mean)],
            values=after,
            scale=answered,
            sampler=self._sampler,
            denominator=answered,
            reasons=reasons,
        )

    def _write_count(self, reasons: Sequence[str], answered: int) -> None:
        """Write the line of the count of clipped updates.

        The count is a sum of +1/2 and -1/2: zeroing out one update moves it by 1/2.
        """
        assert self._count is not None
        noise, std = self._count
        self.write(
            name="clipped-count",
            threshold=0.5,
            sensitivity=0.5,
            deviation=std,
            draws=[[np.array([noise])]],
            sampler=self._sampler,
            denominator=answered,
            reasons=reasons,
        )

    def _factor(self, weights: Sequence[float]) -> tuple[float, list[str]]:
        """Return the largest weight over the equal weight, and reasons against epsilon.

        Each reason says why no finite epsilon is proven.
        """
        if not all(0 < weight < np.inf for weight in weights):
            return float(len(weights)), [
                f"a client's {self._inner.weighted_by_key} is not a number above 0"
            ]
        least = min(weights)
        most = max(weights)
        # Relative to the largest weight, since the sum of huge weights may overflow.
        mean_share = math.fsum(weight / most for weight in weights) / len(weights)
        factor = 1.0 if least == most else 1 / mean_share
        if self._examples is not None:
            low, high = self._examples
            if not low <= least <= most <= high:
                return factor, [
                    f"a client has {least:g} examples and one {most:g}, not from"
                    f" {low:g} to {high:g}"
                ]
            # In a secretly drawn cohort, one client replaces another, which changes all
            # weights. That moves the mean by w x - v y + (v - w) u, with u the others'
            # mean, so by at most 2 max(v, w) C: twice the effect of zeroing one out.
            twice = 2 if self._cohorts == "secret" else 1
            return (
                twice * len(weights) * high / (high + (len(weights) - 1) * low)
                if low < high
                else 1.0
            ), []
        if least == most or self._cohorts == "known":
            return factor, []
        return factor, [
            f"the updates were weighted by {least:g} to {most:g} examples, so that one"
            f" client moved the mean by {factor:.3g} times what is accounted for, and"
            " in another cohort perhaps by more: let all send the same number, or give"
            " watch(examples=(least, greatest)), or cohorts='known'"
        ]

    def release_of(self) -> Callable[[np.ndarray], np.ndarray]:
        return release_of(self.strategy)

    def claim(self) -> Claim | None:
        accountant = getattr(self.strategy, "accountant", None)
        if accountant is None:
            return None
        sampling = accountant.config.sampling_method.value
        return Claim(
            epsilon=lambda schedule, sampler, delta: float(
                accountant.get_epsilon(delta)
            ),
            explanation=(
                f"Flower's {type(accountant).__name__}, sampling method {sampling}, of the"
                " updates alone"
            ),
        )


watch = StrategyWatch


def _first_arrays(message: Any) -> Arrays:
    """Return the arrays of a message's first record of arrays."""
    records = message.content.array_records.values()
    arrays: Arrays = next(iter(records)).to_numpy_ndarrays()
    return arrays


def _norms(updates: Sequence[Arrays], before: Arrays, threshold: float) -> list[str]:
    """Return why an update exceeds the threshold, up to rounding; empty if none does."""
    resolution = _resolution([before, *updates])
    longest = 0.0
    is_long = False
    for arrays in updates:
        length = norm(differences(arrays, before))
        step = norm([spacing(array) for array in (*before, *arrays)])
        longest = max(longest, length)
        # A norm that is not a number is too long as well.
        if not length <= threshold * (1 + max(1e-5, 4 * resolution)) + step:
            is_long = True
    if not is_long:
        return []
    return [
        f"an update that was averaged has norm {longest:.4g}, more than its threshold"
        f" {threshold:.4g}"
    ]


def _resolution(arrays_of: Sequence[Arrays]) -> float:
    """Return the coarsest relative spacing of the arrays' floating-point types."""
    types = {np.asarray(array).dtype for arrays in arrays_of for array in arrays}
    floats = [kind for kind in types if np.issubdtype(kind, np.floating)]
    return max((float(np.finfo(kind).eps) for kind in floats), default=0.0)


def _is_mean(updates: Sequence[Arrays], weights: Sequence[float], mean: Arrays) -> bool:
    # FedAvg adds up in the arrays' own type. Rounding n terms, at most half a spacing
    # each, errs by about n^1/2 / 2 spacings.
    resolution = _resolution([mean, *updates])
    error = max(1e-5, 4 * math.sqrt(len(updates)) * resolution)
    # Weights and updates that are not finite have no mean: suppress numpy's warnings.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        ratios = np.array(weights) / max(weights)
        shares = ratios / ratios.sum()
        for number, array in enumerate(mean):
            rows = [np.asarray(arrays[number], np.float64) for arrays in updates]
            expected = np.tensordot(shares, np.stack(rows), axes=1)
            size = float(np.max(np.abs(np.stack(rows)), initial=0.0))
            if not np.allclose(array, expected, rtol=error, atol=error * size):
                return False
    return True


class ModWatch:
    """Mod that acts as `LocalDpMod` and writes a ledger for each client (`watch_mod`).

    It replaces the original mod in the client's app.

    Args:
        mod: the mod, as for `ClientApp(mods=[...])`.
        folder: folder of the ledgers, `node-ID.jsonl` each.
        rounds: largest number of rounds in which a client may take part. None: it is
            not known, and the account is of the rounds that ran.
        metrics: "released" or "kept". The server sees everything that a client sends
            besides its arrays.

    Attributes:
        call_mod: the mod's own call; `dpwatch check` replaces the mod's class's.
        on_client: called with the watch of each new client.

    Raises:
        DpsumError: the mod is not a `LocalDpMod`.
    """

    def __init__(
        self,
        mod: LocalDpMod,
        folder: Path | str,
        *,
        rounds: int | None,
        metrics: str = "released",
    ) -> None:
        if type(mod) is not LocalDpMod:
            raise DpsumError(f"{type(mod).__name__} is not flwr's LocalDpMod")
        check_scale(float(mod.clipping_norm), _local_deviation(mod))
        self._mod = mod
        self._folder = Path(folder)
        self._rounds = rounds
        self._metrics = metrics
        self._clients: dict[int, LocalWatch] = {}
        self.call_mod: Callable[..., Any] = mod
        self.on_client: Callable[[LocalWatch], None] | None = None

    def of(self, node: int) -> LocalWatch:
        """Return the watch of one client."""
        if node not in self._clients:
            path = self._folder / f"node-{node}.jsonl"
            self._clients[node] = LocalWatch(
                self._mod, path, self._rounds, self._metrics
            )
            if self.on_client is not None:
                self.on_client(self._clients[node])
        return self._clients[node]

    def __call__(self, message: Any, context: Any, call_next: Any) -> Any:
        sent: list[Arrays] = []

        def trained(inner_message: Any, inner_context: Any) -> Any:
            reply = call_next(inner_message, inner_context)
            if not reply.has_error():
                sent.extend(
                    record.to_numpy_ndarrays()
                    for record in reply.content.array_records.values()
                )
            return reply

        reply = self.call_mod(message, context, trained)
        if not reply.has_error():
            shown = [
                key
                for record in reply.content.metric_records.values()
                for key in record
            ]
            before = _first_arrays(message)
            self.of(context.node_id).sent(before, sent[0], _first_arrays(reply), shown)
        return reply


watch_mod = ModWatch


def _local_deviation(mod: LocalDpMod) -> float:
    """Return the deviation of the noise that `LocalDpMod` adds to each coordinate."""
    spread = np.sqrt(2 * np.log(1.25 / mod.delta))
    return float(mod.sensitivity * spread / mod.epsilon)


class LocalWatch(Watch):
    """Watch of one client's messages, which `LocalDpMod` noises."""

    # Its sensitivity is stated by the user: here it compares an update with none.
    claimed_adjacency = "zero-out"
    follows_number = ""

    def __init__(
        self, mod: LocalDpMod, path: Path, rounds: int | None, metrics: str
    ) -> None:
        super().__init__(path, metrics, go_on=True)
        self._mod = mod
        self._rounds = _MANY_ROUNDS if rounds is None else rounds
        self.open_ended = rounds is None

    def sent(
        self, before: Arrays, trained: Arrays, after: Arrays, shown: list[str]
    ) -> None:
        """Record a message of the client.

        Args:
            before: the model that the client received.
            trained: the model after its training.
            after: the model that the client sends.
            shown: names of the metrics that the client sends.
        """
        threshold = float(self._mod.clipping_norm)
        update = differences(trained, before)
        length = norm(update)
        scale = min(1.0, threshold / length) if length else 1.0
        with np.errstate(invalid="ignore"):  # the update may not be finite
            clipped = [scale * moved for moved in update]
        noise = differences(differences(after, before), clipped)
        reason = f"the server sees the client's {', '.join(shown)}, which have no noise"
        self.write(
            name="own-update",
            threshold=threshold,
            sensitivity=threshold,
            deviation=_local_deviation(self._mod),
            draws=[noise],
            sampler={
                "kind": "min-separation",
                "clients": 1,
                "cohort": 1,
                "rounds": self._rounds,
                "rate": 1.0,
                "separation": 1,
                "participations": self._rounds,
            },
            denominator=1,
            reasons=[reason] if self.metrics == "released" and shown else [],
            observer="server",
        )
        self.round += 1

    def claim(self) -> Claim:
        mod = self._mod
        return Claim(
            epsilon=lambda schedule, sampler, delta: (
                float(mod.epsilon) if delta >= mod.delta else np.inf
            ),
            explanation=(
                f"LocalDpMod's own, of one message at delta {mod.delta:g}: sensitivity "
                "(2 ln(1.25/delta))^1/2 / epsilon, which is proved for epsilon up to 1"
            ),
            status="proved" if self.round <= 1 and mod.epsilon <= 1 else "void",
        )

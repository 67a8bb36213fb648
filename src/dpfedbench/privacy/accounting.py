"""Accountants: from what was released, and how its cohort was drawn, to epsilon.

Profiles:

- `as_claimed`: the accounting that the run's paper did. DP-FedMeta and DP-MAML run disjoint blocks over one pass and
  account for Poisson sampling at q = L/N by TensorFlow Privacy's moments accountant. Adap DP-FL accounts for its lots
  by Renyi divergences of orders 2 to 64, and for the sum of gradients alone. For a sampler that no paper accounts for
  wrongly (balls-and-bins, Poisson: our repaired variants), the claim is what holds.
- `holds`: what the sampler and the observer justify. `ANALYSES` has one analysis a sampler:

  | sampler | analysis | guarantee |
  |---|---|---|
  | one-pass | blocks known to the observer: a client is in one Gaussian release, the rest follows from it | exact |
  | balls-and-bins | each client draws one secret round (Chua et al. 2024), by its privacy loss distribution | bracket |
  | poisson | composed sampled Gaussians, by their privacy loss distribution | bracket |
  | poisson-lots | the same for the records of one client: no record is at two clients | bracket |
  | own-records | a few-shot client's own sums: an example is in a known number of Gaussian releases | exact |

- `replace_one`: the same as `holds`, where a unit's contribution becomes any other and not zero, so that the sum moves
  by up to 2C. Exact for one Gaussian; else an upper end: zeroed, then put back (`groups`).
- `image_level`: what holds for one image, which many simulated clients may use (`image_level`).
- `tuning`: what holds for a declared search for hyper-parameters, this run among them (`tuning`).

An analysis that does not fit the sampler raises; it never prints a number. Where a profile says nothing of a run, the
account has a reason in place of a number. All but `replace_one` are for zero-out adjacency, with the sensitivity that
the ledger states. Brackets are proved: the low end is below, the high end above the exact epsilon.
Several releases of one round that read the same cohort are one Gaussian of multiplier (sum of z^-2)^-1/2.

Noise that followed a validation loss is covered by a filter where the run kept a budget (`filters`), and by the
schedule that falls at every chance where there were few of them; without either the account is of the schedule that
was run, and says so.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpfedbench.config import BudgetConfig, RunConfig
from dpfedbench.data.partition import load_partition
from dpfedbench.errors import BenchError
from dpfedbench.federation.participation import make_participation
from dpfedbench.files import write_json
from dpfedbench.privacy import balls_and_bins, filters, own_records, poisson
from dpfedbench.privacy.gaussian import gaussian_epsilon, rounded_up
from dpfedbench.privacy.groups import group_epsilon
from dpfedbench.privacy.image_level import ImageUse, image_bracket
from dpfedbench.privacy.ledger import Release, read_ledger
from dpfedbench.privacy.poisson import Schedule
from dpfedbench.privacy.tuning import Search, searched_epsilon

Sampler = Mapping[str, Any]
"""A participation plan's description: kind, clients, cohort, rounds, rate."""

Bracket = tuple[float, float]
"""Low and high end of epsilon."""


CLAIMED_ORDERS = tuple(range(2, 65))
"""Adap DP-FL, Section IV-D: alpha from {2, 3, ..., 64}."""

HOLDING_ORDERS = tuple(range(2, 257))
"""For a budget under `holds` that is kept lot by lot: more orders, all whole, since any of them is an upper end."""

PROFILES = ("as_claimed", "holds", "replace_one", "image_level", "tuning")
"""What an account is read under, in this order; each has a number or a reason."""

UNCOUNTED = frozenset({"clipped-norm-sum"})
"""Releases that their paper makes and does not count (Adap DP-FL, eq. 6 read as a query of its own)."""

_GROUPS = 16
_HIGH_GROUPS, _LOW_RATIO = 32, 1.1  # the low end has a finer grid, so that each group costs it far more


def _grouped(schedule: Schedule, *, least: bool) -> Schedule:
    """A long schedule with near multipliers put together, at their least (for a high end) or greatest (low end)."""
    if len(schedule) <= _GROUPS:
        return schedule
    groups: dict[int, list[tuple[float, int]]] = {}
    lowest, highest, _ = _ends(schedule)
    width = math.log(_LOW_RATIO)
    if least:
        width = min(width, max(math.log(highest / lowest) / _HIGH_GROUPS, 1e-3))
    for z, count in schedule:
        groups.setdefault(math.floor(math.log(z) / width), []).append((z, count))
    pick = min if least else max
    return tuple((pick(z for z, _ in group), sum(count for _, count in group)) for group in groups.values())


def _ends(schedule: Schedule) -> tuple[float, float, int]:
    """The least and the greatest multiplier, and the rounds."""
    multipliers = [z for z, _ in schedule]
    return min(multipliers), max(multipliers), sum(count for _, count in schedule)


def _one_gaussian(schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
    # The client of the least noisy round is the worst off.
    exact = gaussian_epsilon(_ends(schedule)[0], delta)
    return exact, exact


def _secret_round(schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
    _, most, done = _ends(schedule)
    low = balls_and_bins.lower_epsilon(most, int(sampler["rounds"]), done, delta)
    return low, _secret_round_high(schedule, sampler, delta)


def _secret_round_high(schedule: Schedule, sampler: Sampler, delta: float) -> float:
    least, _, done = _ends(schedule)
    return balls_and_bins.upper_epsilon(least, int(sampler["rounds"]), done, delta)


def _sampled(schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
    low = poisson.lower_epsilon(_grouped(schedule, least=False), sampler["rate"], delta)
    return low, _sampled_high(schedule, sampler, delta)


def _sampled_high(schedule: Schedule, sampler: Sampler, delta: float) -> float:
    return poisson.upper_epsilon(_grouped(schedule, least=True), sampler["rate"], delta)


def _moments(schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
    claimed = poisson.renyi_epsilon(schedule, sampler["rate"], delta, poisson.TF_PRIVACY_ORDERS)
    return claimed, claimed


def _whole_orders(schedule: Schedule, sampler: Sampler, delta: float) -> Bracket:
    claimed = poisson.renyi_epsilon(schedule, sampler["rate"], delta, CLAIMED_ORDERS)
    return claimed, claimed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Analysis:
    """One way to account for one kind of sampler.

    Attributes:
        kind: the sampler it is for.
        bracket: (schedule, sampler, delta) to both ends of epsilon; the schedule is (z, rounds at it), ...
        high: the same to the high end alone, which is much cheaper where the low end takes a finer grid.
        status: "proved", or "void" where the analysis is of another mechanism than the one that ran.
        explanation: what it takes for granted.
    """

    kind: str
    bracket: Callable[[Schedule, Sampler, float], Bracket]
    high: Callable[[Schedule, Sampler, float], float]
    status: str
    explanation: str


ANALYSES = {
    "one-pass": Analysis(
        kind="one-pass",
        bracket=_one_gaussian,
        high=lambda *given: _one_gaussian(*given)[1],
        status="proved",
        explanation="disjoint batches known to the observer: each client is in one Gaussian release; exact",
    ),
    "balls-and-bins": Analysis(
        kind="balls-and-bins",
        bracket=_secret_round,
        high=_secret_round_high,
        status="proved",
        explanation="each client draws one secret round; privacy loss distribution, both directions, bracketed",
    ),
    "poisson": Analysis(
        kind="poisson",
        bracket=_sampled,
        high=_sampled_high,
        status="proved",
        explanation="each client in each round with the same chance; privacy loss distribution, bracketed",
    ),
    "poisson-lots": Analysis(
        kind="poisson-lots",
        bracket=_sampled,
        high=_sampled_high,
        status="proved",
        explanation="each record of a client in each lot with the same chance; privacy loss distribution, bracketed; "
        "no record is at two clients",
    ),
}

CLAIMS = {
    "one-pass": Analysis(
        kind="one-pass",
        bracket=_moments,
        high=lambda *given: _moments(*given)[1],
        status="void",
        explanation="the paper's: Renyi accounting of Poisson sampling at q = L/N with "
        "eps = rdp + log(1/delta)/(alpha-1); disjoint batches were run, not Poisson sampling",
    ),
    "poisson-lots": Analysis(
        kind="poisson-lots",
        bracket=_whole_orders,
        high=lambda *given: _whole_orders(*given)[1],
        status="proved",
        explanation="the paper's: Renyi accounting of Poisson sampling, orders 2 to 64, "
        "eps = rdp + log(1/delta)/(alpha-1)",
    ),
}
"""The papers' own accounting, for the samplers that have one."""


def analysis(profile: str, kind: str) -> Analysis:
    """The analysis that a profile uses for a kind of sampler.

    Args:
        profile: "as_claimed", "holds", or the name of one analysis ("one-pass", "balls-and-bins", "poisson").
        kind: the sampler's kind.

    Raises:
        BenchError: unknown names, or an analysis that is not for this sampler.
    """
    if kind not in ANALYSES:
        raise BenchError(f"no analysis for the sampler {kind!r}: there are {', '.join(ANALYSES)}")
    if profile == "holds":
        return ANALYSES[kind]
    if profile == "as_claimed":
        return CLAIMS.get(kind, ANALYSES[kind])
    if profile not in ANALYSES:
        raise BenchError(f"no accounting profile {profile!r}: there are as_claimed, holds, {', '.join(ANALYSES)}")
    if profile != kind:
        raise BenchError(f"the {profile} analysis is not for a {kind} sampler: use holds")
    return ANALYSES[profile]


def _checked(noise_multiplier: float, delta: float) -> None:
    if not 0 < delta < 1:
        raise BenchError(f"delta is {delta}: it must lie between 0 and 1")
    if not 0 < noise_multiplier < math.inf:
        raise BenchError(f"the noise multiplier is {noise_multiplier}: it must be finite and above 0")


@functools.lru_cache(maxsize=4096)
def _high(profile: str, kind: str, schedule: Schedule, rate: float, rounds: int, delta: float) -> float:
    return analysis(profile, kind).high(schedule, {"rate": rate, "rounds": rounds}, delta)


def epsilon_after(profile: str, sampler: Sampler, noise_multiplier: float, done: int, delta: float) -> float:
    """Epsilon (its high end) after `done` of the sampler's planned rounds; 0 before the first. Cached.

    Raises:
        BenchError: z or delta out of bounds, or a profile that does not fit the sampler.
    """
    _checked(noise_multiplier, delta)
    chosen = analysis(profile, sampler["kind"])
    if done == 0:
        return 0.0
    schedule = ((float(noise_multiplier), int(done)),)
    return _high(profile, chosen.kind, schedule, float(sampler["rate"]), int(sampler["rounds"]), float(delta))


_LEAST_DELTA = 1e-30


def delta_after(profile: str, sampler: Sampler, noise_multiplier: float, done: int, epsilon: float) -> float:
    """Delta at a given epsilon after `done` rounds: the smallest, up to one part in a thousand, whose epsilon fits.

    1 where none does, and never below 1e-30.

    Raises:
        BenchError: as in `epsilon_after`, or an epsilon that is not above 0.
    """
    if not 0 < epsilon < math.inf:
        raise BenchError(f"epsilon is {epsilon}: it must be finite and above 0")

    def enough(log_delta: float) -> bool:
        return epsilon_after(profile, sampler, noise_multiplier, done, math.exp(log_delta)) <= epsilon

    low, high = math.log(_LEAST_DELTA), math.log1p(-1e-9)
    if enough(low):
        return _LEAST_DELTA
    if not enough(high):
        return 1.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return math.exp(high)


def rounds_allowed(profile: str, sampler: Sampler, noise_multiplier: float, delta: float, epsilon: float) -> int:
    """The most rounds, up to those planned, after which epsilon is still within the budget."""
    within, beyond = 0, int(sampler["rounds"]) + 1
    while beyond - within > 1:
        middle = (within + beyond) // 2
        if epsilon_after(profile, sampler, noise_multiplier, middle, delta) <= epsilon:
            within = middle
        else:
            beyond = middle
    return within


def calibrate(profile: str, sampler: Sampler, epsilon: float, delta: float) -> float:
    """The smallest noise multiplier with which all planned rounds stay within (epsilon, delta).

    Rounded up to four significant digits, so that a run's configuration can name it.

    Raises:
        BenchError: no multiplier from 0.05 to 10,000 is enough.
    """
    if not 0 < epsilon < math.inf:
        raise BenchError(f"budget.epsilon is {epsilon}: it must be finite and above 0")
    rounds = int(sampler["rounds"])

    def enough(z: float) -> bool:
        return epsilon_after(profile, sampler, z, rounds, delta) <= epsilon

    low, high = 0.05, 1.0
    while not enough(high):
        low, high = high, high * 2
        if high > 10_000:
            raise BenchError(f"no noise multiplier up to 10,000 meets epsilon {epsilon} at delta {delta}: raise one")
    while high / low > 1 + 1e-5:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return rounded_up(high)


def _check_release(event: Release, first: Release, where: str) -> None:
    if event.sampler != first.sampler or (event.unit, event.adjacency) != (first.unit, first.adjacency):
        raise BenchError(f"{where} has another sampler, unit or adjacency than the first: account for them apart")
    if event.adjacency != "zero-out":
        raise BenchError(f"{where} is for {event.adjacency} adjacency: the analyses here are for zero-out")
    z = event.noise_multiplier
    parts = (event.threshold, event.sensitivity, event.noise_std)
    each = (value if isinstance(value, list) else [value] for value in parts)
    for threshold, sensitivity, noise_std in zip(*each, strict=True):
        if not (0 < z < math.inf and 0 < threshold < math.inf):
            raise BenchError(f"{where} has z {z} and C {threshold}: both must be above 0")
        if sensitivity < threshold:
            raise BenchError(
                f"{where} declares sensitivity {sensitivity}, less than its threshold {threshold}: "
                "its mechanism is not the one accounted for"
            )
        if not math.isclose(noise_std, z * sensitivity, rel_tol=1e-12):
            raise BenchError(
                f"{where} has noise of deviation {noise_std}, not z x sensitivity = "
                f"{z * sensitivity}: its mechanism is not the one accounted for"
            )


def _rounds_of(releases: Sequence[Release]) -> list[list[Release]]:
    """The releases round by round, after checking that the ledger is one mechanism's.

    Raises:
        BenchError: rounds are missing, doubled or out of order, samplers differ, or noise does not fit z and C.
    """
    first, rounds = releases[0], list[list[Release]]()
    for number, event in enumerate(releases):
        where = f"the ledger's release {number}"
        _check_release(event, first, where)
        if event.round == len(rounds):
            rounds.append([event])
        elif rounds and event.round == len(rounds) - 1 and event.name not in {known.name for known in rounds[-1]}:
            rounds[-1].append(event)
        else:
            raise BenchError(f"{where} is of round {event.round}: delete the run's folder and train again")
    if len({frozenset(event.name for event in events) for events in rounds}) > 1:
        raise BenchError("the ledger's rounds differ in what they released: delete the run's folder and train again")
    if len(rounds) > first.sampler["rounds"]:
        raise BenchError(f"the ledger has {len(rounds)} rounds, its sampler plans {first.sampler['rounds']}")
    return rounds


def _schedule(rounds: Sequence[Sequence[Release]], *, counted: Callable[[Release], bool]) -> Schedule:
    """(z, rounds at it), ... in order, of the releases that are counted; those of one round as one Gaussian."""
    found: dict[float, int] = {}
    for events in rounds:
        parts = [event.noise_multiplier for event in events if counted(event)]
        z = parts[0] if len(parts) == 1 else joint_multiplier(parts)
        found[z] = found.get(z, 0) + 1
    return tuple(found.items())


def joint_multiplier(multipliers: Sequence[float]) -> float:
    """The multiplier of several Gaussian releases of one cohort, as one: (sum of z^-2)^-1/2."""
    return math.fsum(z**-2 for z in multipliers) ** -0.5


def rest_multiplier(total: float, other: float) -> float:
    """The multiplier beside one of `other` with which both releases of a cohort cost what one of `total` does.

    (z^-2 - other^-2)^-1/2 (Andrew et al. 2019, Theorem 1), in the last digits rounded up.

    Raises:
        BenchError: the other release alone costs as much already.
    """
    if not other > total:
        raise BenchError(
            f"a release of multiplier {other:g} beside the gradients' leaves nothing of noise.multiplier {total:g}: "
            "raise clipping.count_noise (it is half that multiplier) or lower the noise"
        )
    found = (total**-2 - other**-2) ** -0.5
    while joint_multiplier([found, other]) < total:
        found = math.nextafter(found, math.inf)
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Circumstances:
    """What an account has to know beside the ledger.

    Attributes:
        images: which clients use which image; None where that is unknown or says nothing, for the reason given.
        no_images: that reason.
        search: the declared search for hyper-parameters; None: none was declared.
        chosen: whether checkpoints were chosen by validation clients.
        budget: what the run was allowed; noise that follows a validation loss is accounted for by it.
        adaptive: whether the noise was free to follow such a loss; None: told by whether it moved.
        fall: (beta, lots): the noise may be multiplied by beta, at most once in so many lots; None where no such rule
            was declared.
    """

    images: ImageUse | None = None
    no_images: str = "the run's partition was not given"
    search: Search | None = None
    chosen: bool = False
    budget: BudgetConfig | None = None
    adaptive: bool | None = None
    fall: tuple[float, int] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Filter:
    """The filter that a run of adaptive noise kept: at each of the orders its budget, fixed in advance."""

    orders: tuple[int, ...]
    budgets: np.ndarray

    def epsilon(self, delta: float) -> float:
        return filters.filtered_epsilon(self.budgets, self.orders, delta)


class _Account:
    """The profiles of one ledger, one method each; all read the same schedules."""

    def __init__(self, releases: Sequence[Release], delta: float, given: Circumstances) -> None:
        self.given, self.delta = given, delta
        self.first, self.sampler = releases[0], releases[0].sampler
        self.kind = self.sampler["kind"]
        self.rounds = _rounds_of(releases)
        self.claimed = _schedule(self.rounds, counted=lambda event: event.name not in UNCOUNTED)
        self.schedule = _schedule(self.rounds, counted=lambda event: True)
        self.forgotten = sorted({event.name for event in releases} & UNCOUNTED)
        uncounted = {event.reason: event for event in reversed(releases) if event.data_dependent_threshold}
        self.missing = "; ".join(f"{event.name} from round {event.round}, {why}" for why, event in uncounted.items())
        self.adaptive = len(self.schedule) > 1 if given.adaptive is None else given.adaptive
        self.filter = self._filter() if self.adaptive else None
        self.floor = self._floor() if self.adaptive else None

    def profiles(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Each profile's entry, or the reason why it has none."""
        holds = self._holds()
        entries: dict[str, Any] = {"as_claimed": self._as_claimed(), "holds": holds}
        reasons: dict[str, str] = {}
        for name, found in (
            ("replace_one", self._replace_one(holds)),
            ("image_level", self._image_level(holds)),
            ("tuning", self._tuning(holds)),
        ):
            if isinstance(found, str):
                reasons[name] = found
            else:
                entries[name] = found
        return entries, reasons

    def _entry(self, low: float, high: float, status: str, explanation: str, **others: Any) -> dict[str, Any]:
        if self.missing:
            status, explanation = "void", f"a release without an event: {self.missing}"
        return {
            "epsilon_low": low,
            "epsilon_high": high,
            "delta": self.delta,
            "unit": self.first.unit,
            "adjacency": self.first.adjacency,
            "observer": self.first.observer,
            "status": status,
            "explanation": explanation,
        } | others

    def _as_claimed(self) -> dict[str, Any]:
        chosen = analysis("as_claimed", self.kind)
        low, high = chosen.bracket(self.claimed, self.sampler, self.delta)
        status, explanation = chosen.status, chosen.explanation
        if self.adaptive and status == "proved":
            status, explanation = "as run", explanation + _AS_RUN
        if self.forgotten:
            status, explanation = (
                "void",
                f"{explanation}; the paper does not count the release {', '.join(self.forgotten)}",
            )
        return self._entry(low, high, status, explanation)

    def _holds(self) -> dict[str, Any]:
        chosen = analysis("holds", self.kind)
        if self.missing:
            return self._entry(math.inf, math.inf, "void", "")
        low, high = chosen.bracket(self.schedule, self.sampler, self.delta)
        if not self.adaptive:
            return self._entry(low, high, chosen.status, chosen.explanation)
        if self.filter is None and self.floor is None:
            return self._entry(low, high, "as run", chosen.explanation + _AS_RUN)
        proofs = []
        if self.filter is not None:
            count = len(self.filter.orders)
            orders = "one order" if count == 1 else f"{count} orders"
            proofs.append(f"within a Renyi filter of {orders} fixed in advance")
        if self.floor is not None:
            proofs.append("never below the noise that falls at every chance")
        text = (
            f"{chosen.explanation}; the noise followed a public loss of released models, {' and '.join(proofs)}: the "
            "high end holds for whatever noise came of it; the schedule that was run would by itself be at most "
            f"{high:.4g}"
        )
        return self._entry(low, max(low, self._high(self.delta)), "proved", text)

    def _floor(self) -> Schedule | None:
        """The least noise that each planned lot can have had, where its fall is bounded and not too far.

        A lot of more noise tells no more than one of less, whatever went before, so that what holds for this fixed
        schedule holds for any that stays above it.
        """
        if self.given.fall is None or self.kind != "poisson-lots":
            return None
        beta, every = self.given.fall
        lots = int(self.sampler["rounds"])
        falls = (lots - 1) // every
        first = joint_multiplier([event.noise_multiplier for event in self.rounds[0]])
        if first * beta**falls < _LEAST_FLOOR:
            return None
        for index, events in enumerate(self.rounds):
            z = joint_multiplier([event.noise_multiplier for event in events])
            if z < first * beta ** (index // every) * (1 - 1e-9):
                return None  # the rule that was declared is not the one that ran
        schedule = [(first * beta**fall, min(every, lots - fall * every)) for fall in range(falls + 1)]
        return tuple(schedule)

    def _filter(self) -> _Filter | None:
        """The filter that the budget was, if the ledger is within it."""
        budget = self.given.budget
        if budget is None or budget.epsilon is None or not budget.stop or self.kind != "poisson-lots":
            return None
        holds, rate = budget.profile == "holds", float(self.sampler["rate"])
        if self.forgotten and not holds:
            return None  # the claim's budget leaves a release out
        start = self.rounds[0]
        first = joint_multiplier([event.noise_multiplier for event in start])
        orders = CLAIMED_ORDERS
        if holds:
            orders = filters.filter_order(first, rate, HOLDING_ORDERS, epsilon=budget.epsilon, delta=budget.delta)
        budgets = filters.order_budgets(budget.epsilon, orders, budget.delta, tight=holds)
        spent = np.sum([count * poisson.renyi(z, rate, orders) for z, count in self.schedule], axis=0)
        return _Filter(orders=orders, budgets=budgets) if filters.keeps(spent, budgets) else None

    def _high(self, delta: float) -> float:
        """The high end of `holds` at another delta."""
        chosen, ends = analysis("holds", self.kind), []
        if self.filter is not None:
            ends.append(self.filter.epsilon(delta))
        if self.floor is not None:
            ends.append(chosen.high(self.floor, self.sampler, delta))
        return min(ends) if ends else chosen.high(self.schedule, self.sampler, delta)

    def _replace_one(self, holds: Mapping[str, Any]) -> dict[str, Any]:
        """One unit's contribution becomes any other: the sum moves by up to twice the threshold."""
        low, high = holds["epsilon_low"], holds["epsilon_high"]
        if self.kind == "one-pass":
            low = high = high if self.missing else gaussian_epsilon(_ends(self.schedule)[0] / 2, self.delta)
            text = f"{holds['explanation']}; sensitivity 2C"
        else:
            if not self.missing:
                high = max(low, group_epsilon(self._high, 2, self.delta))
            text = f"{holds['explanation']}; the high end zeroes the unit and then puts another in its place"
        return self._entry(low, high, holds["status"], text, adjacency="replace-one")

    def _image_level(self, holds: Mapping[str, Any]) -> dict[str, Any] | str:
        """One image: all clients that use it contribute zero."""
        if self.first.unit == "record" and self.given.images is not None:
            return "an image is an example of several simulated clients, in support and query sets: not accounted for"
        if self.first.unit == "record":
            text = f"each image is one record of one client; {holds['explanation']}"
            return dict(holds) | {"unit": "image", "explanation": text, "uses_max": 1, "uses_mean": 1.0}
        use = self.given.images
        if use is None:
            return self.given.no_images
        counts = use.counts()
        uses = {"unit": "image", "uses_max": int(counts.max()), "uses_mean": float(counts.mean())}
        if self.missing:
            return self._entry(math.inf, math.inf, "void", "", **uses)
        multipliers = [joint_multiplier([event.noise_multiplier for event in events]) for events in self.rounds]
        low, high = image_bracket(self.kind, use, multipliers, self.sampler, self.delta)
        text = f"every client that uses the image contributes zero; {_IMAGE[self.kind]}"
        return self._entry(low, high, "proved", text, **uses)

    def _tuning(self, holds: Mapping[str, Any]) -> dict[str, Any] | str:
        """This run and the search that its hyper-parameters came from."""
        search = self.given.search
        chosen = "; checkpoints were chosen by validation clients, which is post-processing for training clients"
        remark = chosen * self.given.chosen
        if search is None:
            return f"no search declared: not counted{remark}"
        text = f"{search.text}, compared on {search.data} data"
        if search.data == "public" or self.missing:
            return dict(holds) | {"explanation": f"{text}: nothing is added; {holds['explanation']}{remark}"}
        if self.adaptive and self.floor is None and (self.filter is None or len(self.filter.orders) > 1):
            return f"{text}: noise that follows a loss has no divergence of one order to go by{remark}"
        low, delta = holds["epsilon_low"], self.delta
        if search.number == "poisson":
            # With no run at all nothing is published, which happens with probability e^-K.
            share = delta / -math.expm1(-search.runs)
            low = analysis("holds", self.kind).bracket(self.schedule, self.sampler, share)[0]
        if search.number == "fixed" and self.kind == "one-pass":
            high = gaussian_epsilon(_ends(self.schedule)[0] / search.runs**0.5, delta)
            how = "as one Gaussian"
        else:
            how = "by Renyi divergences"
            orders, divergences = self._divergences()
            high = searched_epsilon(divergences, orders, search, delta)
        text += f"; the low end is one run's, the high end {how}; every run as private as this one"
        return self._entry(low, max(low, high), holds["status"], text + remark)

    def _divergences(self) -> tuple[tuple[int, ...], np.ndarray]:
        """Orders, and an upper end of the run's Renyi divergence at each."""
        if self.filter is not None and self.floor is None:
            return self.filter.orders, self.filter.budgets
        least, _, done = _ends(self.schedule)
        if self.kind == "one-pass":
            return HOLDING_ORDERS, np.array(HOLDING_ORDERS) / (2 * least**2)
        if self.kind == "balls-and-bins":
            rounds = int(self.sampler["rounds"])
            return HOLDING_ORDERS, balls_and_bins.renyi(least, rounds, done, HOLDING_ORDERS)
        grouped = _grouped(self.floor or self.schedule, least=True)
        parts = [count * poisson.renyi(z, float(self.sampler["rate"]), HOLDING_ORDERS) for z, count in grouped]
        return HOLDING_ORDERS, np.sum(parts, axis=0)


class _OwnAccount(_Account):
    """The profiles of the private sums that few-shot clients take over their own examples: one Gaussian for each."""

    def __init__(self, releases: Sequence[Release], delta: float, given: Circumstances) -> None:
        named: dict[str, list[Release]] = {}
        for event in releases:
            named.setdefault(event.name, []).append(event)
        kinds = [_rounds_of(events) for events in named.values()]
        if len({len(rounds) for rounds in kinds}) > 1:
            raise BenchError(
                "the ledger's rounds differ in what they released: delete the run's folder and train again"
            )
        self.given, self.delta = given, delta
        self.first, self.sampler, self.kind = releases[0], releases[0].sampler, "one-pass"
        events = [[event for (event,) in together] for together in zip(*kinds, strict=True)]
        self.rounds = [
            [dataclasses.replace(together[0], noise_multiplier=own_records.joint(together))] for together in events
        ]
        self.schedule = _schedule(self.rounds, counted=lambda event: True)
        self.claimed = _schedule([together[:1] for together in events], counted=lambda event: True)
        self.forgotten, self.missing, self.adaptive = [], "", False
        self.filter = self.floor = None
        self._each = events[0]

    def _as_claimed(self) -> dict[str, Any]:
        z = _ends(self.claimed)[0]
        epsilon = max(own_records.claimed_epsilon(e.name, e.sampler, z, self.delta) for e in self._each)
        status, text = "proved", "the paper's: the noise of one release"
        steps = max(int(event.sampler["steps"]) for event in self._each)
        if self.first.name == own_records.REPTILE:
            text = "the paper's: Renyi accounting of the steps within a task by TensorFlow Privacy"
            if self.sampler["rate"] < 1:
                status, text = "void", f"{text}, as if each batch were a Poisson sample; disjoint batches were run"
        elif steps > 1:
            status, text = "void", f"{text}; {steps} steps read the same examples"
        return self._entry(epsilon, epsilon, status, text)

    def _holds(self) -> dict[str, Any]:
        exact = gaussian_epsilon(_ends(self.schedule)[0], self.delta)
        counts = {event.name: own_records.releases_with(event.sampler) for event in self._each}
        told = ", or ".join(f"in {count} of {name}" for name, count in counts.items())
        text = f"a client takes part once, and one of its examples is {told}: one Gaussian; exact"
        return self._entry(exact, exact, "proved", text)

    def _image_level(self, holds: Mapping[str, Any]) -> dict[str, Any] | str:
        use = self.given.images
        if use is None:
            return self.given.no_images
        most = int(use.counts().max())
        high = gaussian_epsilon(_ends(self.schedule)[0] / most**0.5, self.delta)
        uses = {"unit": "image", "uses_max": most, "uses_mean": float(use.counts().mean())}
        text = f"an image is an example of up to {most} simulated clients, each of which makes releases of its own"
        return self._entry(holds["epsilon_low"], max(high, holds["epsilon_high"]), "proved", text, **uses)


# A floor below this says nothing that anyone would want to read.
_LEAST_FLOOR = 0.5

_AS_RUN = (
    "; the noise followed a public loss of released models: this is of the schedule that was run, "
    "and does not cover the choice of it"
)

_IMAGE = {
    "one-pass": "known blocks: one Gaussian for the worst image of this partition; exact",
    "poisson": "each of them takes part on its own: a mixture of Gaussians over their number, composed over rounds, "
    "for the most used image",
    "balls-and-bins": "each of them draws a secret round: the high end by one client after another or by draws that "
    "are told, the low end by one client or by the sum of all releases; the exact value is not known",
}


def _either(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """One account of records each of which is in the releases of the first or of the second: the worse of both."""
    profiles, reasons = {}, dict(first["reasons"]) | dict(second["reasons"])
    for name in first["profiles"].keys() & second["profiles"].keys():
        both = sorted((first["profiles"][name], second["profiles"][name]), key=lambda entry: entry["epsilon_high"])
        void = [entry["explanation"] for entry in both if entry["status"] == "void"]
        profiles[name] = both[1] | {
            "epsilon_low": max(entry["epsilon_low"] for entry in both),
            "status": "void" if void else both[1]["status"],
            "explanation": f"the worse of the support set's releases and the query set's; "
            f"{void[0] if void else both[1]['explanation']}",
        }
    ordered = {name: profiles[name] for name in PROFILES if name in profiles}
    return first | {"profiles": ordered, "reasons": {name: why for name, why in reasons.items() if name not in ordered}}


def account(
    releases: Sequence[Release],
    *,
    delta: float,
    own_delta: float | None = None,
    given: Circumstances | None = None,
) -> dict[str, Any]:
    """All profiles of a run's releases, as in privacy.json.

    Multipliers may differ between rounds: sampled lots and cohorts are composed as they were, near multipliers put
    together on the safe side; one pass is exact, since the client of the least noisy round is the worst off; for
    balls-and-bins the high end takes the smallest for all rounds and the low end the largest.

    Args:
        releases: the run's ledger; empty for a run that released nothing under privacy.
        delta: at which epsilon is given.
        own_delta: the same for sums that clients take over their own examples, where the server takes one too.
        given: what else is known of the run.

    Returns:
        delta, unit, rounds, noise_multiplier, sampler, notices; `profiles`, each with epsilon_low, epsilon_high, delta,
        unit, adjacency, observer, status ("proved"; "as run": of the noise that was run, not of its choice; "void":
        not of this mechanism, or not finite) and explanation (image_level: also uses_max and uses_mean); `reasons`,
        why each other profile of `PROFILES` has no number. `also`: the same of another unit or observer, where clients
        take private sums of their own beside the server's.

    Raises:
        BenchError: an inconsistent ledger, or delta out of bounds.
    """
    if not 0 < delta < 1:
        raise BenchError(f"delta is {delta}: it must lie between 0 and 1")
    if not releases:
        reason = "no release claims privacy"
        return {
            "delta": delta,
            "rounds": 0,
            "unit": None,
            "profiles": {},
            "reasons": dict.fromkeys(PROFILES, reason),
            "reason": reason,
        }
    own = [event for event in releases if event.sampler["kind"] == own_records.KIND]
    served = [event for event in releases if event.sampler["kind"] != own_records.KIND]
    given = given or Circumstances()
    if not own or not served:
        return _account_of((_OwnAccount if own else _Account)(releases, delta, given))
    first, second = (
        _account_of(_Account(served, delta, given)),
        _account_of(_OwnAccount(own, own_delta or delta, given)),
    )
    if (served[0].unit, served[0].observer) == (own[0].unit, own[0].observer):
        return _either(first, second)
    return first | {"also": [second]}


def _account_of(found: _Account) -> dict[str, Any]:
    delta = found.delta
    profiles, reasons = found.profiles()
    sampler, unit = found.sampler, found.first.unit
    units = sampler.get("records", sampler["clients"])
    notices = []
    if delta * units >= 1:
        notices.append(f"delta {delta:g} is not below 1/{units}, one over the number of {unit}s")
    return {
        "delta": delta,
        "unit": unit,
        "rounds": len(found.rounds),
        "noise_multiplier": _ends(found.claimed)[0],
        "sampler": dict(sampler),
        "profiles": profiles,
        "reasons": reasons,
        "notices": notices,
    }


def image_use(config: RunConfig, clients_dir: Path | str) -> ImageUse:
    """Which clients of a run use which image, and in which round where its plan fixes that.

    Raises:
        BenchError: the partition is missing, damaged or not this run's.
    """
    kind, clients = config.participation.kind, config.clients
    rounds = None
    if kind == "one-pass":
        plan = make_participation(
            kind,
            clients=clients.count,
            cohort=config.participation.cohort,
            rounds=config.participation.rounds,
            seed=config.seed,
        )
        rounds = np.full(clients.count, -1)
        for index in range(plan.rounds):
            rounds[plan.cohort(index)] = index
    used = clients.support_per_class + clients.query_per_class
    return ImageUse.of(load_partition(clients_dir), used_per_class=used, rounds=rounds)


def account_run(
    run_dir: Path | str,
    out_path: Path | str,
    *,
    clients_dir: Path | str | None = None,
    search: Search | None = None,
) -> None:
    """Read a finished run's ledger and write its privacy.json.

    Args:
        run_dir: the run's folder.
        out_path: the file to write.
        clients_dir: the run's partition, for the image level; None leaves that out, with the reason.
        search: the declared search for hyper-parameters, if there was one.

    Raises:
        BenchError: the ledger is missing, damaged or inconsistent, or a private run's is empty.
    """
    run_dir = Path(run_dir)
    config = RunConfig.from_yaml(run_dir / "config.yaml")
    releases = read_ledger(run_dir / "ledger.jsonl")
    if config.private and not releases:
        raise BenchError(f"{run_dir / 'ledger.jsonl'} is empty, but {config.method} is private: train the run again")
    if releases and not config.private:
        raise BenchError(f"{run_dir / 'ledger.jsonl'} has releases, but {config.method} claims no privacy")
    shared = bool(releases) and not config.on_records and clients_dir is not None
    decay = 1.0 if config.noise is None else config.noise.decay
    given = Circumstances(
        images=image_use(config, clients_dir) if shared and clients_dir is not None else None,
        no_images=(
            "each record is at one client, whose account is what holds"
            if config.on_records
            else "the run's partition was not given"
        ),
        search=search,
        chosen=config.validation.every > 0 and not config.by_record,
        budget=config.budget,
        adaptive=decay < 1,
        fall=(decay, config.validation.every * config.client_update.inner_steps) if decay < 1 else None,
    )
    own_delta = None if config.local is None else config.local.delta
    write_json(out_path, account(releases, delta=config.delta or 1e-6, own_delta=own_delta, given=given))

"""The profiles of the releases of one mechanism and sampler.

Each profile has one method; all methods read the same schedules.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from dploss.fine_brackets import is_wide
from dploss.gaussian import ends, gaussian_epsilon
from dploss.groups import group_epsilon
from dploss.renyi import PROVEN_ORDERS
from dpsum.accounting import analyses
from dpsum.accounting.accountant import Events
from dpsum.accounting.claims import NO_CLAIM, Claims
from dpsum.accounting.context import AccountContext
from dpsum.accounting.filters import filter_of, floor_of
from dpsum.accounting.tuning import searched_epsilon
from dpsum.ledger import Release

_FOLLOWED = (
    "the high end holds for whatever noise the loss might have led to, and the low end"
    " is of the noise that was run"
)
AS_RUN = (
    "; the noise followed a public loss of released models: this is of the schedule"
    " that was run, and does not cover the choice of it"
)
STATUSES = ("proved", "as run", "void")
"""Statuses of an entry; what has several parts has the last status of any part."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """Epsilon of one profile, with its status and assumptions.

    Attributes:
        epsilon_low, epsilon_high: proven ends at delta, equal where they are exact.
        unit, adjacency, observer: unit, adjacency and observer of the guarantee.
        status: "proved"; "as run": proven for the noise that was run, but not for its
            choice; "void": about another mechanism, or not finite.
        explanation: assumptions of the guarantee.
        uses_max, uses_mean: largest and mean number of clients that use an image, for
            the image level.
        audit: objection of an audit, if there is one.
    """

    epsilon_low: float
    epsilon_high: float
    delta: float
    unit: str
    adjacency: str
    observer: str
    status: str
    explanation: str
    uses_max: int | None = None
    uses_mean: float | None = None
    audit: str | None = None


class Profiles:
    """Computation of all profiles of releases; arguments as in `account.account`."""

    def __init__(
        self,
        releases: Sequence[Release],
        delta: float,
        claims: Claims,
        context: AccountContext,
    ) -> None:
        self.context = context
        self.delta = delta
        self.claims = claims
        self.first = releases[0]
        self.accountant = analyses.of(releases)
        self.events = events = self.accountant.read(releases)
        uncovered = {
            event.reason: event
            for event in reversed(releases)
            if event.data_dependent_threshold
        }
        self.missing = "; ".join(
            f"{event.name} from round {event.round}, {why}"
            for why, event in uncovered.items()
        )
        self.counts_more_noise = any(
            event.counted_multiplier > event.noise_multiplier for event in releases
        )
        if self.missing:
            self.z = None
        else:
            self.z = self.accountant.gaussian(events)
        if context.adaptive is None:
            self.adaptive = len(events.schedule) > 1
        else:
            self.adaptive = context.adaptive
        # Noise that did not change in this run could have changed.
        if any(event.follows_loss for event in releases):
            self.adaptive = True
        self.filter = self.floor = None
        if self.adaptive and self.accountant.follows_loss:
            if context.budget is not None and (
                claims or context.budget.profile == "proven"
            ):
                self.filter = filter_of(events, context.budget, claims)
            if context.decay_step is not None:
                self.floor = floor_of(events, context.decay_step)
        if self.is_covered:
            # The proof covers all schedules that the loss may choose, not only the one
            # Gaussian of the schedule that was run.
            self.z = None

    @property
    def is_covered(self) -> bool:
        """Whether a proof covers whatever noise the loss may choose."""
        return self.filter is not None or self.floor is not None

    @property
    def least_events(self) -> Events:
        """The releases at the least noise that the loss could lead to, if it is known.

        Else, the releases at the noise that was run.
        """
        if self.floor is None:
            return self.events
        return self.events.of_noise(self.floor)

    @property
    def proven_status(self) -> str:
        """Status of the proven epsilon."""
        if self.missing:
            return "void"
        if self.adaptive and not self.is_covered:
            return "as run"
        return "proved"

    def read(self) -> tuple[Mapping[str, Entry], Mapping[str, str]]:
        """Return each profile's entry, or the reason why it has none."""
        proven = self._proven_entry()
        replace_one = self._replace_one(proven)
        proven = self._with_width(proven)
        if self.accountant.adjacency == "replace-one":
            replace_one = proven
        answers = {
            "claimed": self._claimed_entry(),
            "proven": proven,
            "replace_one": replace_one,
            "image_level": self._image_level(proven),
            "tuning": self._tuning(proven),
        }
        entries = {}
        reasons = {}
        for name, answer in answers.items():
            if isinstance(answer, Entry):
                entries[name] = answer
            else:
                reasons[name] = answer
        return entries, reasons

    def _entry(
        self, low: float, high: float, status: str, explanation: str, **fields: Any
    ) -> Entry:
        if self.missing:
            status = "void"
            explanation = f"a release without an event: {self.missing}"
        values = {
            name: getattr(self.first, name)
            for name in ("unit", "adjacency", "observer")
        }
        return Entry(
            epsilon_low=low,
            epsilon_high=high,
            delta=self.delta,
            status=status,
            explanation=explanation,
            **values | fields,
        )

    def _claimed_entry(self) -> Entry | str:
        if not self.claims:
            return NO_CLAIM
        claim = self.claims.get(self.accountant.pair[1])
        events = self.events
        if claim is None:
            if events.uncounted:
                schedule = events.claimed[0][0]
            else:
                schedule = events.schedule
            counted = events.of_noise(schedule)
            low, high = self.accountant.bracket(counted, self.delta)
            status = "proved"
            text = self.accountant.explain(events)
        else:
            low = high = max(
                claim.epsilon(*counted, self.delta) for counted in events.claimed
            )
            schedule, sampling = max(
                events.claimed, key=lambda counted: ends(counted[0])[2]
            )
            status, text = claim.statement(sampling)
            text += claim.read_otherwise(schedule, sampling, self.delta)
            if self.counts_more_noise and status == "proved":
                status = "void"
                text += (
                    "; groups of coordinates together have less noise than is counted"
                )
        if self.adaptive and status == "proved":
            status = "as run"
            text = text + AS_RUN
        if events.uncounted:
            names = ", ".join(events.uncounted)
            status = "void"
            text = f"{text}; the paper does not count the release {names}"
        return self._entry(low, high, status, text)

    def _proven_entry(self) -> Entry:
        if self.missing:
            return self._entry(math.inf, math.inf, "void", "")
        low, high = self.accountant.bracket(self.events, self.delta)
        text = self.accountant.explain(self.events)
        if not self.adaptive:
            return self._entry(low, high, "proved", text)
        if not self.is_covered:
            return self._entry(low, high, "as run", text + AS_RUN)
        proofs = []
        if self.filter is not None:
            count = len(self.filter.orders)
            orders = f"{count} orders"
            if count == 1:
                orders = "one order"
            proofs.append(f"within a Renyi filter of {orders} fixed in advance")
        if self.floor is not None:
            proofs.append("never below the noise that falls at every chance")
        text = (
            f"{text}; the noise followed a public loss of released models,"
            f" {' and '.join(proofs)}: the high end holds for whatever noise came of"
            f" it; the schedule that was run would by itself be at most {high:.4g}"
        )
        high = max(low, self._high(self.delta))
        return self._entry(low, high, "proved", text)

    def _with_width(self, proven: Entry) -> Entry:
        """Return the entry of `proven`, with the width of its bracket and the reason."""
        if self.missing:
            return proven
        reason = _FOLLOWED
        if not self.is_covered:
            reason = self.accountant.width_reason(self.events, self.delta)
        text = proven.explanation + width_text(
            proven.epsilon_low, proven.epsilon_high, reason
        )
        return dataclasses.replace(proven, explanation=text)

    def _high(self, delta: float) -> float:
        """Return the high end of `proven` at another delta."""
        if self.missing:
            return math.inf
        if self.filter is None:
            return self.accountant.high(self.least_events, delta)
        high = self.filter.epsilon(delta)
        if self.floor is not None:
            high = min(high, self.accountant.high(self.least_events, delta))
        return high

    def _replace_one(self, proven: Entry) -> Entry:
        """Return the entry under replace-one: the sum moves by up to twice C."""
        if self.accountant.adjacency == "replace-one":
            return proven
        low = proven.epsilon_low
        if self.missing:
            own_bracket = None
        else:
            own_bracket = self.accountant.replaced(self.events, self.delta)
        if own_bracket is not None:
            low, high = own_bracket
            method = "replaced by any other, which has an analysis of its own"
            reason = self.accountant.width_reason(self.events, self.delta)
        elif self.z:
            high = gaussian_epsilon(self.z / 2, self.delta)
            method = "sensitivity 2C"
            if low == proven.epsilon_high:
                low = high
            reason = "the low end is that of a unit that is zeroed"
        else:
            two_changes = group_epsilon(self._high, 2, self.delta)
            high = max(low, two_changes)
            method = "the high end zeroes the unit and then puts another in its place"
            reason = (
                "the low end is that of a unit that is zeroed, and the high end counts"
                " its replacement as two changes"
            )
        return self._entry(
            low,
            high,
            proven.status,
            f"{proven.explanation}; {method}{width_text(low, high, reason)}",
            adjacency="replace-one",
        )

    def groups(self, profiles: Mapping[str, Entry]) -> dict[str, Entry]:
        """Return the proven epsilon of several units that are zeroed out at once.

        The entries are by number of units k. Their explanation states the claim (k eps,
        k e^((k-1) eps) delta) for the claimed eps (Li et al. 2020, after Dwork and Roth
        2014). It is void where that delta is not below 1.
        """
        by_size = {}
        for size in self.context.groups:
            z = self.z
            if z:
                high = gaussian_epsilon(z / size, self.delta)
                method = "one Gaussian of sensitivity kC; exact"
            else:
                high = group_epsilon(self._high, size, self.delta)
                method = "one unit is changed after another"
            one_low = profiles["proven"].epsilon_low
            one_high = profiles["proven"].epsilon_high
            if z and one_low == one_high > 0:
                low = high
            else:
                low = min(one_low, high)
            if "claimed" in profiles:
                single_unit = profiles["claimed"].epsilon_high
                exponent = min((size - 1) * single_unit, 600.0)
                share = size * math.exp(exponent) * self.delta
                void = ""
                if share >= 1:
                    void = ", which says nothing"
                method += (
                    f"; claimed would be epsilon {size * single_unit:.4g} at delta"
                    f" {share:.3g}{void}"
                )
            by_size[str(size)] = self._entry(
                low,
                high,
                profiles["proven"].status,
                f"{size} {self.first.unit}s: {method}",
            )
        return by_size

    def _image_level(self, proven: Entry) -> Entry | str:
        """Return the entry for one image: all clients that use it are zeroed out."""
        use = self.context.images
        accountant = self.accountant
        if self.first.unit == "record" and not accountant.shared_records:
            if use is not None:
                return (
                    "an image is an example of several simulated clients, in support"
                    " and query sets: not accounted for"
                )
            text = f"each image is one record of one client; {proven.explanation}"
            return dataclasses.replace(
                proven, unit="image", explanation=text, uses_max=1, uses_mean=1.0
            )
        if use is None:
            return self.context.no_images
        low = high = math.inf
        if not self.missing:
            low, high = accountant.image(self.events, use, self.delta)
        counts = use.counts()
        uses = {"uses_max": use.most, "uses_mean": float(counts.mean())}
        text = accountant.images.format(uses=uses["uses_max"])
        return self._entry(low, high, "proved", text, unit="image", **uses)

    def _tuning(self, proven: Entry) -> Entry | str:
        """Return the entry for the search of which this run is a part."""
        search = self.context.search
        events = self.events
        delta = self.delta
        chosen = (
            "; checkpoints were chosen by validation clients, which is post-processing"
            " for training clients"
        )
        remark = chosen * self.context.chosen
        if search is None:
            return f"no search declared: not counted{remark}"
        text = f"{search.text}, trained on {search.data} data"
        if search.data == "public" or self.missing:
            explanation = f"{text}: nothing is added; {proven.explanation}{remark}"
            return dataclasses.replace(proven, explanation=explanation)
        if (
            self.adaptive
            and self.floor is None
            and (self.filter is None or len(self.filter.orders) > 1)
        ):
            return (
                f"{text}: noise that follows a loss has no divergence of one order to"
                f" go by{remark}"
            )
        low = proven.epsilon_low
        if search.number == "poisson":
            # With probability e^-K there is no run, and nothing is published.
            share = delta / -math.expm1(-search.runs)
            as_run = events.of_noise(events.schedule)
            low, _ = self.accountant.bracket(as_run, share)
        if search.several and not self.context.own_streams:
            text += (
                "; its runs may have drawn the same cohorts and noise, which may"
                " cancel between them: nothing finite is proven; set streams to own for"
                f" each of them{remark}"
            )
            return self._entry(low, math.inf, "void", text)
        method = "by Renyi divergences"
        if not search.several:
            high = proven.epsilon_high
            method = "is the same"
        elif search.number == "fixed" and self.z:
            high = gaussian_epsilon(self.z / search.runs**0.5, delta)
            method = "as one Gaussian"
        elif self.filter is not None and self.floor is None:
            high = searched_epsilon(
                self.filter.budgets, self.filter.orders, search, delta
            )
        else:
            divergences = self.accountant.renyi(
                events.of_noise(self.floor or events.schedule), PROVEN_ORDERS
            )
            high = searched_epsilon(divergences, PROVEN_ORDERS, search, delta)
        every = "every run as private as this one, and of streams of its own"
        text += f"; the low end is one run's, the high end {method}; {every}"
        high = max(low, high)
        return self._entry(low, high, proven.status, text + remark)


def width_text(low: float, high: float, reason: str) -> str:
    """Return a clause with a bracket's width and its reason.

    It is empty for a narrow or an infinite bracket.
    """
    if math.isinf(high) or not is_wide(low, high):
        return ""
    share = ""
    if low > 0:
        share = f" ({100 * (high - low) / low:.1f} % of it)"
    return (
        f"; the high end is {high - low:.3g} above the low end{share}, since {reason}"
    )

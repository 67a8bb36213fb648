"""Watch a pfl-research simulation: a ledger of its privacy mechanism's releases.

`watch` wraps a `SimulatedBackend` and does not change the run. Each central iteration
becomes a line:

- The sampler is the one that ran. pfl's `random` draws each user of a cohort separately
  from all users, so that a user may be drawn twice ("fixed-draws"). `minimize_reuse`
  cycles through the users in a fixed order, so that any two rounds of a user are known
  and at least floor(users / cohort) apart ("min-separation"). Any other is "unknown",
  and no epsilon is reported.
- The sensitivity is the clipping bound. The watch checks that the vectors that were
  added up are within it, after all postprocessors. Banded noise is correlated over
  rounds by C^-1, so that the sensitivity of one participation is the clipping bound
  times the largest column norm of C, the query matrix, which the watch reads from the
  mechanism.
- The watch measures the noise (`watch.NoiseSeen`). For banded noise it measures the
  independent draws, C times the noise.
- `noise_scale` below 1 reduces the noise of the simulated run, but not of the claimed
  one. The line has the noise that was added.
- Weights other than 1 are summed up without noise, and divide the sum: a release that
  no epsilon covers. So are metrics, unless the caller states that only the server sees
  them.

Local mechanisms noise each user's vector separately, against the server; a line stands
for the worst user of its round. A central mechanism that approximates a local one is
refused: watch the local one.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.common_types import Population
from pfl.context import CentralContext, UserContext
from pfl.data.sampling import MinimizeReuseUserSampler, get_user_sampler
from pfl.hyperparam import get_param_value
from pfl.internal.ops.selector import get_default_framework_module as get_ops
from pfl.metrics import Metrics
from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import (
    CentrallyAppliedPrivacyMechanism,
    NoPrivacy,
    PrivacyMechanism,
)
from pfl.stats import MappedVectorStatistics

from dpsum.accounting.claims import Claim
from dpsum.errors import DpsumError
from dpwatch import accountants  # noqa: F401  # registers "fixed-draws"
from dpwatch.adapters.watch import Watch, check_cohorts, check_scale, differences, norm

_RANDOM = get_user_sampler("random", [0]).__code__
_SLACK = 1e-5  # sums of float32


def _gaussian(mechanism: Any) -> GaussianMechanism | None:
    inner = mechanism
    if isinstance(mechanism, CentrallyAppliedPrivacyMechanism):
        inner = mechanism.underlying_mechanism
    return inner if isinstance(inner, GaussianMechanism) else None


def _sampling(sampler: Any) -> tuple[str, int | None]:
    """Return the kind of a user sampler, and its number of users if it is known."""
    if getattr(sampler, "__code__", None) is _RANDOM:
        return "fixed-draws", len(inspect.getclosurevars(sampler).nonlocals["user_ids"])
    return (
        "min-separation" if isinstance(sampler, MinimizeReuseUserSampler) else "unknown"
    ), None


@dataclasses.dataclass
class _Round:
    """Observations of one iteration.

    Attributes:
        users: users of the cohort, in the order of their draw.
        norms, weights: of the vectors that are added up.
        draws: noise of each call, array by array.
        noised: arrays to which the last noise was added.
        bound: clipping bound.
    """

    users: list[Any] = dataclasses.field(default_factory=list)
    norms: list[float] = dataclasses.field(default_factory=list)
    weights: list[float] = dataclasses.field(default_factory=list)
    draws: list[list[np.ndarray]] = dataclasses.field(default_factory=list)
    noised: list[np.ndarray] = dataclasses.field(default_factory=list)
    bound: float = 0.0


class BackendWatch(Watch):
    """Watch of a backend, from its first iteration (`watch`).

    Args:
        backend: backend with one Gaussian mechanism among its postprocessors, central
            (also adaptive or banded) or local.
        ledger: path of the ledger; the file must not exist.
        rounds: planned number of central iterations.
        users: number of users in the training data; None: taken from the sampler
            `random`.
        cohorts: "secret": nobody who sees the models knows who was in which round;
            "known": they may know, and sampling does not amplify privacy.
        metrics: "released" or "kept"; see `Watch`.

    Raises:
        DpsumError: there is no mechanism, several, or one that is not Gaussian; the
            number of users is not known; the backend is watched already; an argument is
            out of bounds; the ledger exists.
    """

    def __init__(
        self,
        backend: SimulatedBackend,
        ledger: Path | str,
        *,
        rounds: int,
        users: int | None = None,
        cohorts: str = "secret",
        metrics: str = "released",
    ) -> None:
        mechanisms = [
            postprocessor
            for postprocessor in backend._postprocessors
            if isinstance(postprocessor, PrivacyMechanism)
            and not isinstance(postprocessor, NoPrivacy)
        ]
        if len(mechanisms) != 1:
            raise DpsumError(
                f"the backend has {len(mechanisms)} privacy mechanisms among its"
                " postprocessors: give a backend with exactly one"
            )
        mechanism: Any = mechanisms[0]
        if "postprocess_server" in vars(mechanism):
            raise DpsumError(
                "the backend's mechanism is watched already: make a new one"
            )
        check_cohorts(cohorts)
        if rounds < 1:
            raise DpsumError(
                f"rounds is {rounds}: give the number of planned central iterations"
            )
        gaussian = _gaussian(mechanism)
        if gaussian is None:
            raise DpsumError(
                f"{type(mechanism).__name__} is not a GaussianMechanism, central or"
                " local: no accountant covers its noise"
            )
        kind, known = _sampling(
            getattr(backend._training_dataset, "user_sampler", None)
        )
        if (users or known) is None:
            raise DpsumError(
                "this sampler does not state the number of users: give watch(users=...)"
            )
        if users is not None and known is not None and users != known:
            raise DpsumError(
                f"users is {users}, but the sampler draws from {known}: leave users out"
            )
        bound = float(get_param_value(gaussian.clipping_bound))
        check_scale(bound, bound * float(gaussian.relative_noise_stddev))
        super().__init__(ledger, metrics)
        self._users = int(users or known or 0)
        self.gaussian = gaussian
        self._mechanism = mechanism
        self._rounds = rounds
        self._local = isinstance(mechanism, GaussianMechanism)
        self._in_turn = kind == "min-separation"
        is_known = self._local or cohorts == "known"
        self._kind = "min-separation" if is_known and kind != "unknown" else kind
        self._now = _Round()
        self._past = list[np.ndarray]()
        self._cohort = 0
        self._last = dict[Any, int]()
        self.replace(backend._training_dataset, "get_cohort", self._drawn)
        self.replace(backend._aggregator, "accumulate", self._added)
        self.replace(mechanism, "postprocess_server", self._released)
        self.replace(gaussian, "add_noise", self._noised)

    def _drawn(self, inner: Any, cohort_size: int) -> Iterable[Any]:
        self._now = _Round()
        for dataset, seed in inner(cohort_size):
            self._now.users.append(dataset.user_id)
            yield dataset, seed

    def _added(self, inner: Any, *, accumulated: Any, user_stats: Any) -> Any:
        metadata, arrays = user_stats.get_weights()
        if not self._local:  # then it has noise already, and its norm was seen before
            self._now.norms.append(norm(_numpy(arrays)))
            self._now.weights.extend(
                float(weight) for weight in np.ravel(_numpy([metadata])[0])
            )
        return inner(accumulated=accumulated, user_stats=user_stats)

    def _noised(
        self, inner: Any, statistics: Any, cohort_size: int, *args: Any, **kwargs: Any
    ) -> Any:
        before = [array.copy() for array in _numpy(statistics.get_weights()[1])]
        self._now.bound = float(get_param_value(self.gaussian.clipping_bound))
        noisy, metrics = inner(statistics, cohort_size, *args, **kwargs)
        self._now.draws.append(differences(_numpy(noisy.get_weights()[1]), before))
        self._now.noised = before
        if self._local:
            self._now.norms.append(norm(before))
        return noisy, metrics

    def _released(
        self, inner: Any, *, stats: Any, central_context: Any, aggregate_metrics: Any
    ) -> Any:
        stats, metrics = inner(
            stats=stats,
            central_context=central_context,
            aggregate_metrics=aggregate_metrics,
        )
        if central_context.population == Population.TRAIN:
            self._write()
            self.round += 1
        return stats, metrics

    def _write(self) -> None:
        now = self._now
        gaussian = self.gaussian
        self._cohort = self._cohort or len(now.users)
        factor = 1.0
        combines = None
        values: list[np.ndarray] | None = now.noised
        draws = now.draws if self._local else now.draws[-1:]
        deviation = now.bound * gaussian.relative_noise_stddev
        if isinstance(gaussian, BandedMatrixFactorizationMechanism):
            encoder = np.asarray(gaussian.query_matrix, dtype=np.float64)
            factor = float(np.max(np.linalg.norm(encoder, axis=0)))
            inverse = np.linalg.inv(encoder)[self.round, : self.round + 1]
            combines = [float(weight) for weight in inverse]
            drawn, self._past = _undone(encoder, self._past, now.draws[-1], self.round)
            draws = [drawn]
            values = None  # the draw is a sum of noise of several rounds
        sampler, reasons = self._sampler()
        if self._local and len(draws) != len(now.users):
            reasons.append(
                f"{len(draws)} of {len(now.users)} users added noise to what they sent"
            )
        if max(now.norms, default=0.0) > now.bound * (1 + _SLACK):
            reasons.append(
                f"a vector that was added has norm {max(now.norms):.4g}, more than the"
                f" bound {now.bound:.4g}"
            )
        if not all(abs(weight - 1.0) <= 1e-6 for weight in now.weights):
            reasons.append(
                "the sum is divided by a total of weights other than 1, which has no"
                " noise: weigh by user"
            )
        if self.metrics == "released":
            reasons.append(
                "the users' metrics are added up and released without noise: give"
                " metrics='kept', if only the server sees them"
            )
        if self._kind == "min-separation":
            often = max(Counter(now.users).values(), default=1)
            factor *= often**0.5 if self._local else often
        self.write(
            name="own-update" if self._local else "update-sum",
            threshold=now.bound,
            sensitivity=now.bound * factor,
            deviation=deviation,
            draws=draws,
            values=values,
            sampler=sampler,
            denominator=1 if self._local else len(now.users),
            reasons=reasons,
            observer="server" if self._local else "everyone",
            combines=combines,
        )

    def _sampler(self) -> tuple[dict[str, Any], list[str]]:
        """Return the sampler, and what contradicts it.

        A cohort of another size contradicts it, or a user who takes part again too
        early.
        """
        now = self._now
        users = self._users
        cohort = self._cohort
        rounds = self._rounds
        reasons = list[str]()
        if len(now.users) != cohort:
            reasons.append(
                f"a cohort of {len(now.users)} users followed one of {cohort}"
            )
        sizes = {
            "clients": users,
            "cohort": cohort,
            "rounds": rounds,
            "rate": cohort / users,
        }
        if self._kind != "min-separation":
            return {"kind": self._kind} | sizes, reasons
        separation = max(users // cohort, 1) if self._in_turn else 1
        for user in set(now.users):
            if self.round - self._last.get(user, -separation) < separation:
                reasons.append(
                    f"user {user} took part again after"
                    f" {self.round - self._last[user]} rounds, fewer than the"
                    f" separation of {separation}"
                )
            self._last[user] = self.round
        spacing = {"separation": separation, "participations": -(-rounds // separation)}
        return {"kind": self._kind} | sizes | spacing, reasons

    def release_of(self) -> Callable[[np.ndarray], np.ndarray]:
        return release_of(self._mechanism)

    def claim(self) -> Claim | None:
        accountant = getattr(self.gaussian, "privacy_accountant", None)
        if accountant is None:
            return None

        def epsilon(schedule: Any, sampler: Any, delta: float) -> float:
            settings = {
                "noise_parameter": accountant.noise_parameter,
                "mechanism": accountant.mechanism,
                "delta": delta,
            }
            if delta == accountant.delta:
                return float(accountant.epsilon)
            again = type(accountant)(
                accountant.num_compositions, accountant.sampling_probability, **settings
            )
            return float(again.epsilon)

        scaled = (
            f", of {1 / accountant.noise_scale:.4g} times the noise that was added"
            * (accountant.noise_scale < 1)
        )
        return Claim(
            epsilon=epsilon,
            explanation=(
                f"pfl's {type(accountant).__name__}: {accountant.num_compositions}"
                " compositions of Poisson sampling at"
                f" {accountant.sampling_probability:.4g}{scaled}"
            ),
            # No sampler here draws Poisson samples.
            status="proved" if accountant.sampling_probability == 1 else "void",
        )


watch = BackendWatch


def release_of(mechanism: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return a central mechanism's clipping, sum and noise as a function for an audit.

    The function maps vectors [n, d] to the noisy sum [d].

    Raises:
        DpsumError: the noise is banded, so that one call does not show it, or the
            mechanism is local.
    """
    gaussian = _gaussian(mechanism)
    if (
        isinstance(gaussian, BandedMatrixFactorizationMechanism)
        or mechanism is gaussian
    ):
        raise DpsumError(
            "an audit needs one release of a sum, but this noise spans several"
            " rounds or is each user's own"
        )
    seeds = np.random.default_rng(
        np.random.randint(2**32, dtype=np.uint32)
    )  # as pfl draws its own

    def seed() -> int:
        return int(seeds.integers(2**32))

    def release(rows: np.ndarray) -> np.ndarray:
        again = copy.deepcopy(
            {
                key: value
                for key, value in vars(mechanism).items()
                if key != "postprocess_server"
            }
        )
        called = object.__new__(type(mechanism))
        vars(called).update(again)
        vars(_gaussian(called)).pop("add_noise", None)
        total = None
        for row in rows:
            stats = MappedVectorStatistics({"row": get_ops().to_tensor(np.array(row))})
            context = UserContext(
                num_datapoints=1, seed=seed(), user_id="0", metrics=Metrics()
            )
            sent, _ = called.postprocess_one_user(stats=stats, user_context=context)
            total = sent if total is None else sent + total
        central = CentralContext(
            current_central_iteration=0,
            do_evaluation=False,
            cohort_size=len(rows),
            population=Population.TRAIN,
            model_train_params=None,
            algorithm_params=None,
            seed=seed(),
        )
        noisy, _ = called.postprocess_server(
            stats=total, central_context=central, aggregate_metrics=Metrics()
        )
        return _numpy([noisy["row"]])[0]

    return release


def _numpy(arrays: Iterable[Any]) -> list[np.ndarray]:
    return [np.asarray(get_ops().to_numpy(array)) for array in arrays]


def _undone(
    encoder: np.ndarray, past: list[np.ndarray], noise: list[np.ndarray], number: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the independent draw behind a round's correlated noise.

    It is row `number` of C times the noise so far, array by array. Noise that no later
    row of C reads is dropped.
    """
    past = [*past, np.concatenate([earlier.ravel() for earlier in noise])]
    draw = np.zeros_like(past[-1])
    for weight, earlier in zip(encoder[number], past, strict=False):
        if weight:
            draw += weight * earlier
    needed = np.any(encoder[number + 1 :, : number + 1] != 0, axis=0)
    remembered = [
        earlier if again else np.zeros(0)
        for earlier, again in zip(past, needed, strict=True)
    ]
    return (
        list(np.split(draw, np.cumsum([earlier.size for earlier in noise])[:-1])),
        remembered,
    )

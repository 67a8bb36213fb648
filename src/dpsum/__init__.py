"""Private sums for any training loop: mechanisms, ledger of releases, accountants.

    import dpsum

    rounds = dpsum.BallsAndBins(units=16_000, cohort=400, rounds=40)
    update_sum = dpsum.SumSpec(
        name="update", unit="client", observer="everyone",
        clipping=dpsum.Constant(0.5), noise=dpsum.Gaussian(0.992),
    )
    mechanism = dpsum.Mechanism(
        update_sum, participation=rounds, dimension=d, ledger="ledger.jsonl"
    )
    for t in range(40):
        total = mechanism.begin_round(t)
        for client in rounds.sample_cohort(t):
            total.add(update(model, client))                             # [n, d]
        model -= rate * mechanism.release(total) / rounds.denominator
    print(dpsum.account("ledger.jsonl", delta=1e-6))

A budget finds the noise: `noise=dpsum.Gaussian(None), budget=dpsum.Budget(epsilon=2.0)`
and `(update_sum,) = dpsum.calibrated([update_sum], rounds)` before the mechanism.

Six files show how a Gaussian sum over Poisson cohorts is released and accounted for:

1. `dpsum/mechanism.py`: a round (`begin_round`, `Accumulator.add`, `finish`, `write`)
2. `dpsum/private_sum.py`: each contribution is clipped and added; noise of deviation z C
3. `dpsum/noise.py`: the draw of the noise
4. `dpsum/ledger.py`: the line of a release, written and read
5. `dpsum/accounting/accountant.py`: from lines to z and q of each round (`read`)
6. `dpsum/accounting/analyses/poisson.py`: from these to epsilon at delta (`ends`)

`dpsum.account` asks an accountant for each profile in this way; the composition of
losses that `ends` calls is in `dploss`.

The package needs only numpy and scipy. Names are loaded on first use. `dpwatch` has
audits of any mechanism and adapters for other libraries.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_NAMES = {
    "accounting.account": ("Account", "account"),
    "accounting.calibration": ("calibrate", "epsilon_after", "rounds_allowed"),
    "accounting.claims": ("Claim",),
    "budget": ("Budget",),
    "clipping": (
        "ByFactor",
        "ClippingRule",
        "Constant",
        "MeanOfRawNorms",
        "NoisedMeanNorm",
        "NormOfRelease",
        "PercentileOfRawNorms",
        "PercentileOfReleases",
        "PrivateQuantile",
    ),
    "composition": ("Composition", "calibrated"),
    "correlated_noise": ("Factorised",),
    "errors": ("DpsumError", "NoAccountWarning"),
    "group_clipping": ("CoordinateGroups",),
    "ledger": ("Ledger", "Release", "read_ledger"),
    "mechanism": ("Accumulator", "Mechanism"),
    "noise": ("Decaying", "Gaussian", "Noise"),
    "parameters": ("parameter",),
    "participation": (
        "BallsAndBins",
        "Everyone",
        "FixedSize",
        "MinSeparation",
        "OnePass",
        "Passes",
        "Participation",
        "Poisson",
        "PoissonLots",
        "RecordLots",
        "ShuffledEpochs",
    ),
    "private_sum": ("PrivateSum",),
    "sampling": ("Sampling",),
    "skellam_noise": ("Skellam",),
    "sums": ("SumSpec",),
}
"""Public names, by the module that defines them."""

_PLACES = {name: module for module, names in _NAMES.items() for name in names}

_MODULES = ("factorisations",)
"""Modules that are public as a whole."""

__all__ = sorted([*_PLACES, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"dpsum.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module 'dpsum' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dpsum.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]

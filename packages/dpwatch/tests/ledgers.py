"""Ledgers that several tests read: lines by hand, and those that a mechanism writes."""

import numpy as np

import dpsum
from dpsum.factorisations import SquareRoot
from dpsum.ledger import Release

ONE_PASS = {"kind": "one-pass", "clients": 8, "cohort": 2, "rounds": 4, "rate": 0.25}
COHORTS = {"clients": 400, "cohort": 100, "rounds": 4, "rate": 0.25}


def make_release(*, z=1.0, threshold=0.5, **changes):
    """Return one line of a ledger: noise of z times the threshold, unless changed."""
    values = {
        "round": 0,
        "name": "sum",
        "unit": "client",
        "adjacency": "zero-out",
        "observer": "everyone",
        "noise_multiplier": z,
        "threshold": threshold,
        "sensitivity": threshold,
        "noise_std": z * threshold,
        "dimension": 3,
        "sampler": ONE_PASS,
        "denominator": 2.0,
        "noise_stream": "0/noise/0",
        "data_dependent_threshold": False,
        "reason": "",
        "mechanism": "gaussian",
        "counted_by_paper": True,
    }
    return Release(**values | changes)


def make_releases(count, **changes):
    """Return the lines of rounds 0 to count - 1, which are alike."""
    return [make_release(round=index, **changes) for index in range(count)]


def correlated_releases(weights=None, rounds=4, **changes):
    """Return lines of correlated noise; `weights` is C^-1, the square root's if None."""
    weights = SquareRoot().weights(4, None) if weights is None else weights
    sampler = {"kind": "one-pass", **COHORTS}
    values = {"z": 2.0, "mechanism": "correlated-gaussian", "sampler": sampler}
    return [
        make_release(
            round=index,
            **{"combines": weights[index, : index + 1].tolist()} | values | changes,
        )
        for index in range(rounds)
    ]


def run_mechanism(path, participation=dpsum.OnePass, noise_multiplier=1.0, **changes):
    """Run a mechanism with a ledger at `path`; `changes` are sizes of the cohorts."""
    sizes = {"units": 200, "cohort": 50, "rounds": 4} | changes
    update_sum = dpsum.SumSpec(
        name="update",
        unit="client",
        observer="everyone",
        clipping=dpsum.Constant(0.5),
        noise=dpsum.Gaussian(noise_multiplier),
    )
    mechanism = dpsum.Mechanism(
        update_sum,
        dimension=3,
        participation=participation(seed=1, **sizes),
        ledger=path,
    )
    for index in range(sizes["rounds"]):
        total = mechanism.begin_round(index)
        total.add(np.ones((sizes["cohort"], 3)))
        mechanism.release(total)

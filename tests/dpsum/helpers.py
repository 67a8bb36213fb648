"""Ledger lines and mechanisms that the tests of dpsum share."""

import dataclasses
import subprocess
import sys

import numpy as np

import dpsum
from dpsum.ledger import Release
from dpsum.private_sum import PrivateSum

ONE_PASS = {"kind": "one-pass", "clients": 8, "cohort": 2, "rounds": 4, "rate": 0.25}

NO_NOISE = 0.0
"""Standard noise of a release that shows the sum before its noise."""


def make_sum(dimension, threshold=0.5, noise_multiplier=1.0):
    return PrivateSum(
        dimension=dimension, threshold=threshold, noise_multiplier=noise_multiplier
    )


FIELDS = {field.name for field in dataclasses.fields(dpsum.SumSpec)}


def make_spec(**values):
    """Return the specification of a sum; values that it does not have are left out."""
    fields = {"name": "sum", "unit": "client", "observer": "everyone"}
    fields |= {name: value for name, value in values.items() if name in FIELDS}
    return dpsum.SumSpec(**fields)


def make_mechanism(**values):
    """Return a mechanism; `values` are fields of its `SumSpec`, and its arguments."""
    (mechanism,) = make_mechanisms([values])
    return mechanism


def make_mechanisms(sums, composition=None):
    """Return the mechanisms of one run, each with values as for `make_mechanism`."""
    specs = [make_spec(**values) for values in sums]
    if composition is None:
        composition = dpsum.Composition(sums=specs)
    mechanisms = []
    for spec, values in zip(specs, sums, strict=True):
        arguments = {
            name: value for name, value in values.items() if name not in FIELDS
        }
        (calibrated,) = composition.calibrate([spec], values["participation"])
        mechanism = dpsum.Mechanism(calibrated, composition=composition, **arguments)
        mechanisms.append(mechanism)
    return mechanisms


def release_rounds(mechanism, rows, rounds, first=0):
    """Return the releases of the rounds from `first` on, each a sum of the same rows."""
    releases = []
    for index in range(first, rounds):
        total = mechanism.begin_round(index)
        total.add(rows)
        releases.append(mechanism.release(total))
    return np.array(releases)


def make_release(*, z=1.0, threshold=0.5, **changes):
    """Return one line of a ledger: noise of z times the threshold, unless changed.

    `threshold` is a list where each client takes a sum over its own records.
    """
    noise_std = z * np.array(threshold)
    values = {
        "round": 0,
        "name": "sum",
        "unit": "client",
        "adjacency": "zero-out",
        "observer": "everyone",
        "noise_multiplier": z,
        "threshold": threshold,
        "sensitivity": threshold,
        "noise_std": noise_std.tolist(),
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


def run_python(*arguments, **options):
    """Run an interpreter of its own and return what it prints."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout

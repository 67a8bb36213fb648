"""Ledgers as a loop of one's own writes them."""

import numpy as np
import pytest

import dpsum
from tests.dpsum.helpers import make_mechanism, release_rounds


@pytest.fixture
def write_ledger(tmp_path):
    """Runs a mechanism and returns its ledger's path."""

    def write(name, participation=dpsum.OnePass, noise_multiplier=1.0, **changes):
        sizes = {"units": 200, "cohort": 50, "rounds": 4} | changes
        mechanism = make_mechanism(
            name="update",
            dimension=3,
            participation=participation(seed=1, **sizes),
            clipping=dpsum.Constant(0.5),
            noise=dpsum.Gaussian(noise_multiplier),
            ledger=tmp_path / name,
        )
        release_rounds(mechanism, np.ones((sizes["cohort"], 3)), sizes["rounds"])
        return str(tmp_path / name)

    return write

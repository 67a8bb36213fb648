"""Ledgers as a loop of one's own writes them."""

import numpy as np
import pytest

import dpsum
from tests.dpsum.helpers import make_mechanism, release_rounds


@pytest.fixture
def write_ledger(tmp_path):
    """Runs a mechanism and returns its ledger's path."""

    def write(
        name,
        *,
        participation=dpsum.OnePass,
        noise_multiplier=1.0,
        rounds=4,
        units=200,
        cohort=50,
    ):
        plan = participation(units=units, cohort=cohort, rounds=rounds, seed=1)
        mechanism = make_mechanism(
            name="update",
            dimension=3,
            participation=plan,
            clipping=dpsum.Constant(0.5),
            noise=dpsum.Gaussian(noise_multiplier),
            ledger=tmp_path / name,
        )
        release_rounds(mechanism, np.ones((cohort, 3)), rounds)
        return str(tmp_path / name)

    return write

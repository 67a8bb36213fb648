"""Renyi divergences of a sampled Gaussian."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp

from dploss.renyi import renyi
from dpsum.accounting.claims import TF_PRIVACY_ORDERS


@pytest.mark.parametrize("z", [0.05, 1.0, 33.0])
@pytest.mark.parametrize("q", [0.0, 1e-4, 1 / 15, 0.9999, 1.0])
def test_renyi_divergences_have_the_bits_of_dp_accounting(z, q):
    accountant = rdp.RdpAccountant(TF_PRIVACY_ORDERS)
    gaussian = dp_accounting.GaussianDpEvent(z)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(q, gaussian))
    assert np.array_equal(renyi(z, q, TF_PRIVACY_ORDERS), accountant.rdp)

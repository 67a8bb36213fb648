"""Transforms of contributions before clipping: values, sensitivity, compiled loops."""

import numpy as np
import pytest
import torch

from dpfedbench.parts.transforms.automatic import Automatic
from tests.dpfedbench.training import conftest
from tests.dpfedbench.training.conftest import lots_config, make_config, train
from tests.dpsum.helpers import NO_NOISE

CLIPPING = {"clipping": {"kind": "constant", "threshold": 1.0}}
AUTOMATIC = CLIPPING | {"transform": "automatic"}


def release(total):
    return torch.from_numpy(total.sum.release(NO_NOISE))


def begin_sum():
    """Begin a sum of automatically clipped contributions of seven coordinates."""
    return conftest.fixed_rounds(
        make_config(AUTOMATIC), np.ones((48, 7))
    ).sums.model_sum.begin_round(0)


def test_automatic_divides_a_contribution_by_its_norm_and_gamma():
    """Norms 5, 0.01 and 0 with gamma = 0.01: factors 1/5.01, 1/0.02 and 100."""
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.01], [0.0, 0.0]])
    expected = torch.tensor([[3 / 5.01, 4 / 5.01], [0.0, 0.5], [0.0, 0.0]])
    torch.testing.assert_close(Automatic().rows(rows), expected)


@pytest.mark.parametrize("scale", [1e-38, 1e-3, 1.0, 1e3, 1e30])
def test_automatic_contribution_moves_the_sum_by_at_most_the_threshold(scale):
    """Neighbours differ in one contribution of any size."""
    rows = np.random.default_rng(0).standard_normal((12, 7)).astype(np.float32)
    rows[0] *= np.float32(scale)
    sums = []
    for contributions in (rows, rows[1:]):
        total = begin_sum()
        total.add(torch.from_numpy(contributions))
        sums.append(release(total))
    moved = float((sums[0] - sums[1]).norm())
    assert moved <= 1 + 1e-6
    if scale == 1e30:
        assert moved > 0.999  # nothing of a long one is lost


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_automatic_contribution_that_is_not_finite_counts_as_zero(value):
    total = begin_sum()
    rows = torch.ones((3, 7))
    rows[1, 2] = value
    total.add(rows)
    assert total.sum.non_finite == 1
    expected = torch.full((7,), 2 / (7**0.5 + 0.01), dtype=torch.float64)
    torch.testing.assert_close(release(total), expected)


def test_automatic_sum_refuses_compiled_loops_that_pass_by_the_transform():
    with pytest.raises(RuntimeError, match="transformed before they are clipped"):
        begin_sum().add_by(lambda limit, total, norms: None, 1)


def test_automatic_transforms_records_too(silos, tmp_path):
    """A lot's sum without noise is that of g / (|g| + gamma) of single records."""
    run = lots_config({"method": "dp-fl", **AUTOMATIC})
    rounds = conftest.rounds_of(run, silos, tmp_path)
    images = rounds.clients._held.images[0][:9]
    labels = rounds.clients._held.labels[0][:9]
    theta = rounds.theta.numpy()
    total = rounds.clients.mechanism.begin_round(0)
    gradients = rounds.gradients.make()
    gradients.add_record_gradients(theta, images, labels, total)
    rows = torch.empty((9, rounds.net.dimension))
    gradients.record_gradients(theta, images, labels, rows)
    expected = (rows / (rows.norm(dim=1, keepdim=True) + 0.01)).double().sum(dim=0)
    torch.testing.assert_close(release(total), expected, rtol=1e-4, atol=1e-5)


def test_automatic_run_differs_from_a_clipped_one_and_has_its_ledger(
    federation, tmp_path
):
    """The transformation is no release and changes no sensitivity."""
    automatic = train(make_config(AUTOMATIC), federation, tmp_path / "automatic")
    clipped = train(make_config(CLIPPING), federation, tmp_path / "clipped")
    assert automatic["model.safetensors"] != clipped["model.safetensors"]
    assert automatic["ledger.jsonl"] == clipped["ledger.jsonl"]

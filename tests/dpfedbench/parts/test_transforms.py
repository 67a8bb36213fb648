"""What is done to a contribution before it is clipped: sensitivity, values, and that no
compiled loop passes it by.
"""

import numpy as np
import pytest
import torch

from dpfedbench.errors import BenchError
from dpfedbench.parts.transforms.automatic import Automatic
from tests.dpfedbench.federation.conftest import (
    LOTS,
    fixed_rounds,
    make_config,
    rounds_of,
    train,
)

AUTOMATIC = {
    "transform": "automatic",
    "clipping": {"kind": "constant", "threshold": 1.0},
}


class Silent:
    def standard_normal(self, dimension):
        return np.zeros(dimension)


def test_a_contribution_is_divided_by_its_norm_and_gamma():
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.01], [0.0, 0.0]])
    # Norms 5, 0.01 and 0 with gamma = 0.01: factors 1/5.01, 1/0.02 and 100.
    expected = torch.tensor([[3 / 5.01, 4 / 5.01], [0.0, 0.5], [0.0, 0.0]])
    torch.testing.assert_close(Automatic().rows(rows), expected)


def test_no_contribution_moves_the_sum_by_more_than_the_threshold():
    """Neighbours differ in one contribution, of any size, which the other sum does not
    have.
    """
    run, rng = make_config(AUTOMATIC), np.random.default_rng(0)
    for scale in (1e-38, 1e-3, 1.0, 1e3, 1e30):
        rows = rng.standard_normal((12, 7)).astype(np.float32)
        rows[0] *= np.float32(scale)
        sums = []
        for some in (rows, rows[1:]):
            opened = fixed_rounds(run, np.ones((48, 7))).server.open(0)
            opened.add(torch.from_numpy(some))
            sums.append(opened.sum.release(Silent()))
        moved = float(np.linalg.norm(sums[0] - sums[1]))
        assert moved <= 1 + 1e-6
        if scale == 1e30:
            assert moved > 0.999  # nor is anything lost of a long one


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_that_is_not_finite_counts_as_zero(value):
    rows = torch.ones((3, 7))
    rows[1, 2] = value
    opened = fixed_rounds(make_config(AUTOMATIC), np.ones((48, 7))).server.open(0)
    opened.add(rows)
    assert opened.sum.non_finite == 1
    torch.testing.assert_close(
        torch.from_numpy(opened.sum.release(Silent())),
        torch.full((7,), 2 / (7**0.5 + 0.01), dtype=torch.float64),
    )


def test_a_compiled_loop_may_not_pass_it_by():
    opened = fixed_rounds(make_config(AUTOMATIC), np.ones((48, 7))).server.open(0)
    with pytest.raises(RuntimeError, match="transformed before they are clipped"):
        opened.add_by(lambda limit, total, norms: None, 1)


def test_records_are_transformed_too(silos, tmp_path):
    """A lot's release without noise: the sum of g / (|g| + gamma), of gradients had one
    by one.
    """
    run = make_config({"method": "dp-fl", **AUTOMATIC}, general=LOTS)
    rounds = rounds_of(run, silos, tmp_path / "one")
    images, labels = (
        rounds.clients._held.images[0][:9],
        rounds.clients._held.labels[0][:9],
    )
    theta = rounds.theta.numpy()
    opened, gradients = rounds.clients.entry.open(0), rounds.gradients.make()
    gradients.add_each(theta, images, labels, opened)
    rows = torch.empty((9, rounds.net.dimension))
    gradients.each(theta, images, labels, rows)
    expected = (rows / (rows.norm(dim=1, keepdim=True) + 0.01)).double().sum(dim=0)
    torch.testing.assert_close(
        torch.from_numpy(opened.sum.release(Silent())), expected, rtol=1e-4, atol=1e-5
    )


def test_runs_train_and_differ_from_clipped_ones(federation, tmp_path):
    found = [
        train(make_config(change), federation, tmp_path / name)
        for name, change in (
            ("a", AUTOMATIC),
            ("b", {"clipping": AUTOMATIC["clipping"]}),
        )
    ]
    assert found[0]["model.safetensors"] != found[1]["model.safetensors"]
    # The ledger says the same mechanism: the transformation is no release and changes
    # no sensitivity.
    assert found[0]["ledger.jsonl"] == found[1]["ledger.jsonl"]


@pytest.mark.parametrize(
    "clipping",
    [
        {"kind": "constant", "threshold": 0.5},
        {"kind": "percentile-of-releases", "threshold": 1.0},
    ],
)
def test_another_threshold_is_refused(clipping):
    with pytest.raises(
        BenchError,
        match=r"^transform\.kind is automatic, .* set clipping to \{kind: constant",
    ):
        make_config({"transform": "automatic", "clipping": clipping})

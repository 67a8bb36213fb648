"""The fast passes of the LSTM against autograd, record by record, and against
Opacus.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from dpfedbench.models.choose import choose
from dpfedbench.models.net import Net
from dpfedbench.models.zoo.lstm import LstmModel
from dpkernels.lstm import FastLstm
from dpsum.private_sum import PlainSum, PrivateSum

WORDS, RECORD, WIDTH, COUNT = 23, 10, 6, 9


class Unnoised(PrivateSum):
    def _noised(self, total: np.ndarray, standard: np.ndarray) -> np.ndarray:
        return total


def net_of(tied: bool, layers: int = 2) -> Net:
    return LstmModel(width=WIDTH, tied=tied, layers=layers).net(
        input_shape=(RECORD,), outputs=WORDS
    )


def records() -> np.ndarray:
    """Few words, so that they repeat; one record of one word, one of unknown words
    alone.
    """
    drawn = np.random.default_rng(1).integers(0, 8, size=(COUNT, RECORD))
    drawn[1], drawn[2] = 3, 0
    return drawn


def weights(net: Net) -> np.ndarray:
    return net.initial(np.random.default_rng(0)).astype(np.float64)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("tied", [True, False])
def test_gradients_of_records_are_autograds(tied: bool, layers: int) -> None:
    net, x = net_of(tied, layers), records()
    fast, torchs = (
        choose(net, enabled=on, dtype=torch.float64).make() for on in (True, False)
    )
    assert isinstance(fast, FastLstm) and torchs.name == "torch"
    theta = torch.from_numpy(weights(net)).requires_grad_()
    wanted = torch.stack(
        [
            torch.autograd.grad(
                net.losses(theta, x[i : i + 1], x[i : i + 1]).sum(), theta
            )[0]
            for i in range(COUNT)
        ]
    ).numpy()
    for gradients in (fast, torchs):
        rows = np.empty((COUNT, net.dimension))
        found = gradients.each(weights(net), x, x, rows)
        np.testing.assert_allclose(rows, wanted, atol=1e-12)
        losses = net.losses(theta, x, x).detach().numpy()
        np.testing.assert_allclose(found.losses, losses, atol=1e-12)
        right, of = net.correct(theta.detach(), x, x)
        assert (
            found.right.tolist() == right.tolist() and found.of.tolist() == of.tolist()
        )
    assert not wanted[2].any()  # words that are not known have no gradient
    # Records' losses and nothing else: the mean over a task.
    mean = np.empty((1, net.dimension))
    fast.at(weights(net)[None], x[None], x[None], mean)
    np.testing.assert_allclose(mean[0], wanted.mean(axis=0), atol=1e-12)


def test_a_word_that_is_not_known_is_never_told() -> None:
    """Also where the model's most likely word is number 0, by which unknown words
    go.
    """
    net, x = net_of(False), np.zeros((4, RECORD), np.int64)
    theta = weights(net)
    theta[-WORDS * WIDTH : -(WORDS - 1) * WIDTH] *= (
        50  # the first word's row of the softmax
    )
    assert (
        net.logits(torch.from_numpy(theta), torch.from_numpy(x)).argmax(dim=2) == 0
    ).any()
    for enabled in (True, False):
        found = (
            choose(net, enabled=enabled, dtype=torch.float64)
            .make()
            .evaluate(theta, x, x)
        )
        assert found.right.tolist() == [0] * 4 and found.of.tolist() == [RECORD] * 4


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-6)]
)
def test_clipped_sums_and_norms_are_those_of_the_records(
    tied: bool, dtype: torch.dtype, close: float
) -> None:
    net, x = net_of(tied), records()
    theta = weights(net)
    rows = np.empty((COUNT, net.dimension))
    choose(net, enabled=False, dtype=torch.float64).make().each(theta, x, x, rows)
    norms = np.linalg.norm(rows, axis=1)
    limit = float(np.median(norms))
    wanted = (rows * np.minimum(1, limit / np.maximum(norms, 1e-300))[:, None]).sum(
        axis=0
    )
    fast = choose(net, dtype=dtype).make()
    total = Unnoised(dimension=net.dimension, threshold=limit, noise_multiplier=1.0)
    number = np.float64 if dtype == torch.float64 else np.float32
    _, found = fast.add_each(theta.astype(number), x, x, total)
    np.testing.assert_allclose(found, norms, rtol=10 * close, atol=1e-12)
    np.testing.assert_allclose(
        total.release(np.random.default_rng(0)), wanted, atol=close
    )
    plain = PlainSum(dimension=net.dimension)
    fast.add_each(theta.astype(number), x, x, plain)
    np.testing.assert_allclose(
        plain.release(np.random.default_rng(0)), rows.sum(axis=0), atol=5 * close
    )


def test_the_tied_cross_term_is_a_part_of_the_norm() -> None:
    net, x = net_of(True), records()
    fast = FastLstm(net, dtype=torch.float64)
    parts = {name: torch.from_numpy(weights(net))[None] for name in ("theta",)}
    back, _ = fast._backward(
        net.tensors(parts["theta"][0]), torch.from_numpy(x), torch.from_numpy(x)
    )
    with_it = fast._norms(back)
    fast._lstm.tied = False
    without = fast._norms(back)
    fast._lstm.tied = True
    assert (abs(with_it - without)[[0, 1, 3]] > 1e-5).all()


def test_no_row_that_is_added_is_longer_than_the_limit() -> None:
    net, x = net_of(True), records()
    theta = (40 * weights(net)).astype(np.float32)
    for i in range(COUNT):
        total = Unnoised(dimension=net.dimension, threshold=1e-3, noise_multiplier=1.0)
        choose(net).make().add_each(theta, x[i : i + 1], x[i : i + 1], total)
        assert np.linalg.norm(total.release(np.random.default_rng(0))) <= 1e-3 * (
            1 + 1e-7
        )


def test_what_is_not_finite_counts_as_zero() -> None:
    net, x = net_of(True), records()
    theta = weights(net)
    theta[net.sizes[0] - WIDTH - 1] = np.nan  # of the last word's embedding alone
    x[4, 0] = WORDS - 1
    total = Unnoised(dimension=net.dimension, threshold=0.5, noise_multiplier=1.0)
    choose(net, dtype=torch.float64).make().add_each(theta, x, x, total)
    # The softmax reads every word: nothing is finite, and nothing is added.
    assert total.non_finite == COUNT
    assert not total.release(np.random.default_rng(0)).any()


def test_chunks_change_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = net_of(True), records()
    sums = []
    for together in (1, 4, 100):
        monkeypatch.setattr(FastLstm, "_together", lambda self, n=together: n)
        total = Unnoised(dimension=net.dimension, threshold=0.5, noise_multiplier=1.0)
        choose(net, dtype=torch.float64).make().add_each(weights(net), x, x, total)
        sums.append(total.release(np.random.default_rng(0)))
    np.testing.assert_allclose(sums[0], sums[1], atol=1e-13)
    np.testing.assert_allclose(sums[0], sums[2], atol=1e-13)


class _Untied(nn.Module):
    """The same network of Opacus' layers."""

    def __init__(self) -> None:
        super().__init__()
        from opacus.layers import DPLSTM

        self.embedding = nn.Embedding(WORDS + 1, WIDTH)
        self.lstm = DPLSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.softmax = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.softmax(
            self.lstm(self.embedding(functional.pad(x[:, :-1], (1, 0), value=WORDS)))[0]
        )
        return out


@pytest.mark.filterwarnings("ignore")
def test_untied_gradients_are_those_of_opacus() -> None:
    from opacus import GradSampleModule

    net, x = net_of(False), records()
    theta = weights(net)
    own = net.tensors(torch.from_numpy(theta))
    module = _Untied().double()
    with torch.no_grad():
        module.embedding.weight.copy_(own["embedding"])
        module.softmax.weight.copy_(own["softmax"])
        for name, value in module.lstm.named_parameters():
            layer = "0" if "l0" in name else "1"
            if "bias_hh" in name or "hh.bias" in name:
                value.zero_()  # Opacus has two biases, whose sum is ours
            elif "bias" in name:
                value.copy_(own[f"bias{layer}"])
            else:
                value.copy_(own[("input" if "ih" in name else "hidden") + layer])
    sampled = GradSampleModule(module, loss_reduction="sum")
    y = torch.from_numpy(x)
    logits = sampled(y)
    each = functional.cross_entropy(
        logits.flatten(0, 1), y.flatten(), reduction="none"
    ).view(y.shape)
    ((each * (y > 0)).sum(1) / RECORD).sum().backward()
    rows = np.empty((COUNT, net.dimension))
    choose(net, dtype=torch.float64).make().each(theta, x, x, rows)
    for i in range(COUNT):
        ours = net.tensors(torch.from_numpy(rows[i]))
        np.testing.assert_allclose(
            ours["embedding"], module.embedding.weight.grad_sample[i], atol=1e-10
        )
        np.testing.assert_allclose(
            ours["softmax"], module.softmax.weight.grad_sample[i], atol=1e-10
        )
        for name, value in module.lstm.named_parameters():
            layer = "0" if "l0" in name else "1"
            part = "bias" if "bias" in name else "input" if "ih" in name else "hidden"
            np.testing.assert_allclose(
                ours[part + layer], value.grad_sample[i], atol=1e-10
            )

"""The LSTM against torch's own, and its fast passes against autograd."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from dpfedbench.models.choose import choose
from dpfedbench.models.zoo.lstm import LstmModel
from dpkernels.lstm import FastLstm
from dpsum.private_sum import PlainSum
from tests.dpkernels.autograd import differentiate
from tests.dpsum.helpers import NO_NOISE, make_sum

WORDS = 23
LENGTH = 10
WIDTH = 6
COUNT = 9

tied_or_not = pytest.mark.parametrize("tied", [True, False])


def make_net(tied, layers=2):
    model = LstmModel(width=WIDTH, tied=tied, layers=layers)
    return model.net(input_shape=(LENGTH,), outputs=WORDS)


def make_records():
    """Return texts of few words, so that words repeat.

    One text has one word, and one has unknown words alone.
    """
    texts = np.random.default_rng(1).integers(0, 8, size=(COUNT, LENGTH))
    texts[1] = 3
    texts[2] = 0
    return texts


def initial_weights(net):
    return net.initial(np.random.default_rng(0)).astype(np.float64)


def add_records(net, theta, texts, total):
    """Add gradients; return the sum before noise, and the norms."""
    gradients = choose(net, dtype=getattr(torch, theta.dtype.name)).make()
    _, norms = gradients.add_record_gradients(theta, texts, texts, total)
    return total.release(NO_NOISE), norms


@pytest.mark.parametrize("layers", [1, 2])
@tied_or_not
def test_lstm_gradients_equal_autograd(tied, layers):
    """Unknown words have no gradient."""
    net = make_net(tied, layers)
    texts = make_records()
    weights = initial_weights(net)
    losses, expected = differentiate(net, weights, texts, texts)
    right, of = net.correct(torch.from_numpy(weights), texts, texts)
    for enabled in (True, False):
        gradients = choose(net, enabled=enabled, dtype=torch.float64).make()
        assert isinstance(gradients, FastLstm) == enabled
        rows = np.empty((COUNT, net.dimension))
        record_losses = gradients.record_gradients(weights, texts, texts, rows)
        evaluation = gradients.evaluate(weights, texts, texts)
        np.testing.assert_allclose(rows, expected, atol=1e-12)
        np.testing.assert_allclose(record_losses, losses, atol=1e-12)
        np.testing.assert_allclose(evaluation.losses, losses, atol=1e-12)
        assert evaluation.right.tolist() == right.tolist()
        assert evaluation.of.tolist() == of.tolist()
    assert not expected[2].any()
    task = np.empty((1, net.dimension))
    fast = choose(net, dtype=torch.float64).make()
    fast.task_gradients(weights[None], texts[None], texts[None], task)
    np.testing.assert_allclose(task[0], expected.mean(axis=0), atol=1e-12)


@pytest.mark.parametrize("enabled", [True, False])
def test_lstm_counts_an_unknown_word_as_wrong(enabled):
    """It is wrong too if the model's most likely word is number 0, that of unknown
    words: the first word's row of the softmax is enlarged.
    """
    net = make_net(False)
    texts = np.zeros((4, LENGTH), np.int64)
    theta = initial_weights(net)
    theta[-WORDS * WIDTH : -(WORDS - 1) * WIDTH] *= 50
    logits = net.logits(torch.from_numpy(theta), torch.from_numpy(texts))
    assert (logits.argmax(dim=2) == 0).any()
    gradients = choose(net, enabled=enabled, dtype=torch.float64).make()
    evaluation = gradients.evaluate(theta, texts, texts)
    assert evaluation.right.tolist() == [0] * 4
    assert evaluation.of.tolist() == [LENGTH] * 4


@tied_or_not
@pytest.mark.parametrize(("dtype", "tolerance"), [("f8", 1e-12), ("f4", 1e-6)])
def test_lstm_adds_clipped_gradients(tied, dtype, tolerance):
    net = make_net(tied)
    texts = make_records()
    theta = initial_weights(net)
    _, rows = differentiate(net, theta, texts, texts)
    expected_norms = np.linalg.norm(rows, axis=1)
    limit = float(np.median(expected_norms))
    factors = np.minimum(1, limit / np.maximum(expected_norms, 1e-300))
    theta = theta.astype(dtype)
    total, norms = add_records(net, theta, texts, make_sum(net.dimension, limit))
    np.testing.assert_allclose(norms, expected_norms, rtol=10 * tolerance, atol=1e-12)
    expected = (rows * factors[:, None]).sum(axis=0)
    np.testing.assert_allclose(total, expected, atol=tolerance)
    total, _ = add_records(net, theta, texts, PlainSum(dimension=net.dimension))
    np.testing.assert_allclose(total, rows.sum(axis=0), atol=5 * tolerance)


def test_lstm_moves_the_sum_by_the_threshold_at_most():
    net = make_net(True)
    texts = make_records()
    theta = (40 * initial_weights(net)).astype(np.float32)
    for text in texts[:, None]:
        total, _ = add_records(net, theta, text, make_sum(net.dimension, 1e-3))
        assert np.linalg.norm(total) <= 1e-3 * (1 + 1e-7)


def test_lstm_counts_gradients_that_are_not_finite_as_zero():
    """Only the embedding of the last word is NaN, but the softmax reads every word."""
    net = make_net(True)
    texts = make_records()
    theta = initial_weights(net)
    theta[net.sizes[0] - WIDTH - 1] = np.nan
    texts[4, 0] = WORDS - 1
    private_sum = make_sum(net.dimension, 0.5)
    total, _ = add_records(net, theta, texts, private_sum)
    assert private_sum.non_finite == COUNT
    assert not total.any()


def test_lstm_chunks_change_nothing_but_rounding(monkeypatch):
    net = make_net(True)
    texts = make_records()
    sums = []
    for size in (1, 4, 100):
        monkeypatch.setattr(FastLstm, "_together", lambda self, size=size: size)
        theta = initial_weights(net)
        sums.append(add_records(net, theta, texts, make_sum(net.dimension, 0.5))[0])
    np.testing.assert_allclose(sums[1:], [sums[0]] * 2, atol=1e-13)


def test_lstm_losses_equal_those_of_torchs_layers():
    """torch has two biases, whose sum is the network's bias."""
    net = make_net(False)
    texts = torch.from_numpy(make_records())
    theta = torch.from_numpy(initial_weights(net))
    tensors = net.tensors(theta)
    lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True).double()
    state = {}
    for layer in (0, 1):
        state[f"weight_ih_l{layer}"] = tensors[f"input{layer}"]
        state[f"weight_hh_l{layer}"] = tensors[f"hidden{layer}"]
        state[f"bias_ih_l{layer}"] = tensors[f"bias{layer}"]
        state[f"bias_hh_l{layer}"] = torch.zeros(4 * WIDTH)
    lstm.load_state_dict(state)
    previous_words = functional.pad(texts[:, :-1], (1, 0), value=WORDS)
    outputs, _ = lstm(tensors["embedding"][previous_words])
    logits = (outputs @ tensors["softmax"].T).mT
    losses = functional.cross_entropy(logits, texts, ignore_index=0, reduction="none")
    torch.testing.assert_close(
        net.losses(theta, texts, texts), losses.mean(1), rtol=1e-12, atol=0.0
    )

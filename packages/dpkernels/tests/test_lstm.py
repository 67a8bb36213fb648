"""The passes of the LSTM against torch's own LSTM and autograd."""

import numpy as np
import pytest
from reference_networks import (
    add_clipped,
    differentiate,
    draw_parameters,
    leaf_of,
    logits,
)

from dpkernels import LstmShape, find_passes
from dpkernels.lstm import FastLstm

WORDS = 23
LENGTH = 10
WIDTH = 6
COUNT = 9

tied_or_not = pytest.mark.parametrize("tied", [True, False])


def make_network(tied, layers=2):
    return LstmShape((LENGTH,), WORDS, WIDTH, layers, tied)


def make_records():
    """Return texts of few words, so that words repeat.

    One text has one word, and one has unknown words alone.
    """
    texts = np.random.default_rng(1).integers(0, 8, size=(COUNT, LENGTH))
    texts[1] = 3
    texts[2] = 0
    return texts


def add_records(network, theta, texts, limit, records_at_once=None):
    """Return the clipped sum and the norms."""
    passes = FastLstm(network, theta.dtype)
    if records_at_once is not None:
        passes.records_at_once = records_at_once
    total = np.zeros(network.dimension)
    norms = np.empty(len(texts))
    passes.add_record_gradients(theta, texts, texts, limit, total, norms)
    return total, norms


@pytest.mark.parametrize("layers", [1, 2])
@tied_or_not
def test_lstm_gradients_equal_autograd(tied, layers):
    """Unknown words have no gradient."""
    network = make_network(tied, layers)
    assert find_passes(network, np.float64) is FastLstm
    texts = make_records()
    theta = draw_parameters(network)
    losses, expected = differentiate(network, theta, texts, texts)
    passes = FastLstm(network, np.float64)
    rows = np.empty((COUNT, network.dimension))
    found = passes.record_gradients(theta, texts, texts, rows)
    np.testing.assert_allclose(rows, expected, atol=1e-12)
    np.testing.assert_allclose(found, losses, atol=1e-12)
    assert not expected[2].any()
    measures = passes.evaluate(theta, texts, texts)
    likeliest = logits(network, leaf_of(theta), texts).argmax(dim=2).numpy()
    right = ((likeliest == texts) & (texts > 0)).sum(axis=1)
    np.testing.assert_allclose(measures.losses, losses, atol=1e-12)
    assert measures.right.tolist() == right.tolist()
    assert measures.answers.tolist() == [LENGTH] * COUNT
    task = np.empty((1, network.dimension))
    tasks = passes.task_gradients(theta[None], texts[None], texts[None], task)
    np.testing.assert_allclose(task[0], expected.mean(axis=0), atol=1e-12)
    assert tasks.losses == pytest.approx([losses.mean()])


def test_lstm_computes_no_products():
    network = make_network(False)
    texts = make_records()[None]
    theta = draw_parameters(network)[None]
    passes = FastLstm(network, np.float64)
    out = np.zeros_like(theta)
    assert passes.task_gradients(theta, texts, texts, out, products=True) is None
    assert not out.any()


def test_lstm_counts_an_unknown_word_as_wrong():
    """It is wrong too if the model's most likely word is number 0, that of unknown
    words: the first word's row of the softmax is enlarged.
    """
    network = make_network(False)
    texts = np.zeros((4, LENGTH), np.int64)
    theta = draw_parameters(network)
    theta[-WORDS * WIDTH : -(WORDS - 1) * WIDTH] *= 50
    assert (logits(network, leaf_of(theta), texts).argmax(dim=2) == 0).any()
    measures = FastLstm(network, np.float64).evaluate(theta, texts, texts)
    assert measures.right.tolist() == [0] * 4


@tied_or_not
@pytest.mark.parametrize(("dtype", "tolerance"), [("f8", 1e-12), ("f4", 1e-6)])
def test_lstm_adds_clipped_gradients(tied, dtype, tolerance):
    network = make_network(tied)
    texts = make_records()
    theta = 0.3 * draw_parameters(network)
    _, rows = differentiate(network, theta, texts, texts)
    limit = float(np.median(np.linalg.norm(rows, axis=1)))
    for threshold in (limit, np.inf):
        total, norms = add_records(network, theta.astype(dtype), texts, threshold)
        expected, expected_norms = add_clipped(rows, threshold)
        np.testing.assert_allclose(
            norms, expected_norms, rtol=10 * tolerance, atol=1e-12
        )
        np.testing.assert_allclose(total, expected, atol=5 * tolerance)


def test_lstm_moves_the_sum_by_the_threshold_at_most():
    network = make_network(True)
    theta = (10 * draw_parameters(network)).astype(np.float32)
    for text in make_records()[:, None]:
        total, _ = add_records(network, theta, text, 1e-3)
        assert np.linalg.norm(total) <= 1e-3 * (1 + 1e-7)


def test_lstm_counts_gradients_that_are_not_finite_as_zero():
    """Only the embedding of the last word is NaN, but the softmax reads every word."""
    network = make_network(True)
    texts = make_records()
    theta = draw_parameters(network)
    theta[WORDS * WIDTH - 1] = np.nan
    texts[4, 0] = WORDS - 1
    total, norms = add_records(network, theta, texts, 0.5)
    assert not np.isfinite(norms).any()
    assert not total.any()


def test_lstm_chunks_change_nothing_but_rounding():
    network = make_network(True)
    theta = draw_parameters(network)
    texts = make_records()
    sums = [add_records(network, theta, texts, 0.5, size)[0] for size in (1, 4, 100)]
    np.testing.assert_allclose(sums[1:], [sums[0]] * 2, atol=1e-13)

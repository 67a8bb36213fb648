"""The test on unseen texts by hand: its tasks, the records that refine, the records
that are scored.
"""

import dataclasses
import json

import numpy as np
import pytest
import torch

from dpfedbench.data.text_tasks import KnownText
from dpfedbench.evaluation import next_word
from dpfedbench.models.choose import choose
from dpfedbench.models.members import save_members
from tests.dpfedbench.data.text import tiny_texts
from tests.dpfedbench.training.test_text import run_of

SHOTS = 6
TESTED = 2
RATE = 0.5
BATCH = 4
RUN = run_of("reptile", validation={"every": 1, "tasks": 1, "public": True})


@pytest.fixture
def known(tmp_path):
    """Prepare 12 tasks of 8 records of 5 words, one for validation and two for the
    test.
    """
    return KnownText(tiny_texts(tmp_path), RUN.task.text)


@pytest.fixture
def net(known):
    return RUN.tested_net(known.image_shape)


@pytest.fixture
def theta(net):
    return net.initial(np.random.default_rng(0))


def test_text_scores_are_of_the_records_after_those_of_the_steps(known, net, theta):
    after, before = next_word.text_scores(
        choose(net), theta, known, RUN, split="test", tasks=2
    )
    initial = torch.from_numpy(theta).double()
    for index, task in enumerate(known.dataset.splits["test"][:2]):
        records = known.tasks(np.array([task]))[0]
        support = records[:SHOTS]
        tested = records[SHOTS : SHOTS + TESTED]
        tuned = initial
        for batch in (support[:BATCH], support[BATCH:], support[:BATCH]):
            tuned = tuned.detach().requires_grad_()
            loss = net.losses(tuned, batch, batch).mean()
            tuned = tuned - RATE * torch.autograd.grad(loss, tuned)[0]
        for scores, weights in ((before, initial), (after, tuned.detach())):
            loss = float(net.losses(weights, tested, tested).mean())
            records = net.inputs(tested, weights)
            _, right, words = net.apply("measures", weights, records, records)
            accuracy = float(right.sum() / words.sum())
            assert scores.losses[index] == pytest.approx(loss, rel=1e-5)
            assert scores.accuracies[index] == pytest.approx(accuracy)
    assert (after.losses < before.losses).all()


def test_text_measures_read_their_own_split_alone(
    known, net, theta, tmp_path, monkeypatch
):
    dataset = known.dataset
    model = tmp_path / "model.safetensors"
    metrics = tmp_path / "metrics.json"
    save_members(model, net, [theta])

    def measures(split=None):
        """Return what validation and test measure, with random words in a split."""
        tokens = dataset.tokens.copy()
        tasks = dataset.splits.get(split, [])
        rng = np.random.default_rng(3)
        tokens[tasks] = rng.integers(len(dataset.words), size=tokens[tasks].shape)
        noisy = dataclasses.replace(dataset, tokens=tokens)
        validation = next_word.TextMeasures(
            run=RUN,
            known=KnownText(noisy, RUN.task.text),
            choice=choose(net),
            threads=1,
        )
        monkeypatch.setattr(next_word, "load_texts", lambda folder: noisy)
        next_word.text_test(RUN, data_dir=tmp_path, model_path=model, out_path=metrics)
        return validation.validate(theta), json.loads(metrics.read_text())

    validated, tested = measures()
    assert measures("validation")[1] == tested
    assert measures("validation")[0] != validated
    assert measures("test")[0] == validated
    assert measures("test")[1] != tested

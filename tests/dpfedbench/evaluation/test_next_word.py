"""The test on unseen texts by hand: which tasks, which of their records refine, and
which are told.
"""

import dataclasses
import json

import numpy as np
import pytest
import torch

from dpfedbench.data.text_tasks import KnownText
from dpfedbench.data.tokens import load_texts
from dpfedbench.evaluation import next_word
from dpfedbench.models.choose import choose
from dpfedbench.models.members import save_members
from tests.dpfedbench.data.text import tiny_texts
from tests.dpfedbench.federation.test_text import run_of

SHOTS, TESTED, STEPS, RATE, BATCH = 6, 2, 3, 0.5, 4  # test_text's run


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A prepared folder: 12 tasks of 8 records of 5 words, of which one is for
    validation and two are for the test.
    """
    folder = tmp_path_factory.mktemp("texts")
    tiny_texts(folder)
    return folder


@pytest.fixture(scope="module")
def run():
    return run_of("reptile", validation={"every": 1, "tasks": 1, "public": True})


def theta_of(net):
    return net.initial(np.random.default_rng(0))


def without_others(dataset, split):
    """The data set with other words in all tasks but a split's."""
    tokens = np.random.default_rng(3).integers(
        len(dataset.words), size=dataset.tokens.shape, dtype=np.int32
    )
    tokens[dataset.splits[split]] = dataset.tokens[dataset.splits[split]]
    return dataclasses.replace(dataset, tokens=tokens)


def test_it_is_descent_on_the_first_records_and_a_test_of_the_next(texts, run):
    known = KnownText(load_texts(texts), run.task.text)
    net, pool = run.tested_net(known.image_shape), known.dataset.splits["test"]
    theta = theta_of(net)
    after, before = next_word.text_scores(
        choose(net), theta, known, run, split="test", tasks=2
    )
    for index in range(2):
        records = known.tasks(pool[index : index + 1])[0]
        weights, others = (
            torch.from_numpy(theta).double(),
            records[SHOTS : SHOTS + TESTED],
        )
        for start in (0, BATCH, 0)[:STEPS]:
            some = records[start : min(start + BATCH, SHOTS)]
            weights = weights.detach().requires_grad_()
            weights = (
                weights
                - RATE
                * torch.autograd.grad(net.losses(weights, some, some).mean(), weights)[
                    0
                ]
            )
        for scores, point in (
            (before, torch.from_numpy(theta).double()),
            (after, weights.detach()),
        ):
            right, of = net.correct(point, others, others)
            assert scores.losses[index] == pytest.approx(
                float(net.losses(point, others, others).mean()), rel=1e-5
            )
            assert scores.accuracies[index] == pytest.approx(
                float(right.sum() / of.sum())
            )
    assert (after.losses < before.losses).all()


@pytest.mark.parametrize("split", ["validation", "test"])
def test_each_measure_reads_its_own_split_alone(
    texts, run, split, tmp_path, monkeypatch
):
    """Other words in all other tasks change nothing, and in its own they do."""
    dataset = load_texts(texts)
    net = run.tested_net(KnownText(dataset, run.task.text).image_shape)
    save_members(tmp_path / "model.safetensors", net, [theta_of(net)])

    def measured(dataset):
        if split == "validation":
            known = KnownText(dataset, run.task.text)
            return next_word.TextMeasures(run, known, choose(net), threads=1).validate(
                theta_of(net)
            )
        monkeypatch.setattr(next_word, "load_texts", lambda folder: dataset)
        files = {
            "model_path": tmp_path / "model.safetensors",
            "out_path": tmp_path / "metrics.json",
        }
        next_word.text_test(run, data_dir=texts, **files)
        return json.loads((tmp_path / "metrics.json").read_text())

    others = {"validation": "test", "test": "validation"}
    assert measured(without_others(dataset, split)) == measured(dataset)
    assert measured(without_others(dataset, others[split])) != measured(dataset)

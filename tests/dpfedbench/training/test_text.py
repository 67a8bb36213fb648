"""Language models in the loop: task-global and local privacy on tiny texts."""

import math

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from dpfedbench.breaches import unaccounted_releases
from dpfedbench.data.text_tasks import KnownText, make_text_partition
from dpfedbench.data.tokens import load_texts
from dpfedbench.experiments.cells import named
from dpfedbench.models.members import load_members
from dpfedbench.papers import read_run
from dpfedbench.training.accounts import account_of
from dpfedbench.training.engine import train
from dpsum.randomness import stream
from tests.dpfedbench.data.text import tiny_texts

from .conftest import history_in, ledger_in, rounds_of

RUN = {
    "seed": 0,
    "dataset": "tiny",
    "task": {
        "ways": 1,
        "shots": 6,
        "text": {"words": 8, "record": 5, "refine_batch": 4},
    },
    "clients": {
        "count": 8,
        "examples_per_class": 8,
        "support_per_class": 6,
        "query_per_class": 2,
        "partition": "disjoint",
    },
    "model": {"kind": "lstm", "width": 4},
    "participation": {"kind": "one-pass", "cohort": 2, "rounds": 4},
    "client_update": {"inner_steps": 1, "inner_rate": 1.0, "optimizer": "sgd"},
    "server": {"kind": "step", "rate": 1.0, "optimizer": "sgd"},
    "evaluation": {"tasks": 2, "query_per_class": 2, "steps": 3, "rate": 0.5},
}
WITHIN = {
    "threshold": 0.5,
    "multiplier": 0.51,
    "epsilon": None,
    "delta": 1e-3,
    "profile": "claimed",
}
OWN = {
    "dp-reptile": {"within_task": WITHIN},
    "local-reptile": {"own_update": WITHIN},
    "reptile": {},
    "random": {},
}
OTHER_LETTERS = "hgfedxyzuv"
"""Letters of another data set, the most frequent first. Five are words of `tiny`."""


def run_of(method, **changes):
    values = RUN | {"method": method} | OWN[method] | changes
    if method == "random":
        for key in ("participation", "client_update", "server"):
            del values[key]
    return read_run(values)


def make_data(folder, letters="abcdefghij"):
    """Save tiny texts: (data folder, clients folder)."""
    data = tiny_texts(folder / "data", letters=letters)
    partition = make_text_partition(data, clients=8, kind="disjoint", seed=0)
    partition.save(folder / "clients")
    return folder / "data", folder / "clients"


def trained(folder, run, *, letters="abcdefghij", **options):
    """Train a run on tiny texts, and return the run's folder."""
    data, clients = make_data(folder, letters)
    out = folder / "run"
    out.mkdir()
    folders = {"data_dir": data, "clients_dir": clients, "run_dir": out}
    train(run, device="cpu", **folders, **options)
    return out


def account_after(folder, run):
    """Train a run, and return its account."""
    out = trained(folder, run)
    return account_of(run, ledger_in(out), clients_dir=folder / "clients")


def epsilons(profiles, digits=4):
    return {name: round(entry.epsilon_high, digits) for name, entry in profiles.items()}


def test_task_global_privacy_is_one_gaussian_for_each_record(tmp_path):
    """Reference: TensorFlow Privacy for one Gaussian of z = 0.51, and of z / 2."""
    run = run_of("dp-reptile", within_task=WITHIN | {"groups": [2, 3]})
    result = account_after(tmp_path, run)
    expected = {"claimed": 9.2209, "proven": 7.3866, "replace_one": 19.0747}
    assert epsilons(result.profiles) == expected
    assert (result.unit, result.profiles["proven"].observer) == ("record", "server")
    assert epsilons(result.groups, 2) == {"2": 19.07, "3": 34.68}


def test_local_privacy_protects_all_records_of_a_client(tmp_path):
    profiles = account_after(tmp_path, run_of("local-reptile")).profiles
    line, *_ = ledger_in(tmp_path / "run")
    assert (line.unit, line.observer) == ("client", "server")
    assert line.sensitivity == 2 * line.threshold
    assert line.noise_std == 0.51 * line.sensitivity
    assert {entry.adjacency for entry in profiles.values()} == {"replace-one"}
    expected = {"claimed": 9.2209, "proven": 7.3866, "replace_one": 7.3866}
    assert epsilons(profiles) == expected


@pytest.mark.parametrize("method", ["dp-reptile", "local-reptile"])
def test_vocabulary_of_clients_words_leaves_nothing_finite(tmp_path, method):
    text = RUN["task"]["text"] | {"vocabulary": "private"}
    run = run_of(method, task=RUN["task"] | {"text": text})
    profiles = account_after(tmp_path, run).profiles
    assert profiles["proven"].epsilon_high == math.inf
    assert "vocabulary" in profiles["proven"].explanation
    assert {entry.status for entry in profiles.values()} == {"void"}


@pytest.mark.parametrize("method", ["dp-reptile", "local-reptile", "reptile"])
def test_language_model_is_the_same_with_threads_and_tests_and_close_to_torch(
    tmp_path, method
):
    plain = run_of(method)
    watching = plain.evaluation.replace(every=2, while_training=1)
    watched = plain.replace(evaluation=watching)
    weights = []
    for name, run, options in (
        ("plain", plain, {"threads": 1}),
        ("watched", watched, {"threads": 2}),
        ("torch", plain, {"threads": 1, "kernels": False}),
    ):
        (tmp_path / name).mkdir()
        out = trained(tmp_path / name, run, **options)
        weights.append(
            load_members(out / "model.safetensors", run.trained_net((5,), 9))[0]
        )
    assert (weights[0] == weights[1]).all()
    np.testing.assert_allclose(weights[0], weights[2], atol=1e-5)
    history = history_in(tmp_path / "watched" / "run")
    assert history.dropna(subset=["test_accuracy"])["round"].tolist() == [2, 4]


@pytest.mark.parametrize("tied", [True, False])
def test_initial_language_model_goes_over_word_by_word(tied, tmp_path):
    """Row 0 is that of unknown words, and the last row that of a record's beginning."""
    model = RUN["model"] | {"tied": tied}
    task = RUN["task"] | {"text": RUN["task"]["text"] | {"words": 6}}
    first = run_of("reptile", dataset="other", model=model, task=task)
    path = trained(tmp_path / "other", first, letters=OTHER_LETTERS)
    before = load_file(path / "model.safetensors")
    started = {"kind": "run", "run": named(first), "public": True}
    run = run_of("dp-reptile", model=model, initial=started)
    assert unaccounted_releases(run) == ()
    files = {"model.safetensors": path / "model.safetensors"}
    rounds = rounds_of(run, make_data(tmp_path), tmp_path / "run", references=files)
    net = rounds.net
    texts = load_texts(tmp_path / "other" / "data")
    first_words = KnownText(texts, first.task.text).words
    assert (len(net.words), len(first_words)) == (8, 6)
    assert 2 <= len(set(net.words) & set(first_words)) < 6
    initial = net.initial(stream(0, "initial-weights"))
    expected = net.tensors(torch.from_numpy(initial))
    for name, tensor in expected.items():
        old = torch.from_numpy(before[f"member1/{name}"])
        if name not in ("embedding", "softmax"):
            tensor[:] = old
            continue
        tensor[0] = old[0]
        for row, word in enumerate(net.words, start=1):
            if word in first_words:
                tensor[row] = old[1 + first_words.index(word)]
        if name == "embedding":
            tensor[-1] = old[-1]
    for name, tensor in net.tensors(rounds.theta).items():
        assert torch.equal(tensor, expected[name])

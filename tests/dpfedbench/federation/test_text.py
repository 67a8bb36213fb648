"""Language models through the loop: task-global and local privacy on tiny texts, their
accounts, and what leaks.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from dpfedbench.data.text_tasks import KnownText, make_text_partition
from dpfedbench.data.tokens import load_texts
from dpfedbench.errors import BenchError
from dpfedbench.evaluation import evaluate
from dpfedbench.experiments.expand import named
from dpfedbench.federation.accounts import account_of
from dpfedbench.federation.engine import train
from dpfedbench.federation.rounds import Rounds
from dpfedbench.method import Method
from dpfedbench.models.members import load_by_word, load_members, save_members
from dpfedbench.papers import read_run
from dpfedbench.results.curves import read_history
from dpsum.accounting.account import Account
from dpsum.ledger import Ledger, read_ledger
from dpsum.randomness import stream
from tests.dpfedbench.data.text import tiny_texts

RUN: dict[str, Any] = {
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
    "client_update": {
        "kind": "reptile",
        "inner_steps": 1,
        "inner_rate": 1.0,
        "optimizer": "sgd",
    },
    "server": {"kind": "step", "rate": 1.0, "optimizer": "sgd"},
    "evaluation": {"tasks": 2, "query_per_class": 2, "steps": 3, "rate": 0.5},
}
WITHIN = {
    "threshold": 0.5,
    "multiplier": 0.51,
    "epsilon": None,
    "delta": 1e-3,
    "profile": "as_claimed",
}
OWN = {
    "dp-reptile": {"within_task": WITHIN},
    "local-reptile": {"own_update": WITHIN},
    "reptile": {},
    "random": {},
}


def run_of(method: str, **changes: Any) -> Method:
    values = RUN | {"method": method} | OWN[method] | changes
    if method == "random":
        values = {
            key: value
            for key, value in values.items()
            if key not in ("participation", "client_update", "server")
        }
    return read_run(values)


def trained(
    folder: Path, run: Method, *, kernels: bool = True, threads: int = 1
) -> Path:
    data = tiny_texts(folder / "data")
    make_text_partition(data, clients=8, kind="disjoint", seed=0).save(
        folder / "clients"
    )
    out = folder / "run"
    out.mkdir()
    train(
        run,
        data_dir=folder / "data",
        clients_dir=folder / "clients",
        run_dir=out,
        kernels=kernels,
        threads=threads,
        device="cpu",
    )
    return out


def accounted(folder: Path, run: Method) -> Account:
    return account_of(
        run,
        read_ledger(folder / "run" / "ledger.jsonl"),
        clients_dir=folder / "clients",
    )


def test_task_global_privacy_is_one_gaussian_for_each_record(tmp_path: Path) -> None:
    run = run_of("dp-reptile", within_task=WITHIN | {"groups": [2, 3]})
    trained(tmp_path, run)
    found = accounted(tmp_path, run)
    ends = {
        name: round(entry.epsilon_high, 4) for name, entry in found.profiles.items()
    }
    # The figures: TensorFlow Privacy's accountant, one Gaussian of z = 0.51 at
    # delta = 1e-3, and of z/2.
    assert ends == {"as_claimed": 9.2209, "holds": 7.3866, "replace_one": 19.0747}
    assert found.unit == "record" and found.profiles["holds"].observer == "server"
    assert {
        size: round(entry.epsilon_high, 2) for size, entry in found.groups.items()
    } == {"2": 19.07, "3": 34.68}
    assert "at delta 20.2, which says nothing" in found.groups["2"].explanation


def test_local_privacy_is_of_all_that_a_client_holds(tmp_path: Path) -> None:
    run = run_of("local-reptile")
    trained(tmp_path, run)
    (line, *_), found = (
        read_ledger(tmp_path / "run" / "ledger.jsonl"),
        accounted(tmp_path, run),
    )
    assert (line.unit, line.observer, line.adjacency) == (
        "client",
        "server",
        "replace-one",
    )
    assert (
        line.sensitivity == 2 * line.threshold
        and line.noise_std == 0.51 * line.sensitivity
    )
    ends = {
        name: (round(entry.epsilon_high, 4), entry.adjacency)
        for name, entry in found.profiles.items()
    }
    assert ends == {
        name: (value, "replace-one")
        for name, value in {
            "as_claimed": 9.2209,
            "holds": 7.3866,
            "replace_one": 7.3866,
        }.items()
    }


@pytest.mark.parametrize("method", ["dp-reptile", "local-reptile"])
def test_a_vocabulary_of_clients_words_leaves_nothing_finite(
    tmp_path: Path, method: str
) -> None:
    task = {
        "ways": 1,
        "shots": 6,
        "text": {**RUN["task"]["text"], "vocabulary": "private"},
    }
    run = run_of(method, task=task)
    assert any(
        "the vocabulary is taken from the clients' words" in notice
        for notice in run.notices
    )
    trained(tmp_path, run)
    found = accounted(tmp_path, run)
    assert found.profiles["holds"].epsilon_high == float("inf")
    assert {entry.status for entry in found.profiles.values()} == {"void"}
    assert "vocabulary" in found.profiles["holds"].explanation
    assert not any("vocabulary" in notice for notice in run_of(method).notices)


def test_what_the_holder_says_of_its_data_is_caught_whoever_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpfedbench.data import text_tasks

    made = text_tasks.KnownText.__init__

    def tainted(self: Any, *arguments: Any) -> None:
        made(self, *arguments)
        self.unaccounted = ("something else was computed from private words",)

    monkeypatch.setattr(text_tasks.KnownText, "__init__", tainted)
    run = run_of("dp-reptile")
    trained(tmp_path, run)
    found = accounted(tmp_path, run)
    assert found.profiles["holds"].epsilon_high == float("inf")
    assert "something else was computed" in found.profiles["holds"].explanation


@pytest.mark.parametrize("method", ["dp-reptile", "local-reptile", "reptile"])
def test_neither_threads_nor_the_kernel_matter(tmp_path: Path, method: str) -> None:
    run, found = run_of(method), []
    for name, options in {
        "one": {},
        "two": {"threads": 2},
        "torch": {"kernels": False},
    }.items():
        (tmp_path / name).mkdir()
        out = trained(tmp_path / name, run, **options)  # type: ignore[arg-type]
        found.append(load_members(out / "model.safetensors", run.net((5,), 9))[0])
    assert (found[0] == found[1]).all()
    np.testing.assert_allclose(found[0], found[2], atol=1e-5)


def test_the_test_is_on_unseen_tasks_with_and_without_refining(tmp_path: Path) -> None:
    run = run_of("reptile")
    out = trained(tmp_path, run)
    evaluate(
        run,
        data_dir=tmp_path / "data",
        model_path=out / "model.safetensors",
        out_path=out / "metrics.json",
    )
    found = json.loads((out / "metrics.json").read_text())
    assert found["tasks"] == 2 and len(found["per_task"]) == 2
    assert 0 <= found["accuracy_before_refining"] <= 100 and found[
        "accuracy"
    ] == np.mean(found["per_task"])


def test_tests_while_training_are_of_the_first_test_tasks_and_change_nothing(
    tmp_path: Path,
) -> None:
    plain = run_of("dp-reptile")
    watched = plain.replace(
        evaluation=plain.evaluation.replace(every=2, while_training=1)
    )
    out = {}
    for name, run in (("plain", plain), ("watched", watched)):
        (tmp_path / name).mkdir()
        out[name] = trained(tmp_path / name, run)
        evaluate(
            run,
            data_dir=tmp_path / name / "data",
            model_path=out[name] / "model.safetensors",
            out_path=out[name] / "metrics.json",
        )
    for file in ("model.safetensors", "ledger.jsonl", "metrics.json"):
        assert (out["plain"] / file).read_bytes() == (
            out["watched"] / file
        ).read_bytes()
    history = read_history(out["watched"] / "history.csv")
    measured = history.dropna(subset=["test_accuracy"])
    assert measured["round"].tolist() == [2, 4]
    final = json.loads((out["watched"] / "metrics.json").read_text())
    assert measured["test_accuracy"].iloc[-1] == pytest.approx(final["per_task"][0])
    assert measured["test_accuracy_before_refining"].between(0, 100).all()
    assert read_history(out["plain"] / "history.csv")["test_accuracy"].isna().all()


OTHER = "hgfedxyzuv"
"""The letters of another data set, the most frequent first; five of them are words of
`tiny` as well.
"""


@pytest.mark.parametrize("tied", [True, False])
def test_a_start_from_other_texts_goes_over_word_by_word(
    tied: bool, tmp_path: Path
) -> None:
    model = RUN["model"] | {"tied": tied}
    words = {"task": RUN["task"] | {"text": RUN["task"]["text"] | {"words": 6}}}
    first = run_of("reptile", dataset="other", model=model, **words)
    data = tiny_texts(tmp_path / "other" / "data", letters=OTHER)
    make_text_partition(data, clients=8, kind="disjoint", seed=0).save(
        tmp_path / "other" / "clients"
    )
    folders = {
        "data_dir": tmp_path / "other" / "data",
        "clients_dir": tmp_path / "other" / "clients",
    }
    train(first, run_dir=tmp_path / "other", device="cpu", **folders)
    before = load_file(tmp_path / "other" / "model.safetensors")

    started = {"kind": "run", "run": named(first), "public": True}
    run = run_of("dp-reptile", model=model, initial=started)
    data = tiny_texts(tmp_path / "data")
    make_text_partition(data, clients=8, kind="disjoint", seed=0).save(
        tmp_path / "clients"
    )
    rounds = Rounds.of(
        run,
        data_dir=tmp_path / "data",
        clients_dir=tmp_path / "clients",
        ledger=Ledger(tmp_path / "ledger"),
        references={"model.safetensors": tmp_path / "other" / "model.safetensors"},
    )
    known, others = (
        rounds.net.words,
        KnownText(load_texts(folders["data_dir"]), first.task.text).words,
    )
    assert (
        len(known) == 8 and len(others) == 6 and 2 <= len(set(known) & set(others)) < 6
    )
    random = rounds.net.tensors(
        torch.from_numpy(rounds.net.initial(stream(0, "initial-weights")))
    )
    for name, tensor in rounds.net.tensors(rounds.theta).items():
        old = before[f"member1/{name}"]
        if name not in ("embedding", "softmax"):
            np.testing.assert_array_equal(tensor, old)
            continue
        np.testing.assert_array_equal(tensor[0], old[0])  # words that are not known
        for row, word in enumerate(known, start=1):
            same = old[1 + others.index(word)] if word in others else random[name][row]
            np.testing.assert_array_equal(tensor[row], same, err_msg=word)
        if name == "embedding":
            np.testing.assert_array_equal(
                tensor[-1], old[-1]
            )  # the beginning of a record
    assert run.unaccounted == ()


def test_a_start_from_other_texts_needs_their_words_and_width(tmp_path: Path) -> None:
    first, run = run_of("reptile", dataset="other"), run_of("reptile")
    net = run.net((5,), 1)
    net.words = tuple("abcdefgh")
    weights = net.initial(np.random.default_rng(0))
    save_members(tmp_path / "model.safetensors", run.net((5,), 1), [weights])
    with pytest.raises(BenchError, match="does not say its model's words: delete it"):
        load_by_word(tmp_path / "model.safetensors", net, weights)
    wide = run_of("reptile", model={"kind": "lstm", "width": 8}).net((5,), 1)
    wide.words = net.words
    save_members(
        tmp_path / "model.safetensors", wide, [wide.initial(np.random.default_rng(0))]
    )
    with pytest.raises(BenchError, match="do not fit this network"):
        load_by_word(tmp_path / "model.safetensors", net, weights)
    with pytest.raises(BenchError, match="its model has other sizes"):
        run_of(
            "reptile",
            model={"kind": "lstm", "width": 8},
            initial={"kind": "run", "run": named(first)},
        )

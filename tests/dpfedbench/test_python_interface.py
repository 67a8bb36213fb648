"""The Python interface for finished runs, and the examples of docs/python.md."""

import dataclasses
import re
import shutil

import numpy as np
import pytest
import torch

import dpfedbench
from dpfedbench.data.images import load_dataset
from dpfedbench.data.partition import gather, sample_tasks
from dpfedbench.data.records import load_records
from dpfedbench.data.text_tasks import KnownText
from dpfedbench.data.tokens import load_texts
from dpfedbench.evaluation import evaluate
from dpfedbench.evaluation.found_cells import write_cells
from dpfedbench.evaluation.held_out import held_out
from dpfedbench.files import read_json, write_text
from dpfedbench.training.accounts import account_run
from dploss.gaussian import gaussian_epsilon
from tests.dpfedbench.data.conftest import refusal
from tests.dpfedbench.training import test_search
from tests.dpfedbench.training.conftest import (
    LOTS,
    accounted,
    make_config,
    train,
    train_model,
)
from tests.dpfedbench.training.test_text import run_of, trained
from tests.pages import code_blocks
from workflow_jobs.manifests import seal

LETTERS = {"validation": {"every": 4, "tasks": 4, "ensemble": 2}}


def place(results, run, data):
    """Write a run's configuration and its data set into a results folder.

    Returns the run's folder.
    """
    folder = results / "runs" / run.folder
    write_text(folder / "config.yaml", run.to_yaml())
    shutil.copytree(data, results / "data" / run.dataset, dirs_exist_ok=True)
    return folder


def seal_all(results):
    """Write the manifest of each folder."""
    for folder in {path.parent for path in results.rglob("*") if path.is_file()}:
        seal("rule", sorted(path for path in folder.iterdir() if path.is_file()))


@pytest.fixture(scope="module")
def results(federation, silos, tmp_path_factory):
    """Make a results folder of three runs: with privacy, without, and of a model that
    is not adapted.
    """
    results = tmp_path_factory.mktemp("work") / "results"
    for run, (data, clients) in (
        (make_config(LETTERS), federation),
        (make_config(LETTERS, {"method": "maml"}), federation),
        (make_config({"method": "adap-dp-fl"}, general=LOTS), silos),
    ):
        folder = place(results, run, data)
        partition = results / "clients" / run.clients_folder
        shutil.copytree(clients, partition, dirs_exist_ok=True)
        train(run, (data, clients), folder)
        accounted(run, folder, clients if run.client_data == "tasks" else None)
    seal_all(results)
    return results


def opened(results, method):
    """Open the run of a method."""
    (folder,) = (results / "runs").glob(f"{method}/*/*/*/seed0")
    return dpfedbench.open_run(folder)


def test_examples_of_the_page_run(results, monkeypatch, capsys):
    monkeypatch.chdir(results.parent)
    monkeypatch.setenv("MPLBACKEND", "agg")
    blocks = code_blocks("python.md", "python")
    assert len(blocks) >= 6
    names = {}
    for block in blocks:
        exec(compile(block.text, "docs/python.md", "exec"), names)
    output = capsys.readouterr().out
    assert re.search(r"^\d+\.\d %$", output, flags=re.MULTILINE)
    assert "tuning has no epsilon for this run: no search declared" in output
    assert (results.parent / "history.png").stat().st_size > 5000
    assert names["logits"].shape == (15, 3)


@pytest.mark.parametrize("method", ["dp-agr", "maml"])
def test_adapt_gives_the_accuracies_of_the_meta_test(results, federation, method):
    """Without a step the model stays as it is."""
    run = opened(results, method)
    test = run.settings.evaluation
    dataset = load_dataset(federation[0])
    sizes = {"query_per_class": test.query_per_class}
    settings = {"ways": 3, "shots": 1, "seed": 0, "purpose": "meta-test"}
    tasks = sample_tasks(dataset, "test", count=test.tasks, **sizes, **settings)
    ids = np.arange(test.tasks)
    batch = gather(dataset, tasks, ids, support_per_class=1, **sizes)
    models = map(run.adapt, batch.support_x, batch.support_y)
    queries = zip(models, batch.query_x, batch.query_y, strict=True)
    accuracies = [model.accuracy(x, y) for model, x, y in queries]
    assert accuracies == pytest.approx(run.metrics["per_task"], abs=1e-6)
    assert len(set(accuracies)) > 1
    untouched = run.adapt(batch.support_x[0], batch.support_y[0], steps=0)
    for weights, member in zip(untouched.members, run.trained.members, strict=True):
        assert (weights == member[: weights.size]).all()


def test_adapt_is_refused_for_a_model_that_is_used_as_trained(results, silos):
    run = opened(results, "adap-dp-fl")
    images, labels = held_out(run.settings, load_records(silos[0])).test
    accuracy = run.trained.accuracy(images, labels)
    assert accuracy == pytest.approx(run.metrics["accuracy"])
    assert run.trained.predict(images).sum(axis=1) == pytest.approx(1)
    message = refusal(run.adapt, images, labels)
    assert "adap-dp-fl is used without adaptation" in message


def test_adapt_gives_the_accuracies_of_the_meta_test_on_text(tmp_path):
    """A step is gradient descent, which torch differentiates here."""
    settings = run_of("reptile")
    out = trained(tmp_path, settings)
    evaluate(
        settings,
        data_dir=tmp_path / "data",
        model_path=out / "model.safetensors",
        out_path=out / "metrics.json",
    )
    folder = place(tmp_path / "results", settings, tmp_path / "data")
    shutil.copytree(out, folder, dirs_exist_ok=True)
    seal_all(tmp_path / "results")
    run = dpfedbench.open_run(folder)
    test = settings.evaluation
    known = KnownText(load_texts(tmp_path / "data"), settings.task.text)
    tasks = known.tasks(known.dataset.splits["test"][: test.tasks])
    shots = settings.task.shots
    end = shots + test.query_per_class
    accuracies = [run.adapt(task[:shots]).accuracy(task[shots:end]) for task in tasks]
    assert accuracies == pytest.approx(run.metrics["per_task"], abs=1e-6)

    records = tasks[0][: settings.task.text.refine_batch]
    module = run.model
    words = torch.from_numpy(records)
    module.losses(words, words).mean().backward()
    adapted = run.adapt(records, steps=1, rate=0.5).modules[0]
    for before, after in zip(module.parameters(), adapted.parameters(), strict=True):
        step = (before - 0.5 * before.grad).detach().numpy()
        assert after.detach().numpy() == pytest.approx(step, abs=1e-6)


def test_model_is_a_copy_that_computes_the_predictions(results):
    run = opened(results, "maml")
    rng = np.random.default_rng(0)
    images = rng.random((6, *run.trained.net.input_shape), np.float32)
    adapted = run.adapt(images, np.arange(6) % 3)
    inputs = torch.from_numpy(images).movedim(-1, 1)
    with torch.no_grad():
        logits = [module(inputs) for module in adapted.modules]
        mean = torch.stack(logits).softmax(-1).mean(0)
        assert adapted.predict(images) == pytest.approx(mean.numpy(), abs=1e-4)
        next(run.model.parameters()).zero_()
        assert float(next(run.model.parameters()).abs().sum()) > 0


def test_open_run_of_searched_cells_reads_the_search(silos, tmp_path):
    """The account covers the search and the training, at any delta.

    Without the search's ledger there is no account.
    """
    results = tmp_path / "results"
    search = test_search.search_config()
    run = test_search.cells_config(search=search)
    search_folder = place(results, search, silos[0])
    run_folder = place(results, run, silos[0])
    genotype = search_folder / "genotype.json"
    ledger = search_folder / "ledger.jsonl"
    train_model(search, silos, search_folder)
    write_cells(
        search,
        text_path=search_folder / "cells.txt",
        genotype_path=genotype,
        data_dir=silos[0],
        model_path=search_folder / "model.safetensors",
    )
    references = {"genotype.json": genotype, "ledger.jsonl": ledger}
    train_model(run, silos, run_folder, references=references)
    account_run(run, run_folder, run_folder / "privacy.json", references=references)
    seal_all(results)
    trained_run = dpfedbench.open_run(run_folder)
    assert trained_run.model.genotype.to_json() == read_json(genotype)
    account = trained_run.account
    assert trained_run.account_at(account.delta) == account
    ledger.unlink()
    assert f"{ledger} is missing" in refusal(trained_run.account_at, 1e-4)


def test_epsilon_at_another_delta_follows_from_the_ledger(results):
    """One pass is one Gaussian of z = 1 for each client. Clients share images."""
    run = opened(results, "dp-agr")
    assert run.epsilon() == run.account.profiles["proven"]
    assert run.account_at(run.account.delta) == run.account
    epsilon = run.epsilon(delta=1e-5).epsilon_high
    assert epsilon == pytest.approx(gaussian_epsilon(1.0, 1e-5))
    table = run.accounts(1e-5).set_index("profile")
    assert table.loc["proven", "epsilon_high"] == epsilon
    assert np.isnan(table.loc["tuning", "epsilon_high"])
    assert "no search" in table.loc["tuning", "explanation"]
    assert table.loc["image_level", "epsilon_high"] > epsilon
    assert "no release claims privacy" in refusal(opened(results, "maml").epsilon)


def test_public_function_refuses_bad_input_in_one_line(results):
    run = opened(results, "dp-agr")
    images = np.zeros((3, 16, 16, 1), np.uint8)
    classes = np.arange(3)
    refusal(dpfedbench.open_run, "no such folder")
    refusal(run.account_at, float("nan"))
    refusal(run.epsilon, "hold")
    refusal(run.accounts, 0.0)
    refusal(run.adapt, images + 255.0, classes)
    refusal(run.trained.accuracy, images, classes + 1)


def test_cohorts_of_one_pass_have_every_client_once(results):
    run = opened(results, "dp-agr")
    rounds = run.training["rounds_run"]
    cohorts = [run.cohort(number) for number in range(1, rounds + 1)]
    assert [len(cohort) for cohort in cohorts] == run.history["clients"].to_list()
    assert sorted(np.concatenate(cohorts)) == list(range(run.settings.clients.count))
    for number in (0, rounds + 1):
        assert f"no round {number}: the run has rounds" in refusal(run.cohort, number)


def test_history_and_releases_have_the_same_rounds(results):
    """The threshold moves in each round, so that a shift by one would be seen."""
    run = opened(results, "dp-agr")
    names = ["round", "threshold", "noise_multiplier"]
    merged = run.history[names].merge(run.releases, on="round", suffixes=("", "_made"))
    assert len(merged) == len(run.history) == len(run.ledger)
    assert run.history["threshold"].nunique() > 1
    assert merged["threshold"].tolist() == merged["threshold_made"].tolist()
    assert (
        merged["noise_multiplier"].tolist() == merged["noise_multiplier_made"].tolist()
    )
    assert (run.releases["step"] == 1).all()
    clients = [len(run.cohort(number)) for number in run.releases["round"]]
    assert clients == run.history["clients"].tolist()


def test_releases_of_local_steps_have_the_round_of_the_history(results):
    """Two rounds of three local steps are lines 0 to 5 of the ledger."""
    run = opened(results, "dp-agr")
    line = run.ledger[0]
    lines = [dataclasses.replace(line, round=number) for number in range(6)]
    finished = dataclasses.replace(run)
    finished.__dict__["ledger"] = lines
    finished.__dict__["training"] = {"rounds_run": 2}
    assert finished.releases["round"].tolist() == [1, 1, 1, 2, 2, 2]
    assert finished.releases["step"].tolist() == [1, 2, 3, 1, 2, 3]

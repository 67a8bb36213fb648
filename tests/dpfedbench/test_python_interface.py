"""The Python interface for finished runs, and the examples of docs/python.md."""

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
from dpfedbench.errors import BenchError
from dpfedbench.evaluation import evaluate
from dpfedbench.evaluation.found_cells import write_cells
from dpfedbench.evaluation.held_out import held_out
from dpfedbench.files import read_json, write_text
from dpfedbench.training import engine
from dpfedbench.training.accounts import account_run
from dploss.gaussian import gaussian_epsilon
from tests.dpfedbench.training import test_search
from tests.dpfedbench.training.conftest import LOTS, accounted, make_config, train
from tests.dpfedbench.training.test_text import run_of, trained
from tests.pages import code_blocks
from workflow_jobs.manifests import seal

LETTERS = {"validation": {"every": 4, "tasks": 4, "ensemble": 2}}


def seal_files(folder):
    """Write a manifest of all files of a folder."""
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
        folder = results / "runs" / run.folder
        copies = {data: f"data/{run.dataset}", clients: f"clients/{run.clients_folder}"}
        for source, target in copies.items():
            shutil.copytree(source, results / target, dirs_exist_ok=True)
        write_text(folder / "config.yaml", run.to_yaml())
        train(run, (data, clients), folder)
        accounted(run, folder, clients if run.client_data == "tasks" else None)
    for folder in {path.parent for path in results.rglob("*") if path.is_file()}:
        seal_files(folder)
    return results


@pytest.fixture
def opened(results):
    """Return a function that opens the run of a method."""

    def open_run_of(method):
        (folder,) = (results / "runs").glob(f"{method}/*/*/*/seed0")
        return dpfedbench.open_run(folder)

    return open_run_of


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
def test_adapt_gives_the_accuracies_of_the_meta_test(opened, federation, method):
    """Without a step the model stays as it is."""
    run = opened(method)
    settings = run.settings
    dataset = load_dataset(federation[0])
    test = settings.evaluation
    shots = settings.task.shots
    sizes = {"query_per_class": test.query_per_class}
    tasks = sample_tasks(
        dataset,
        "test",
        count=test.tasks,
        ways=settings.task.ways,
        shots=shots,
        seed=settings.seed,
        purpose="meta-test",
        **sizes,
    )
    accuracies = []
    for index in range(test.tasks):
        only = np.array([index])
        task = gather(dataset, tasks, only, support_per_class=shots, **sizes)
        adapted = run.adapt(task.support_x[0], task.support_y[0])
        accuracies.append(adapted.accuracy(task.query_x[0], task.query_y[0]))
    assert accuracies == pytest.approx(run.metrics["per_task"], abs=1e-6)
    assert len(set(accuracies)) > 1
    untouched = run.adapt(task.support_x[0], task.support_y[0], steps=0)
    for weights, member in zip(untouched.members, run.trained.members, strict=True):
        assert (weights == member[: weights.size]).all()


def test_adapt_is_refused_for_a_model_that_is_used_as_trained(opened, silos):
    run = opened("adap-dp-fl")
    images, labels = held_out(run.settings, load_records(silos[0])).test
    accuracy = run.trained.accuracy(images, labels)
    assert accuracy == pytest.approx(run.metrics["accuracy"])
    assert run.trained.predict(images).sum(axis=1) == pytest.approx(1)
    with pytest.raises(BenchError, match="adap-dp-fl is used without adaptation"):
        run.adapt(images, labels)


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
    data = tmp_path / "results" / "data" / settings.dataset
    folder = tmp_path / "results" / "runs" / settings.folder
    shutil.copytree(tmp_path / "data", data)
    shutil.copytree(out, folder)
    write_text(folder / "config.yaml", settings.to_yaml())
    seal_files(folder)
    seal_files(data)
    run = dpfedbench.open_run(folder)
    test = settings.evaluation
    known = KnownText(load_texts(data), settings.task.text)
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


def test_model_is_a_copy_that_computes_the_predictions(opened):
    run = opened("maml")
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
    data, clients = silos
    search = test_search.search_config()
    run = test_search.cells_config(search=search)
    search_folder = results / "runs" / search.folder
    run_folder = results / "runs" / run.folder
    genotype = search_folder / "genotype.json"
    ledger = search_folder / "ledger.jsonl"
    shutil.copytree(data, results / "data" / run.dataset)
    for config, folder, references in (
        (search, search_folder, {}),
        (run, run_folder, {"genotype.json": genotype, "ledger.jsonl": ledger}),
    ):
        write_text(folder / "config.yaml", config.to_yaml())
        engine.train(
            config,
            data_dir=data,
            clients_dir=clients,
            run_dir=folder,
            references=references,
        )
        if config is search:
            write_cells(
                search,
                text_path=folder / "cells.txt",
                genotype_path=genotype,
                data_dir=data,
                model_path=folder / "model.safetensors",
            )
        account_run(config, folder, folder / "privacy.json", references=references)
    for folder in (search_folder, run_folder, results / "data" / run.dataset):
        seal_files(folder)
    finished = dpfedbench.open_run(run_folder)
    assert finished.model.genotype.to_json() == read_json(genotype)
    assert finished.account_at(finished.account.delta) == finished.account
    ledger.unlink()
    missing = r"dp-fnas/.*ledger\.jsonl is missing: run the workflow again"
    with pytest.raises(BenchError, match=missing):
        finished.account_at(1e-4)


def test_epsilon_at_another_delta_follows_from_the_ledger(opened):
    """One pass is one Gaussian of z = 1 for each client. Clients share images."""
    run = opened("dp-agr")
    assert run.epsilon() == run.account.profiles["proven"]
    assert run.account_at(run.account.delta) == run.account
    epsilon = run.epsilon(delta=1e-5).epsilon_high
    assert epsilon == pytest.approx(gaussian_epsilon(1.0, 1e-5))
    table = run.accounts(1e-5).set_index("profile")
    assert table.loc["proven", "epsilon_high"] == epsilon
    assert np.isnan(table.loc["tuning", "epsilon_high"])
    assert "no search" in table.loc["tuning", "explanation"]
    assert table.loc["image_level", "epsilon_high"] > epsilon
    with pytest.raises(BenchError, match="no release claims privacy"):
        opened("maml").epsilon()


IMAGES = np.zeros((3, 16, 16, 1), np.uint8)
CLASSES = np.arange(3)
BAD_CALLS = {
    "open_run, no folder": lambda run: dpfedbench.open_run("no such folder"),
    "account_at, nan": lambda run: run.account_at(float("nan")),
    "epsilon, no profile": lambda run: run.epsilon("hold"),
    "accounts, zero": lambda run: run.accounts(0.0),
    "adapt, above one": lambda run: run.adapt(IMAGES + 255.0, CLASSES),
    "accuracy, a high class": lambda run: run.trained.accuracy(IMAGES, CLASSES + 1),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_public_function_refuses_bad_input_in_one_line(opened, name):
    with pytest.raises(BenchError) as caught:
        BAD_CALLS[name](opened("dp-agr"))
    assert "\n" not in str(caught.value)


def test_cohorts_of_one_pass_have_every_client_once(opened):
    run = opened("dp-agr")
    rounds = run.training["rounds_run"]
    cohorts = [run.cohort(number) for number in range(1, rounds + 1)]
    assert [len(cohort) for cohort in cohorts] == run.history["clients"].to_list()
    assert sorted(np.concatenate(cohorts)) == list(range(run.settings.clients.count))
    for number in (0, rounds + 1):
        with pytest.raises(BenchError, match=f"no round {number}: the run has rounds"):
            run.cohort(number)

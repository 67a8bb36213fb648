"""The Python interface for finished runs, and the examples of docs/python.md."""

import re
import shutil
import subprocess
import sys

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


def test_load_runs_has_the_values_of_each_run(results, opened):
    runs = dpfedbench.load_runs(results).set_index("method")
    columns = {"epsilon_claimed": "claimed", "epsilon_proven_high": "proven"}
    for method in ("dp-agr", "adap-dp-fl"):
        profiles = opened(method).account.profiles
        for column, profile in columns.items():
            assert runs.loc[method, column] == profiles[profile].epsilon_high
    assert list(runs.index) == ["adap-dp-fl", "dp-agr", "maml"]
    assert runs["unit"].fillna("").tolist() == ["record", "client", ""]
    assert runs["epsilon_proven_high"].notna().tolist() == [True, True, False]
    assert runs["rounds_run"].tolist() == [12, 12, 12]


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


@pytest.fixture(scope="module")
def of_text(tmp_path_factory):
    """Train a language model, and open its finished run."""
    from tests.dpfedbench.training.test_text import run_of, trained

    folder = tmp_path_factory.mktemp("text")
    run = run_of("reptile")
    out = trained(folder, run)
    evaluate(
        run,
        data_dir=folder / "data",
        model_path=out / "model.safetensors",
        out_path=out / "metrics.json",
    )
    run_folder = folder / "results" / "runs" / run.folder
    data = folder / "results" / "data" / run.dataset
    shutil.copytree(folder / "data", data)
    shutil.copytree(out, run_folder)
    write_text(run_folder / "config.yaml", run.to_yaml())
    seal_files(run_folder)
    seal_files(data)
    return dpfedbench.open_run(run_folder)


def test_adapt_gives_the_accuracies_of_the_meta_test_on_text(of_text):
    """A step is gradient descent, which torch differentiates here."""
    settings = of_text.settings
    test = settings.evaluation
    texts = load_texts(of_text.folder.parents[5] / "data" / settings.dataset)
    known = KnownText(texts, settings.task.text)
    tasks = known.tasks(known.dataset.splits["test"][: test.tasks])
    shots = settings.task.shots
    end = shots + test.query_per_class
    accuracies = [
        of_text.adapt(task[:shots]).accuracy(task[shots:end]) for task in tasks
    ]
    assert accuracies == pytest.approx(of_text.metrics["per_task"], abs=1e-6)

    records = tasks[0][: settings.task.text.refine_batch]
    module = of_text.model
    words = torch.from_numpy(records)
    module.losses(words, words).mean().backward()
    adapted = of_text.adapt(records, steps=1, rate=0.5).modules[0]
    for before, after in zip(module.parameters(), adapted.parameters(), strict=True):
        step = (before - 0.5 * before.grad).detach().numpy()
        assert after.detach().numpy() == pytest.approx(step, abs=1e-6)


def test_predict_of_a_language_model_reads_earlier_words_alone(of_text):
    """A prediction is a distribution over words at each position of a text.

    It is correct where the most probable word is the text's, and not the unknown word.
    """
    records = np.array([[1, 2, 3, 4, 5], [8, 0, 1, 1, 2]])
    predicted = of_text.trained.predict(records)
    with torch.no_grad():
        expected = of_text.model(torch.from_numpy(records)).softmax(-1).numpy()
    assert predicted == pytest.approx(expected, abs=1e-6)
    changed = np.array([[1, 2, 3, 7, 7], [8, 0, 1, 6, 6]])
    differs = of_text.trained.predict(changed) != predicted
    assert not differs[:, :4].any()
    assert differs[:, 4].any()
    is_correct = (predicted.argmax(axis=2) == records) & (records > 0)
    accuracy = of_text.trained.accuracy(records)
    assert accuracy == pytest.approx(100 * is_correct.mean())


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


def make_run(run, folder, silos, references):
    """Train, test and account a run on records."""
    data, clients = silos
    write_text(folder / "config.yaml", run.to_yaml())
    engine.train(
        run,
        data_dir=data,
        clients_dir=clients,
        run_dir=folder,
        references=references,
    )
    evaluate(
        run,
        data_dir=data,
        model_path=folder / "model.safetensors",
        out_path=folder / "metrics.json",
        references=references,
    )
    account_run(run, folder, folder / "privacy.json", references=references)


def test_open_run_of_searched_cells_reads_the_search(silos, tmp_path):
    """The account covers the search and the training, at any delta.

    Without the search's ledger there is no account.
    """
    results = tmp_path / "results"
    search = test_search.search_config()
    run = test_search.cells_config(search=search)
    search_folder = results / "runs" / search.folder
    run_folder = results / "runs" / run.folder
    genotype = search_folder / "genotype.json"
    ledger = search_folder / "ledger.jsonl"
    shutil.copytree(silos[0], results / "data" / run.dataset)
    make_run(search, search_folder, silos, {})
    write_cells(
        search,
        text_path=search_folder / "cells.txt",
        genotype_path=genotype,
        data_dir=silos[0],
        model_path=search_folder / "model.safetensors",
    )
    references = {"genotype.json": genotype, "ledger.jsonl": ledger}
    make_run(run, run_folder, silos, references)
    for folder in (search_folder, run_folder, results / "data" / run.dataset):
        seal_files(folder)
    finished = dpfedbench.open_run(run_folder)
    accuracy = finished.trained.accuracy(*held_out(run, load_records(silos[0])).test)
    assert accuracy == pytest.approx(finished.metrics["accuracy"])
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


def test_open_run_names_a_missing_file(results, tmp_path):
    shutil.copytree(results, tmp_path / "results")
    (folder,) = (tmp_path / "results" / "runs").glob("maml/*/*/*/seed0")
    shutil.rmtree(tmp_path / "results" / "data")
    run = dpfedbench.open_run(folder)
    message = r"summary\.json is missing: it has the shape of the model's inputs"
    with pytest.raises(BenchError, match=message):
        run.adapt(np.zeros((3, 16, 16, 1), np.uint8), np.arange(3))
    (folder / "training.json").unlink()
    with pytest.raises(BenchError, match=r"training\.json is missing"):
        dpfedbench.open_run(folder)


def test_package_imports_no_heavy_library():
    heavy = "{'torch', 'numba', 'pandas'}"
    code = f"import sys, dpfedbench; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


IMAGES = np.zeros((3, 16, 16, 1), np.uint8)
CLASSES = np.arange(3)
BAD_CALLS = {
    "open_run, no folder": lambda run: dpfedbench.open_run("no such folder"),
    "account_at, one": lambda run: run.account_at(1.0),
    "account_at, nan": lambda run: run.account_at(float("nan")),
    "epsilon, no profile": lambda run: run.epsilon("hold"),
    "epsilon, text": lambda run: run.epsilon(delta="1e-5"),
    "accounts, zero": lambda run: run.accounts(0.0),
    "adapt, no classes": lambda run: run.adapt(IMAGES),
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

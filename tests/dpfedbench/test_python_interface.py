"""The Python interface: the examples of docs/python.md as they stand, and what they say
about finished runs.
"""

import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
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
from dpfedbench.evaluation.genotype_picture import write_cells
from dpfedbench.evaluation.held_out import held_out
from dpfedbench.federation import engine
from dpfedbench.federation.accounts import account_run
from dpfedbench.files import read_json, write_text
from dpfedbench.notebook import FinishedRun
from dpsum.accounting.gaussian import gaussian_epsilon
from tests.dpfedbench.federation import test_search
from tests.dpfedbench.federation.conftest import (
    LOTS,
    accounted,
    federation,  # noqa: F401
    make_config,
    silos,  # noqa: F401
    train,
)
from workflow_jobs.manifests import seal

DOCS = Path(__file__).resolve().parents[2] / "docs" / "python.md"
LETTERS = {"validation": {"every": 4, "tasks": 4, "ensemble": 2}}


@pytest.fixture(scope="module")
def results(
    federation: Any,  # noqa: F811
    silos: Any,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A results folder of three runs: with privacy, without, and of a model that is
    used as it is.
    """
    results = tmp_path_factory.mktemp("work") / "results"
    for run, places in (
        (make_config(LETTERS), federation),
        (make_config(LETTERS, {"method": "maml"}), federation),
        (make_config({"method": "adap-dp-fl"}, general=LOTS), silos),
    ):
        place = results / "runs" / run.folder
        for source, target in zip(
            places,
            ("data/" + run.dataset, "clients/" + run.clients_folder),
            strict=True,
        ):
            shutil.copytree(source, results / target, dirs_exist_ok=True)
        write_text(place / "config.yaml", run.to_yaml())
        train(run, places, place)
        accounted(run, place, places[1] if run.client_data == "tasks" else None)
    for place in {path.parent for path in results.rglob("*") if path.is_file()}:
        seal("rule", sorted(path for path in place.iterdir() if path.is_file()))
    return results


@pytest.fixture
def opened(results: Path) -> Any:
    """Open the run of a method."""

    def of(method: str) -> Any:
        (folder,) = (results / "runs").glob(f"{method}/*/*/*/seed0")
        return dpfedbench.open_run(folder)

    return of


def test_the_examples_run_as_they_stand(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(results.parent)
    monkeypatch.setenv("MPLBACKEND", "agg")
    blocks = re.findall(
        r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    assert len(blocks) >= 6
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), names)
    said = capsys.readouterr().out
    assert "dp-agr" in said
    assert re.search(r"^\d+\.\d %$", said, flags=re.MULTILINE)
    assert "tuning has no epsilon for this run: no search declared" in said
    assert (results.parent / "history.png").stat().st_size > 5000
    assert names["logits"].shape == (15, 3)


def test_the_frame_of_runs_has_what_each_run_says(results: Path, opened: Any) -> None:
    runs = dpfedbench.load_runs(results).set_index("method")
    columns = {"epsilon_claimed": "claimed", "epsilon_proven_high": "proven"}
    for method in ("dp-agr", "adap-dp-fl"):
        profiles = opened(method).account.profiles
        for column, profile in columns.items():
            assert runs.loc[method, column] == profiles[profile].epsilon_high
    assert list(runs.index) == ["adap-dp-fl", "dp-agr", "maml"]
    assert runs["unit"].fillna("").tolist() == ["record", "client", ""]
    assert runs["epsilon_proven_high"].notna().tolist() == [True, True, False]
    assert runs["device"].isin(["cpu", "cuda"]).all()
    assert runs["rounds_run"].tolist() == [12, 12, 12]


@pytest.mark.parametrize("method", ["dp-agr", "maml"])
def test_adaptation_is_the_meta_tests(
    opened: Any,
    federation: Any,  # noqa: F811
    method: str,
) -> None:
    """Nothing is changed on the way, and no step is no adaptation."""
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
    for found, member in zip(untouched.members, run.trained.members, strict=True):
        assert (found == member[: found.size]).all()


def test_a_model_that_is_used_as_it_is(opened: Any, silos: Any) -> None:  # noqa: F811
    run = opened("adap-dp-fl")
    images, labels = held_out(run.settings, load_records(silos[0])).test
    assert run.trained.accuracy(images, labels) == pytest.approx(
        run.metrics["accuracy"]
    )
    assert run.trained.predict(images).sum(axis=1) == pytest.approx(1)
    with pytest.raises(
        BenchError, match=r"adap-dp-fl is used as it is: take run\.trained"
    ):
        run.adapt(images, labels)


@pytest.fixture(scope="module")
def of_text(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A finished run of a language model, opened."""
    from tests.dpfedbench.federation.test_text import run_of, trained

    folder = tmp_path_factory.mktemp("text")
    run = run_of("reptile")
    out = trained(folder, run)
    place = folder / "results" / "runs" / run.folder
    evaluate(
        run,
        data_dir=folder / "data",
        model_path=out / "model.safetensors",
        out_path=out / "metrics.json",
    )
    shutil.copytree(folder / "data", folder / "results" / "data" / run.dataset)
    shutil.copytree(out, place)
    write_text(place / "config.yaml", run.to_yaml())
    for sealed in (place, folder / "results" / "data" / run.dataset):
        seal("rule", sorted(path for path in sealed.iterdir() if path.is_file()))
    return dpfedbench.open_run(place)


def test_a_model_of_text_is_adapted_as_in_the_test(of_text: Any) -> None:
    """Its accuracies are those of metrics.json; a step is gradient descent,
    differentiated by torch here.
    """
    settings = of_text.settings
    test = of_text.settings.evaluation
    texts = load_texts(of_text.folder.parents[5] / "data" / settings.dataset)
    known = KnownText(texts, settings.task.text)
    tasks = known.tasks(known.dataset.splits["test"][: test.tasks])
    shots = settings.task.shots
    end = shots + test.query_per_class
    found = [of_text.adapt(task[:shots]).accuracy(task[shots:end]) for task in tasks]
    assert found == pytest.approx(of_text.metrics["per_task"], abs=1e-6)

    records = tasks[0][: settings.task.text.refine_batch]
    module = of_text.model
    words = torch.from_numpy(records)
    module.losses(words, words).mean().backward()
    adapted = of_text.adapt(records, steps=1, rate=0.5).modules[0]
    for before, after in zip(module.parameters(), adapted.parameters(), strict=True):
        step = (before - 0.5 * before.grad).detach().numpy()
        assert after.detach().numpy() == pytest.approx(step, abs=1e-6)


def test_what_a_model_of_text_predicts(of_text: Any) -> None:
    """Of each place a distribution over words, which words behind that place do not
    move. Right is where the most probable word is the one that is there and is known.
    """
    records = np.array([[1, 2, 3, 4, 5], [8, 0, 1, 1, 2]])
    found = of_text.trained.predict(records)
    assert found.shape == (2, 5, 9)
    assert found.sum(axis=2) == pytest.approx(1)
    with torch.no_grad():
        expected = of_text.model(torch.from_numpy(records)).softmax(-1).numpy()
    assert found == pytest.approx(expected, abs=1e-6)
    changed = np.array([[1, 2, 3, 7, 7], [8, 0, 1, 6, 6]])
    moved = of_text.trained.predict(changed) != found
    assert not moved[:, :4].any()
    assert moved[:, 4].any()
    right = (found.argmax(axis=2) == records) & (records > 0)
    assert of_text.trained.accuracy(records) == pytest.approx(100 * right.mean())


def test_the_torch_module_computes_what_is_predicted(opened: Any) -> None:
    run = opened("maml")
    images = np.random.default_rng(0).random(
        (6, *run.trained.net.input_shape), np.float32
    )
    adapted = run.adapt(images, np.arange(6) % 3)
    with torch.no_grad():
        logits = [
            module(torch.from_numpy(images).movedim(-1, 1))
            for module in adapted.modules
        ]
    mean = torch.stack(logits).softmax(-1).mean(0)
    assert adapted.predict(images) == pytest.approx(mean.numpy(), abs=1e-4)
    first = run.model
    with torch.no_grad():
        next(first.parameters()).zero_()
    assert (
        float(next(run.model.parameters()).detach().abs().sum()) > 0
    )  # a copy each time


def test_a_network_of_found_cells_is_opened_with_the_search_that_it_rests_on(
    silos: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The account is of the search and the training together, at any delta; without the
    search there is none.
    """
    results = tmp_path / "results"
    (data, clients) = silos
    search = test_search.search_config()
    run = test_search.cells_config(search=search)
    places = {one.method: results / "runs" / one.folder for one in (search, run)}
    names = ("genotype.json", "ledger.jsonl")
    files = {name: places["dp-fnas"] / name for name in names}
    shutil.copytree(data, results / "data" / run.dataset)
    folders = {"data_dir": data, "clients_dir": clients}
    for one, given in ((search, {}), (run, files)):
        place = places[one.method]
        write_text(place / "config.yaml", one.to_yaml())
        engine.train(one, run_dir=place, references=given, **folders)
        tested = {"data_dir": data, "model_path": place / "model.safetensors"}
        if one is search:
            cells = {"genotype_path": files["genotype.json"]}
            write_cells(one, picture_path=place / "cells.png", **cells, **tested)
        evaluate(one, out_path=place / "metrics.json", references=given, **tested)
        account_run(one, place, place / "privacy.json", references=given)
    for place in (*places.values(), results / "data" / run.dataset):
        seal("rule", sorted(path for path in place.iterdir() if path.is_file()))
    found = dpfedbench.open_run(places["dp-cells"])
    accuracy = found.trained.accuracy(*held_out(run, load_records(data)).test)
    assert accuracy == pytest.approx(found.metrics["accuracy"])
    assert found.model.genotype.to_json() == read_json(files["genotype.json"])
    assert found.account_at(found.account.delta) == found.account
    files["ledger.jsonl"].unlink()
    missing = r"dp-fnas/.*ledger\.jsonl is missing: run the workflow again"
    with pytest.raises(BenchError, match=missing):
        found.account_at(1e-4)
    with pytest.raises(BenchError, match=missing):
        _ = dpfedbench.open_run(found.folder).model


def test_epsilon_at_another_delta_is_of_the_same_ledger(opened: Any) -> None:
    """One pass is one Gaussian of z = 1 for each client. Images are shared here."""
    run = opened("dp-agr")
    assert run.epsilon() == run.account.profiles["proven"]
    assert run.account_at(run.account.delta) == run.account
    holds = run.epsilon(delta=1e-5).epsilon_high
    assert holds == pytest.approx(gaussian_epsilon(1.0, 1e-5))
    table = run.accounts(1e-5).set_index("profile")
    assert table.loc["proven", "epsilon_high"] == holds
    assert np.isnan(table.loc["tuning", "epsilon_high"])
    assert "no search" in table.loc["tuning", "explanation"]
    assert table.loc["image_level", "epsilon_high"] > holds
    with pytest.raises(BenchError, match="no release claims privacy"):
        opened("maml").epsilon()


def test_what_is_missing_is_one_line(results: Path, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="is no run's folder"):
        dpfedbench.open_run(tmp_path)
    shutil.copytree(results, tmp_path / "results")
    (folder,) = (tmp_path / "results" / "runs").glob("maml/*/*/*/seed0")
    shutil.rmtree(tmp_path / "results" / "data")
    run = dpfedbench.open_run(folder)
    with pytest.raises(
        BenchError,
        match=r"summary\.json is missing: it has the shape of the model's inputs",
    ):
        run.adapt(np.zeros((3, 16, 16, 1), np.uint8), np.arange(3))
    with pytest.raises(BenchError, match="the history has no threshhold: there are "):
        run.plot("threshhold")
    (folder / "training.json").unlink()
    with pytest.raises(BenchError, match=r"training\.json is missing"):
        dpfedbench.open_run(folder)


def test_the_package_is_imported_without_what_computes() -> None:
    text = (
        "import sys, dpfedbench; print(sorted({'torch', 'numba', 'pandas'} &"
        " set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="no attribute 'open'"):
        dpfedbench.open  # noqa: B018


IMAGES = np.zeros((3, 16, 16, 1), np.uint8)
CLASSES = np.arange(3)


BAD_CALLS: dict[str, Any] = {
    "open_run, no folder": lambda run: dpfedbench.open_run("no such folder"),
    "load_runs, a number": lambda run: dpfedbench.load_runs(3),  # type: ignore[arg-type]
    "load_cells, no folder": lambda run: dpfedbench.load_cells("no such folder"),
    "load_configurations, no folder": lambda run: dpfedbench.load_configurations("no"),
    "rank, no such task": lambda run: dpfedbench.rank(
        pd.DataFrame({"dataset": ["digits"], "tested": ["10 classes"]}),
        dataset="glyphs",
        task="5-way 1-shot",
        unit="client",
        epsilon=2.0,
    ),
    "cohort, no round": lambda run: run.cohort(0),
    "use_plugins, no module": lambda run: dpfedbench.use_plugins("no_such_module"),
    "account_at, one": lambda run: run.account_at(1.0),
    "account_at, nan": lambda run: run.account_at(float("nan")),
    "epsilon, no profile": lambda run: run.epsilon("hold"),
    "epsilon, text": lambda run: run.epsilon(delta="1e-5"),
    "accounts, zero": lambda run: run.accounts(0.0),
    "plot, no column": lambda run: run.plot("threshhold"),
    "adapt, no classes": lambda run: run.adapt(IMAGES),
    "adapt, ragged": lambda run: run.adapt([[1], [2, 3]], CLASSES),
    "adapt, half a step": lambda run: run.adapt(IMAGES, CLASSES, steps=1.5),
    "adapt, infinite": lambda run: run.adapt(IMAGES, CLASSES, rate=float("inf")),
    "adapt, a shape": lambda run: run.adapt(IMAGES[..., 0], CLASSES),
    "adapt, above one": lambda run: run.adapt(IMAGES + 255.0, CLASSES),
    "predict, texts": lambda run: run.trained.predict(np.array(["a", "b"])),
    "accuracy, a high class": lambda run: run.trained.accuracy(IMAGES, CLASSES + 1),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_input_raises_the_error_that_the_page_names(
    opened: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bad input of each public function, and what it says is one line."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    with pytest.raises(BenchError) as caught:
        BAD_CALLS[name](opened("dp-agr"))
    assert str(caught.value).strip()
    assert "\n" not in str(caught.value)


FILES = {
    "history": "history.csv",
    "metrics": "metrics.json",
    "training": "training.json",
    "ledger": "ledger.jsonl",
    "account": "privacy.json",
    "model": "model.safetensors",
    "trained": "model.safetensors",
}


@pytest.mark.parametrize(
    ("name", "fault"), [*((name, "damaged") for name in FILES), ("ledger", "missing")]
)
def test_properties_of_a_run_raise_the_error_that_the_page_names(
    results: Path, tmp_path: Path, name: str, fault: str
) -> None:
    """Each property reads a file of the run's folder, which is gone or another."""
    properties = {
        key
        for key, value in vars(FinishedRun).items()
        if isinstance(value, property | functools.cached_property)
        and not key.startswith("_")
    }
    assert properties == set(FILES)
    shutil.copytree(results, tmp_path / "results")
    (folder,) = (tmp_path / "results" / "runs").glob("dp-agr/*/*/*/seed0")
    path = folder / FILES[name]
    content = path.read_bytes()
    path.unlink()
    if fault == "damaged":
        path.write_bytes(content[: len(content) // 2])
    with pytest.raises(BenchError) as caught:
        getattr(dpfedbench.open_run(folder), name)
    assert "\n" not in str(caught.value)
    assert FILES[name] in str(caught.value)


def test_cohorts_of_one_pass_have_every_client_once(opened: Any) -> None:
    run = opened("dp-agr")
    rounds = run.training["rounds_run"]
    cohorts = [run.cohort(number) for number in range(1, rounds + 1)]
    assert [len(cohort) for cohort in cohorts] == run.history["clients"].to_list()
    assert sorted(np.concatenate(cohorts)) == list(range(run.settings.clients.count))
    for number in (0, rounds + 1):
        with pytest.raises(BenchError, match=f"no round {number}: the run has rounds"):
            run.cohort(number)

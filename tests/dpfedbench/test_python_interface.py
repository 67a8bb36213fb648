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
from dpfedbench.evaluation.predictor import Predictor
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
        r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.S
    )
    assert len(blocks) >= 6
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), names)
    said = capsys.readouterr().out
    assert "dp-agr" in said and re.search(r"^\d+\.\d %$", said, flags=re.M)
    assert "tuning has no epsilon for this run: no search declared" in said
    assert (results.parent / "history.png").stat().st_size > 5000
    assert names["logits"].shape == (15, 3)


def test_the_frame_of_runs_has_what_each_run_says(results: Path, opened: Any) -> None:
    runs = dpfedbench.load_runs(results).set_index("method")
    for method in ("dp-agr", "adap-dp-fl"):
        profiles = opened(method).account.profiles
        for column, profile in (
            ("epsilon_claimed", "as_claimed"),
            ("epsilon_proven_high", "holds"),
        ):
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
    run = opened(method)
    settings, dataset = run.settings, load_dataset(federation[0])
    sizes = {"query_per_class": settings.evaluation.query_per_class}
    tasks = sample_tasks(
        dataset,
        "test",
        count=settings.evaluation.tasks,
        ways=settings.task.ways,
        shots=settings.task.shots,
        seed=settings.seed,
        purpose="meta-test",
        **sizes,
    )
    found = []
    for index in range(settings.evaluation.tasks):
        task = gather(
            dataset,
            tasks,
            np.array([index]),
            support_per_class=settings.task.shots,
            **sizes,
        )
        adapted = run.adapt(task.support_x[0], task.support_y[0])
        found.append(adapted.accuracy(task.query_x[0], task.query_y[0]))
    assert (
        found == pytest.approx(run.metrics["per_task"], abs=1e-6)
        and len(set(found)) > 1
    )
    # Nothing was changed on the way, and no step is no adaptation.
    untouched = run.adapt(task.support_x[0], task.support_y[0], steps=0)
    assert all(
        (a == b[: a.size]).all()
        for a, b in zip(untouched.members, run.trained.members, strict=True)
    )


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

    folder, run = tmp_path_factory.mktemp("text"), run_of("reptile")
    out, place = trained(folder, run), folder / "results" / "runs" / run.folder
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
    settings, test = of_text.settings, of_text.settings.evaluation
    known = KnownText(
        load_texts(of_text.folder.parents[5] / "data" / settings.dataset),
        settings.task.text,
    )
    tasks = known.tasks(known.dataset.splits["test"][: test.tasks])
    shots, end = settings.task.shots, settings.task.shots + test.query_per_class
    found = [of_text.adapt(task[:shots]).accuracy(task[shots:end]) for task in tasks]
    assert found == pytest.approx(of_text.metrics["per_task"], abs=1e-6)

    records = tasks[0][: settings.task.text.refine_batch]
    module = of_text.model
    module.losses(
        torch.from_numpy(records), torch.from_numpy(records)
    ).mean().backward()
    adapted = of_text.adapt(records, steps=1, rate=0.5).modules[0]
    for before, after in zip(module.parameters(), adapted.parameters(), strict=True):
        assert after.detach().numpy() == pytest.approx(
            (before - 0.5 * before.grad).detach().numpy(), abs=1e-6
        )


def test_what_a_model_of_text_predicts(of_text: Any) -> None:
    """Of each place a distribution over words, which words behind that place do not
    move.
    """
    records = np.array([[1, 2, 3, 4, 5], [8, 0, 1, 1, 2]])
    found = of_text.trained.predict(records)
    assert found.shape == (2, 5, 9) and found.sum(axis=2) == pytest.approx(1)
    with torch.no_grad():
        assert found == pytest.approx(
            of_text.model(torch.from_numpy(records)).softmax(-1).numpy(), abs=1e-6
        )
    changed = np.array([[1, 2, 3, 7, 7], [8, 0, 1, 6, 6]])
    other = of_text.trained.predict(changed)
    assert (other[:, :4] == found[:, :4]).all() and (other[:, 4] != found[:, 4]).any()
    # Right where the most probable word is the one that is there and is known.
    right = (found.argmax(axis=2) == records) & (records > 0)
    assert of_text.trained.accuracy(records) == pytest.approx(100 * right.mean())


@pytest.mark.parametrize(
    ("records", "labels", "line"),
    [
        (np.zeros((3, 4), int), None, r"records of shape \[3, 4\]: give \[n, 5\]"),
        (np.zeros((0, 5), int), None, r"records of shape \[0, 5\]: give"),
        (
            np.zeros((3, 5)),
            None,
            "words of type float64: give whole numbers, 0 for a word that is not known",
        ),
        (np.full((3, 5), 9), None, "words from 9 to 9: give 0 to 8"),
        (
            np.zeros((3, 5), int),
            np.zeros(3, int),
            "records of words are their own labels: leave out the second arg",
        ),
    ],
)
def test_texts_that_do_not_fit_are_one_line(
    of_text: Any, records: Any, labels: Any, line: str
) -> None:
    with pytest.raises(BenchError, match=line):
        of_text.adapt(records, labels)
    if labels is None:
        with pytest.raises(BenchError, match=line):
            of_text.trained.predict(records)


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
    results, (data, clients) = tmp_path / "results", silos
    search = test_search.make_config()
    run = test_search.cells(search)
    places = {one.method: results / "runs" / one.folder for one in (search, run)}
    files = {
        name: places["dp-fnas"] / name for name in ("genotype.json", "ledger.jsonl")
    }
    shutil.copytree(data, results / "data" / run.dataset)
    for one, given in ((search, {}), (run, files)):
        place = places[one.method]
        write_text(place / "config.yaml", one.to_yaml())
        model, test = place / "model.safetensors", place / "metrics.json"
        engine.train(
            one, data_dir=data, clients_dir=clients, run_dir=place, references=given
        )
        if one is search:
            write_cells(
                one,
                data_dir=data,
                model_path=model,
                genotype_path=files["genotype.json"],
                picture_path=place / "cells.png",
            )
        evaluate(one, data_dir=data, model_path=model, out_path=test, references=given)
        account_run(one, place, place / "privacy.json", references=given)
    for place in (*places.values(), results / "data" / run.dataset):
        seal("rule", sorted(path for path in place.iterdir() if path.is_file()))
    found = dpfedbench.open_run(places["dp-cells"])
    images, labels = held_out(run, load_records(data)).test
    assert found.trained.accuracy(images, labels) == pytest.approx(
        found.metrics["accuracy"]
    )
    assert found.model.genotype.to_json() == read_json(files["genotype.json"])
    # The account is of the search and the training together, at any delta; without the
    # search there is none.
    assert found.account_at(found.account.delta) == found.account
    files["ledger.jsonl"].unlink()
    for asked in (
        lambda: found.account_at(1e-4),
        lambda: dpfedbench.open_run(found.folder).model,
    ):
        with pytest.raises(
            BenchError,
            match=r"dp-fnas/.*ledger\.jsonl is missing: run the workflow again",
        ):
            asked()


def test_epsilon_at_another_delta_is_of_the_same_ledger(opened: Any) -> None:
    run = opened("dp-agr")
    assert (
        run.epsilon() == run.account.profiles["holds"]
        and run.account_at(run.account.delta) == run.account
    )
    # One pass is one Gaussian of z = 1 for each client.
    assert run.epsilon(delta=1e-5).epsilon_high == pytest.approx(
        gaussian_epsilon(1.0, 1e-5)
    )
    table = run.accounts(1e-5).set_index("profile")
    assert table.loc["holds", "epsilon_high"] == run.epsilon(delta=1e-5).epsilon_high
    assert (
        np.isnan(table.loc["tuning", "epsilon_high"])
        and "no search" in table.loc["tuning", "explanation"]
    )
    assert (
        table.loc["image_level", "epsilon_high"] > table.loc["holds", "epsilon_high"]
    )  # images are shared here
    with pytest.raises(
        BenchError, match=r"no profile 'hold': choose one of as_claimed, holds"
    ):
        run.epsilon("hold")
    with pytest.raises(
        BenchError, match="holds has no epsilon for this run: no release claims privacy"
    ):
        opened("maml").epsilon()
    with pytest.raises(BenchError, match="delta is 2"):
        run.epsilon(delta=2)


@pytest.mark.parametrize(
    ("images", "classes", "line"),
    [
        (
            np.zeros((3, 16, 16), np.uint8),
            [0, 1, 2],
            r"images of shape \[3, 16, 16\]: give \[n, 16, 16, 1\]",
        ),
        (
            np.zeros((0, 16, 16, 1), np.uint8),
            [],
            r"images of shape \[0, 16, 16, 1\]: give",
        ),
        (
            np.full((3, 16, 16, 1), 255.0),
            [0, 1, 2],
            "images of type float64: give uint8, or floats from 0 to 1",
        ),
        (
            np.full((3, 16, 16, 1), np.nan),
            [0, 1, 2],
            "images of type float64: give uint8, or floats from 0 to 1",
        ),
        (
            np.zeros((3, 16, 16, 1), int),
            [0, 1, 2],
            "images of type int64: give uint8, or floats from 0 to 1",
        ),
        (
            np.zeros((3, 16, 16, 1), np.uint8),
            [0, 1],
            r"classes of type int64, shape \[2\]: give 3 integers",
        ),
        (
            np.zeros((3, 16, 16, 1), np.uint8),
            [0.0, 1.0, 2.0],
            r"classes of type float64, shape \[3\]: give 3 integers",
        ),
        (
            np.zeros((3, 16, 16, 1), np.uint8),
            [1, 2, 3],
            "classes from 1 to 3: give 0 to 2",
        ),
    ],
)
def test_a_task_that_does_not_fit_is_one_line(
    opened: Any, images: Any, classes: Any, line: str
) -> None:
    with pytest.raises(BenchError, match=line) as caught:
        opened("maml").adapt(images, np.array(classes))
    with pytest.raises(BenchError, match="the classes of the images are missing"):
        opened("maml").adapt(np.zeros((3, 16, 16, 1), np.uint8))
    assert "\n" not in str(caught.value)


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
NOT_REAL = {"nan": float("nan"), "text": "1e-5", "infinite": float("inf")}
BAD_CALLS: dict[str, Any] = {
    "open_run, no folder": lambda run: dpfedbench.open_run("no such folder"),
    "open_run, a NUL": lambda run: dpfedbench.open_run("a\0b"),
    "open_run, a number": lambda run: dpfedbench.open_run(3),  # type: ignore[arg-type]
    "load_runs, no folder": lambda run: dpfedbench.load_runs("no such folder"),
    "load_runs, a number": lambda run: dpfedbench.load_runs(3),  # type: ignore[arg-type]
    "load_runs, none": lambda run: dpfedbench.load_runs(None),  # type: ignore[arg-type]
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
    "use_plugins, a number": lambda run: dpfedbench.use_plugins(3),  # type: ignore[arg-type]
    "use_plugins, a file": lambda run: dpfedbench.use_plugins("mine.py/"),
    "use_plugins, no module": lambda run: dpfedbench.use_plugins("no_such_module"),
    "account_at, one": lambda run: run.account_at(1.0),
    "epsilon, no profile": lambda run: run.epsilon("hold"),
    "epsilon, a list": lambda run: run.epsilon(["holds"]),
    "accounts, zero": lambda run: run.accounts(0.0),
    "plot, no column": lambda run: run.plot("threshhold"),
    "plot, a number": lambda run: run.plot(3),
    "plot, a list": lambda run: run.plot(["threshold"]),
    "adapt, no classes": lambda run: run.adapt(IMAGES),
    "adapt, ragged": lambda run: run.adapt([[1], [2, 3]], CLASSES),
    "adapt, ragged classes": lambda run: run.adapt(IMAGES, [[1], [2, 3]]),
    "adapt, negative steps": lambda run: run.adapt(IMAGES, CLASSES, steps=-1),
    "adapt, half a step": lambda run: run.adapt(IMAGES, CLASSES, steps=1.5),
    "adapt, a truth value": lambda run: run.adapt(IMAGES, CLASSES, steps=True),
    "predict, texts": lambda run: run.trained.predict(np.array(["a", "b"])),
    "predict, ragged": lambda run: run.trained.predict([[1], [2, 3]]),
    "accuracy, no classes": lambda run: run.trained.accuracy(IMAGES),
    "accuracy, a high class": lambda run: run.trained.accuracy(IMAGES, CLASSES + 1),
}
for _name, _value in NOT_REAL.items():
    BAD_CALLS |= {
        f"account_at, {_name}": lambda run, value=_value: run.account_at(value),
        f"accounts, {_name}": lambda run, value=_value: run.accounts(value),
        f"epsilon, {_name}": lambda run, value=_value: run.epsilon(delta=value),
        f"adapt, rate {_name}": lambda run, value=_value: run.adapt(
            IMAGES, CLASSES, rate=value
        ),
    }


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_input_raises_the_error_that_the_page_names(
    opened: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bad input of each public function, and what it says is one line."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    with pytest.raises(BenchError) as caught:
        BAD_CALLS[name](opened("dp-agr"))
    assert str(caught.value).strip() and "\n" not in str(caught.value)


def test_bad_calls_cover_the_public_functions() -> None:
    functions = {name for name in dpfedbench.__all__ if not name.startswith("__")}
    for kind in (FinishedRun, Predictor):
        functions |= {
            name
            for name, value in vars(kind).items()
            if callable(value) and not name.startswith("_")
        }
    functions -= {"adapted", "checked"}  # reached through `adapt` and `predict`
    assert functions == {name.partition(",")[0] for name in BAD_CALLS}


FILES = {
    "history": "history.csv",
    "metrics": "metrics.json",
    "training": "training.json",
    "ledger": "ledger.jsonl",
    "account": "privacy.json",
    "model": "model.safetensors",
    "trained": "model.safetensors",
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("fault", ["missing", "damaged", "empty"])
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
    if fault == "missing":
        path.unlink()
    else:
        path.write_bytes(b"" if fault == "empty" else content[: len(content) // 2])
    with pytest.raises(BenchError) as caught:
        getattr(dpfedbench.open_run(folder), name)
    assert "\n" not in str(caught.value) and FILES[name] in str(caught.value)


def test_cohorts_of_one_pass_have_every_client_once(opened: Any) -> None:
    run = opened("dp-agr")
    rounds = run.training["rounds_run"]
    cohorts = [run.cohort(number) for number in range(1, rounds + 1)]
    assert [len(cohort) for cohort in cohorts] == run.history["clients"].to_list()
    assert sorted(np.concatenate(cohorts)) == list(range(run.settings.clients.count))
    for number in (0, rounds + 1):
        with pytest.raises(BenchError, match=f"no round {number}: the run has rounds"):
            run.cohort(number)

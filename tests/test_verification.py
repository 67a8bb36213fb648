"""Files are compared with each other, and a folder that is odd is a line, whatever lies
in it.
"""

import contextlib
import json
import math
import os
import re
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.optimize import brentq
from scipy.stats import norm

import dpfedbench
from dpfedbench import files
from dpfedbench.errors import BenchError
from dpfedbench.files import read_json, write_json
from dpfedbench.manifest import FOLDER, sealed
from dpfedbench.models.members import load_members, save_members
from dpfedbench.papers import read_run_file
from dpfedbench.verification import Faults
from tests import test_integrity
from tests.federation.conftest import federation, silos  # noqa: F401
from tests.test_integrity import (
    PLACE,
    RUN,
    Given,
    Params,
    call,
    finished,  # noqa: F401
    rewrite,
    there,  # noqa: F401
)

RESULTS = Path("results")


def found(**more: Any) -> list[str]:
    """What does not hold of the results, each in a line."""
    lines = [fault for fault in Faults(RESULTS, **more) if fault]
    assert all("\n" not in line for line in lines)
    return lines


def sealed_again(*names: str) -> None:
    """As somebody who knows of manifests would do it, with all else that they say left
    as it is.
    """
    for name in names:
        digest = files.sha256(PLACE / name)
        for path in (PLACE / FOLDER).iterdir():
            path.write_text(
                re.sub(
                    rf"^[0-9a-f]{{64}}  {name}$",
                    f"{digest}  {name}",
                    path.read_text(),
                    flags=re.M,
                )
            )


def changed(name: str, change: Callable[[Any], Any]) -> None:
    values = read_json(PLACE / name)
    change(values)
    write_json(PLACE / name, values)
    sealed_again(name)


# What a file was made from


def test_each_result_says_what_it_was_made_from(there: Path) -> None:  # noqa: F811
    said = {one.rule: one.made_from for one in sealed(PLACE)}
    here = PLACE.relative_to(RESULTS).as_posix()
    wanted = {
        "configure": set(),
        "train": {"config.yaml", "images.npy", "clients.npz", "summary.json"},
        "meta_test": {"config.yaml", "images.npy", "model.safetensors"},
        "account": {
            "config.yaml",
            "ledger.jsonl",
            "training.json",
            "clients.npz",
            "summary.json",
        },
        "audit": {"config.yaml", "ledger.jsonl", "training.json"},
    }
    assert {
        rule: {Path(name).name for name in sources or ()}
        for rule, sources in said.items()
    } == wanted
    assert said["account"] is not None and said["audit"] is not None
    for sources in (said["account"], said["audit"]):
        assert sources[f"{here}/ledger.jsonl"] == files.sha256(PLACE / "ledger.jsonl")
    assert not found()
    # `sha256sum -c` passes over those lines.
    assert os.system(f"cd {PLACE} && sha256sum --quiet --check manifest/*") == 0


def test_the_hash_of_the_code_stands_there_too(there: Path) -> None:  # noqa: F811
    given = Given(
        config=[PLACE / "config.yaml"],
        images=test_integrity.DATA / "images.npy",
        model=PLACE / "model.safetensors",
    )
    call(
        "meta_test",
        given,
        Given(PLACE / "metrics.json"),
        params=Params(code="0123456789ab"),
    )
    assert (
        "\n# code 0123456789ab\n"
        in (PLACE / FOLDER / "meta_test-metrics.sha256").read_text()
    )


def other_model() -> None:
    run = read_run_file(PLACE / "config.yaml")
    net = run.tested_net((16, 16, 1))
    save_members(
        PLACE / "model.safetensors", net, [net.initial(np.random.default_rng(5))]
    )


def all_chained(change: Callable[[dict[str, Any]], Any]) -> Callable[[], None]:
    def forge() -> None:
        rewrite(PLACE, change)
        sealed_again("ledger.jsonl", "training.json")

    return forge


MADE_FROM_IT = {
    "another run's model": (other_model, "model.safetensors", ["metrics.json"]),
    "other multipliers": (
        all_chained(lambda line: line.update(noise_multiplier=2.0, noise_std=1.0)),
        "ledger.jsonl",
        ["audit.json", "privacy.json"],
    ),
    "another deviation": (
        all_chained(lambda line: line.update(noise_std=line["noise_std"] / 2)),
        "ledger.jsonl",
        ["audit.json", "privacy.json"],
    ),
    "another sensitivity": (
        all_chained(
            lambda line: line.update(
                {key: line[key] / 2 for key in ("sensitivity", "noise_std")}
            )
        ),
        "ledger.jsonl",
        ["audit.json", "privacy.json"],
    ),
    "a dimension, which nothing else tells": (
        all_chained(lambda line: line.update(dimension=line["dimension"] + 1)),
        "ledger.jsonl",
        ["audit.json", "privacy.json"],
    ),
}


@pytest.mark.parametrize("name", MADE_FROM_IT)
def test_what_was_made_from_something_else_is_told(there: Path, name: str) -> None:  # noqa: F811
    """Every checksum fits, and the ledger's chain."""
    forge, source, results = MADE_FROM_IT[name]
    forge()
    sealed_again(source)
    lines = found()
    for result in results:
        rule = test_integrity.FILES[result]
        (line,) = [
            line
            for line in lines
            if line.startswith(f"{PLACE / result} was made from another ")
        ]
        assert (
            f" another {PLACE / source} than the one that is there: " in line
            and f"--forcerun {rule}`" in line
        )


def test_who_leaves_out_what_a_result_was_made_from_is_told(
    there: Path,  # noqa: F811
) -> None:
    """But a folder of a former version, in which nothing says so, is taken as it is,
    and is counted.
    """
    manifests = list(RESULTS.glob(f"**/{FOLDER}/*"))
    kept = {path: path.read_text() for path in manifests}
    lines = {
        path: "".join(line for line in text.splitlines(True) if line[0] != "#")
        for path, text in kept.items()
    }
    forged = PLACE / FOLDER / "account-privacy.sha256"
    for text in (
        lines[forged],
        f"{lines[forged]}# made from the files and the code named here\n",
    ):
        forged.write_text(text)
        (line,) = found()
        assert line.startswith(
            f"{PLACE / 'privacy.json'} does not say that it was made from the"
            " ledger.jsonl beside"
        )
    forged.write_text(kept[forged])
    for name in (
        "configure-config",
        "train-model",
    ):  # trained by a former version, tested by this one
        path = PLACE / FOLDER / f"{name}.sha256"
        path.write_text(lines[path])
    assert not found()
    for path in manifests:
        path.write_text(lines[path])
    whole = Faults(RESULTS)
    assert not any(whole) and PLACE / "privacy.json" in whole.former


# Files with each other


def test_a_forged_epsilon_is_told_where_every_account_is_computed_again(
    there: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of one Gaussian release of z = 1: delta = F(1/2z - ez) - exp(e) F(-1/2z - ez)."""
    assert not found(deep=True)
    exact = brentq(
        lambda e: norm.cdf(0.5 - e) - math.exp(e) * norm.cdf(-0.5 - e) - 1e-3, 0, 20
    )
    changed(
        "privacy.json",
        lambda values: values["profiles"]["holds"].update(epsilon_high=exact / 2),
    )
    assert not found()
    (line,) = found(deep=True)
    stated = re.fullmatch(
        rf"{PLACE}/privacy.json: its epsilon_high holds is (.*), but it is (.*),"
        r" computed .*",
        line,
    )
    assert (
        stated
        and math.isclose(float(stated[1]), exact / 2)
        and math.isclose(float(stated[2]), exact, rel_tol=1e-6)
    )
    with pytest.raises(SystemExit):
        test_integrity.verify(deep=True)
    assert f"verify: {line}" in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda values: values.update(accuracy=values["accuracy"] + 5),
            "its accuracy is ",
        ),
        (lambda values: values.update(ci_low=values["ci_low"] + 5), "its ci_low is "),
        (lambda values: values["per_task"].append(100.0), "its accuracy is "),
        (lambda values: values.update(seed=1), "its seed is 1, but it is 0"),
        (lambda values: values.pop("per_task"), "cannot be checked (KeyError"),
    ],
)
def test_a_forged_test_is_told(
    there: Path,  # noqa: F811
    change: Callable[[Any], Any],
    said: str,
) -> None:
    changed("metrics.json", change)
    (line,) = found()
    assert line.startswith(f"{PLACE}/metrics.json") and said in line


def test_a_forged_test_that_agrees_with_itself_is_told_by_the_model(
    there: Path,  # noqa: F811
) -> None:
    def lifted(values: Any) -> None:
        values["per_task"] = [value + 5 for value in values["per_task"]]
        values |= {key: values[key] + 5 for key in ("accuracy", "ci_low", "ci_high")}

    before = read_json(PLACE / "metrics.json")["accuracy"]
    changed("metrics.json", lifted)
    assert not found()
    (line,) = found(deep=True)
    assert (
        f"its accuracy is {before + 5}, but the model beside it has {before} in the"
        " same test" in line
    )


def test_rounds_of_ledger_history_and_training_are_the_same(
    there: Path,  # noqa: F811
) -> None:
    """A budget may stop a run early, so that a ledger that is cut, and training.json
    with it, agrees with itself.
    """
    from dpfedbench.federation.accounts import ledger_of
    from tests.federation.conftest import make_config

    budget = {"epsilon": 50.0, "stop": True}
    run = make_config(
        {"participation": {"rounds": 4}, "validation": {"every": 2}, "budget": budget}
    )
    folder = RESULTS / "runs" / run.folder
    call(
        "configure",
        Given(),
        Given(folder / "config.yaml"),
        params=Params(run=run.plain()),
    )
    data, clients = test_integrity.DATA / "images.npy", test_integrity.CLIENTS
    given = Given(
        config=[folder / "config.yaml"],
        images=data,
        clients=clients / "clients.npz",
        summary=clients / "summary.json",
    )
    names = {
        "model": "model.safetensors",
        "history": "history.csv",
        "ledger": "ledger.jsonl",
        "training": "training.json",
    }
    call("train", given, Given(**{key: folder / name for key, name in names.items()}))
    assert not found()
    rewrite(folder, lambda line: None, keep=1)
    training = read_json(folder / "training.json") | {
        "rounds_run": 1,
        "stopped_by": "budget",
    }
    write_json(folder / "training.json", training)
    for path in (folder / FOLDER).glob("train-*"):
        for name in ("ledger.jsonl", "training.json"):
            text = re.sub(
                rf"^[0-9a-f]{{64}}  {name}$",
                f"{files.sha256(folder / name)}  {name}",
                path.read_text(),
                flags=re.M,
            )
            path.write_text(text)
    assert len(ledger_of(run, folder)) == 1
    (line,) = found()
    assert line.startswith(
        f"{folder}/history.csv has 4 rounds, but training.json beside it says 1: "
    )


# Odd folders


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """A pipe that is opened is waited for, for ever."""

    def late(*_: Any) -> None:
        raise TimeoutError("something waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def replaced(name: str, make: Callable[[Path], Any]) -> Callable[[], Path]:
    def odd() -> Path:
        path = PLACE / name
        if path.is_dir():
            import shutil

            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        make(path)
        return path

    return odd


def stated(name: str, change: Callable[[Any], Any]) -> Callable[[], Path]:
    def odd() -> Path:
        values = json.loads((PLACE / name).read_text())
        change(values)
        (PLACE / name).write_text(json.dumps(values))
        sealed_again(name)
        return PLACE / name

    return odd


def latin(path: Path) -> None:
    path.write_bytes(b"method: caf\xe9\n")
    sealed_again(path.name)


def deep_json(path: Path) -> None:
    path.write_text("[" * 100_000)
    sealed_again(path.name)


ODD = {
    "a folder in place of a file": replaced("metrics.json", lambda path: path.mkdir()),
    "a link to itself": replaced(
        "metrics.json", lambda path: path.symlink_to(path.name)
    ),
    "a link to nothing": replaced(
        "metrics.json", lambda path: path.symlink_to("nowhere")
    ),
    "a pipe": replaced("metrics.json", os.mkfifo),
    "a pipe for the configuration": replaced("config.yaml", os.mkfifo),
    "a pipe for the history": replaced("history.csv", os.mkfifo),
    "a pipe for the model": replaced("model.safetensors", os.mkfifo),
    "a pipe for a manifest": replaced("manifest/train-model.sha256", os.mkfifo),
    "a folder for a manifest": replaced(
        "manifest/train-model.sha256", lambda path: path.mkdir()
    ),
    "a file for the manifests": replaced("manifest", lambda path: path.write_text("")),
    "text that is not UTF-8": replaced("config.yaml", latin),
    "a history that is not UTF-8": replaced("history.csv", latin),
    "lists in lists": replaced("training.json", deep_json),
    "a ledger that is a list": stated(
        "training.json", lambda values: values.update(ledger=[])
    ),
    "rounds without end": stated(
        "training.json", lambda values: values.update(rounds_run=math.inf)
    ),
    "rounds that are text": stated(
        "training.json", lambda values: values.update(rounds_run="4")
    ),
    "an account of lists": stated(
        "privacy.json", lambda values: values.update(profiles=[[]])
    ),
    "an epsilon that is a list": stated(
        "privacy.json",
        lambda values: values["profiles"]["holds"].update(epsilon_high=[]),
    ),
    "tasks that are no numbers": stated(
        "metrics.json", lambda values: values.update(per_task=[{}])
    ),
}


def read_all(folder: Path) -> None:
    run = dpfedbench.open_run(folder)
    run.history, run.metrics, run.training, run.ledger, run.account, run.trained  # noqa: B018


@pytest.mark.parametrize("name", ODD)
def test_what_is_odd_is_a_line_and_the_rest_goes_on(there: Path, name: str) -> None:  # noqa: F811
    checks = len(list(Faults(RESULTS)))
    path = ODD[name]()
    lines = found()
    assert lines and any(str(path) in line for line in lines), lines
    # The rest was looked at: the data, the clients, and what else lies in the folder.
    assert len(list(Faults(RESULTS))) > checks // 2
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rows = dpfedbench.list_runs(RESULTS).to_dict("records")
    assert [row["method"] for row in rows] == ["dp-agr"] and all(
        "\n" not in str(one.message) for one in caught
    )
    told = [str(one.message) for one in caught if str(PLACE) in str(one.message)]
    assert told == [row["fault"] for row in rows if row["fault"]]
    with contextlib.suppress(BenchError):  # a line, where what is odd is read at all
        read_all(PLACE)


def test_a_folder_that_leads_back_to_itself_is_a_line(
    there: Path,  # noqa: F811
) -> None:
    (PLACE / "more").symlink_to("..")
    (RESULTS / "loop").symlink_to(Path.cwd() / "results")
    lines = found()
    assert sorted(lines) == sorted(
        f"{path} is a link that leads back to where it lies: remove it"
        for path in (PLACE / "more", RESULTS / "loop")
    )


def test_a_linked_folder_is_looked_through(there: Path, tmp_path: Path) -> None:  # noqa: F811
    (RESULTS / "runs").rename(tmp_path / "elsewhere")
    (RESULTS / "runs").symlink_to(tmp_path / "elsewhere")
    assert not found()
    (PLACE / "metrics.json").write_text("{}")
    assert [line.split(" is damaged")[0] for line in found()] == [
        str(PLACE / "metrics.json")
    ]


# Readers that ask for no manifest


def flips(path: Path, count: int = 100) -> Iterator[bytes]:
    """The file with one bit of one byte another, at places from a fixed seed."""
    data, rng = path.read_bytes(), np.random.default_rng(0)
    for place, bit in zip(
        rng.integers(len(data), size=count), rng.integers(8, size=count), strict=True
    ):
        yield data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]


def test_a_flipped_bit_of_a_configuration_is_refused_in_a_line_or_means_the_same(
    there: Path,  # noqa: F811
) -> None:
    path = PLACE / "config.yaml"
    run, refused = read_run_file(path), 0
    for data in flips(path):
        path.write_bytes(data)
        try:
            assert read_run_file(path) == run
        except BenchError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 80


def test_a_flipped_bit_of_a_model_is_refused_or_changes_no_weight(
    there: Path,  # noqa: F811
) -> None:
    path = PLACE / "model.safetensors"
    net, before = RUN.tested_net((16, 16, 1)), load_file(path)
    weights, refused = load_members(path, net), 0
    for data in flips(path):
        path.write_bytes(data)
        try:
            assert all(
                (one == two).all()
                for one, two in zip(load_members(path, net), weights, strict=True)
            )
        except BenchError as error:
            assert "\n" not in str(error) and str(path) in str(error)
            refused += 1
    assert refused >= 99
    # One of a former version has no digest, and is read.
    from safetensors.numpy import save_file

    save_file(before, path)
    assert (load_members(path, net)[0] == weights[0]).all()

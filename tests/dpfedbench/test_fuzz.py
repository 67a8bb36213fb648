"""Two hundred bad configurations from fixed seeds: each is refused in one line, or
planned; none ends in a traceback.

Those of a run are trained as well: see `test_runs_that_are_accepted_run_to_the_end`.
"""

import copy
import datetime
import json
import random
import re
from pathlib import Path
from typing import Any

import yaml

from dpfedbench.data import DATASETS_TABLE
from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import Configuration
from dpfedbench.experiments.datasets import known_datasets, read_holdings
from dpfedbench.experiments.expand import make_plan
from dpfedbench.settings.merge import leaves, set_key
from tests.dpfedbench.federation.conftest import LOTS, RUN, make_config, train
from tests.dpfedbench.federation.conftest import federation as federation
from tests.dpfedbench.federation.conftest import silos as silos
from tests.dpfedbench.test_experiments import configuration
from tests.workflow.conftest import Call
from tests.workflow.conftest import snakemake as snakemake

NUMBERS = [0, 1, -1, 0.5, -0.0, 3.7, 1e-300, 1e300, -1e300, 10**30, 2**63]
TEXTS = ["", "null", "1e9", "nan", "yes", "x", "../../../evil", "/etc/passwd"]
LETTERS = ["a" * 300, "a{b}", "=cmd|' /C calc'!A0", "<script>", "$\\frac{$", "a\nb"]
LISTS = [[], [0.0], [0, 0], [[1]], [None], {}, {"kind": "nope"}, {"": 1}]
HOSTILE: list[Any] = [None, True, False, *NUMBERS, float("nan"), float("inf")]
HOSTILE += [*TEXTS, *LETTERS, "\u00e9\x00", *LISTS, {"kind": ["a"]}, {1: 2}]
HOSTILE += [datetime.date(2020, 1, 1)]
NAMES = ["multiplyer", "../evil", "a{b}", "A B", "", "2022", "all", "class", "kind"]
NAMES += ["b" * 300]
SMOKE = configuration("smoke")
PAPERS = (
    "dp-fedmeta",
    "adap-dp-fl",
    "dp-maml",
    "dp-meta-learning-gbml",
    "correlated-noise",
    "secure-aggregation",
)


def places(found: dict[str, Any]) -> list[str]:
    """Every key and every group of keys."""
    keys = list(leaves(found))
    return sorted(
        {
            ".".join(key.split(".")[:depth])
            for key in keys
            for depth in range(1, key.count(".") + 2)
        }
    )


def mutated(seed: int) -> dict[str, Any]:
    """The smoke preset with one paper, of which one to three places are not as they
    should be.
    """
    rng = random.Random(seed)
    base = copy.deepcopy(SMOKE)
    paper = rng.choice(PAPERS)
    base["experiments"] = {paper: base["experiments"][paper]}
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        place = rng.choice(places(base))
        if rng.random() < 0.25:
            place += f".{rng.choice(NAMES)}"
        base = set_key(base, place, rng.choice(HOSTILE))
    return base


def planned(found: dict[str, Any]) -> str:
    """What is said of a configuration that is refused; "" of one that is planned, for
    which all is described.
    """
    try:
        read = Configuration.read(found)
        datasets = known_datasets(DATASETS_TABLE, read)
        plan = make_plan(
            read, datasets=datasets, holdings=read_holdings(DATASETS_TABLE)
        )
        json.dumps([item.describe() for item in plan.items.values()], allow_nan=False)
        plan.audited_runs()
    except BenchError as error:
        return str(error)
    return ""


def test_two_hundred_bad_configurations_are_refused_in_a_line_or_planned() -> None:
    said = {seed: planned(mutated(seed)) for seed in range(100, 300)}
    for seed, line in said.items():
        assert "\n" not in line and "Traceback" not in line and len(line) < 1500, (
            seed,
            line,
        )
    # The rest are harmless: another title, a seed more, a paper left out.
    assert sum(bool(line) for line in said.values()) > 120


def test_the_workflow_says_what_the_plan_says(snakemake: Call, tmp_path: Path) -> None:
    # A date is refused by the reader of YAML, before there is a plan.
    seed = next(
        number
        for number in range(100)
        if planned(mutated(number)).startswith("run.")
        and "2020-01-01" not in yaml.safe_dump(mutated(number))
    )
    path = tmp_path / "mutated.yaml"
    given = mutated(seed)
    for experiment in given["experiments"].values():
        experiment.pop(
            "title"
        )  # laid over the shipped one: with a title it would be another of its name
    path.write_text(yaml.safe_dump(given), encoding="utf-8")
    done = snakemake("--dry-run", "--quiet", "rules", "--configfile", str(path))
    lines = [
        line
        for line in done.stderr.splitlines()
        if not line.startswith(("Using", "Config file"))
    ]
    # The line of the key in the file stands behind it.
    said = (
        re.escape(f"configuration: {planned(mutated(seed))} [{path}, line ") + r"\d+\]"
    )
    assert done.returncode == 1 and len(lines) == 1 and re.fullmatch(said, lines[0]), (
        done.stderr
    )


DEAR = {"inner_steps", "steps", "rounds", "tasks", "count", "filters", "cohort"}
VALUES: list[Any] = [None, True, 0, 1, 2, -1, 0.5, 1e-20, 1e-9, 1e3, 1e6, 1e20, 1e300]
VALUES += ["x", "", [], {}, "null", "2"]


def test_runs_that_are_accepted_run_to_the_end(
    federation: Any, silos: Any, tmp_path: Path
) -> None:
    """A run with one value that nobody would give is refused, stops with a line, or
    ends with its files.
    """
    ended = refused = stopped = 0
    small = {
        "participation": {"rounds": 2},
        "validation": {"every": 1},
        "evaluation": {"every": 0},
    }
    for seed in range(60):
        rng = random.Random(seed)
        general, data = (RUN, federation) if seed % 2 else (LOTS, silos)
        place = rng.choice([key for key in leaves(general) if key != "method"])
        value = rng.choice(VALUES)
        if place.rpartition(".")[2] in DEAR and isinstance(value, float) and value > 2:
            continue  # it would run, for days
        try:
            run = make_config(small, set_key({}, place, value), general=general)
        except BenchError as error:
            assert "\n" not in str(error), (place, value, error)
            refused += 1
            continue
        if ended + stopped == 8:
            continue
        try:
            train(run, data, tmp_path / str(seed))
            ended += 1
        except BenchError as error:
            assert "\n" not in str(error), (place, value, error)
            stopped += 1
    assert refused > 20
    assert ended >= 4

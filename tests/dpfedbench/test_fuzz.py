"""Random faults in configurations and runs, from fixed seeds.

Each configuration is planned or refused in one line; none ends in a traceback. Runs
that are accepted are trained as well.
"""

import copy
import datetime
import json
import random
from typing import Any

from dpfedbench.config.merge import leaves, set_key
from dpfedbench.errors import BenchError
from tests.dpfedbench.test_experiments import configuration, plan
from tests.dpfedbench.training.conftest import LOTS, RUN, make_config, train

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


def keys_and_sections(values: dict[str, Any]) -> list[str]:
    """Return all dotted keys of a configuration, and those of its sections."""
    names = set()
    for key in leaves(values):
        parts = key.split(".")
        names |= {".".join(parts[:depth]) for depth in range(1, len(parts) + 1)}
    return sorted(names)


def mutated(seed: int) -> dict[str, Any]:
    """Return the smoke preset with one paper and one to three random faults."""
    rng = random.Random(seed)
    base = copy.deepcopy(SMOKE)
    paper = rng.choice(PAPERS)
    base["experiments"] = {paper: base["experiments"][paper]}
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        key = rng.choice(keys_and_sections(base))
        if rng.random() < 0.25:
            key += f".{rng.choice(NAMES)}"
        base = set_key(base, key, rng.choice(HOSTILE))
    return base


def error_of(values: dict[str, Any]) -> str:
    """Plan and describe a configuration; return its error, or "" if it is accepted."""
    try:
        planned = plan(values)
        items = [item.describe() for item in planned.items.values()]
        json.dumps(items, allow_nan=False)
        planned.audited_runs()
    except BenchError as error:
        return str(error)
    return ""


def test_fuzzed_configurations_are_planned_or_refused_in_one_line() -> None:
    errors = {seed: error_of(mutated(seed)) for seed in range(100, 300)}
    for seed, error in errors.items():
        assert "\n" not in error, (seed, error)
        assert "Traceback" not in error, (seed, error)
        assert len(error) < 1500, (seed, error)
    # The rest are harmless: another title, one more seed, a paper left out.
    assert sum(bool(error) for error in errors.values()) > 120


DEAR = {"inner_steps", "steps", "rounds", "tasks", "count", "filters", "cohort"}
VALUES: list[Any] = [None, True, 0, 1, 2, -1, 0.5, 1e-20, 1e-9, 1e3, 1e6, 1e20, 1e300]
VALUES += ["x", "", [], {}, "null", "2"]


def test_fuzzed_runs_that_are_accepted_end_with_files_or_one_line(
    federation: Any, silos: Any, tmp_path: Any
) -> None:
    """A run with one hostile value is refused, stops with one line, or ends."""
    ended = refused = stopped = 0
    small = {"participation": {"rounds": 2}, "evaluation": {"every": 0}}
    for seed in range(60):
        rng = random.Random(seed)
        general, data = (RUN, federation) if seed % 2 else (LOTS, silos)
        key = rng.choice([key for key in leaves(general) if key != "method"])
        value = rng.choice(VALUES)
        if key.rpartition(".")[2] in DEAR and isinstance(value, float) and value > 2:
            continue  # The run would take days.
        try:
            run = make_config(small, set_key({}, key, value), general=general)
        except BenchError as error:
            assert "\n" not in str(error), (key, value, error)
            refused += 1
            continue
        if ended + stopped == 8:
            continue
        try:
            train(run, data, tmp_path / str(seed))
            ended += 1
        except BenchError as error:
            assert "\n" not in str(error), (key, value, error)
            stopped += 1
    assert refused > 20
    assert ended >= 4

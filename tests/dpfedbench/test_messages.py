"""The messages about bad configurations, pinned by one file, `messages.yaml`; and random
faults, from fixed seeds, which are refused in one line, or run.

`python -m tests.dpfedbench.test_messages` writes the messages of all cases again. Read
the difference: each message is one line, with the key and its value.
"""

import contextlib
import copy
import datetime
import functools
import itertools
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpfedbench.config.merge import leaves, set_key
from dpfedbench.config.yaml_files import read_file
from dpfedbench.errors import BenchError
from tests.dpfedbench.config.test_part import Toy
from tests.dpfedbench.papers.test_refusals import run_of
from tests.dpfedbench.test_experiments import configuration, known, plan
from tests.dpfedbench.training.conftest import LOTS, RUN, make_config, train

FILE = Path(__file__).with_name("messages.yaml")
CASES: dict[str, list[dict[str, Any]]] = yaml.safe_load(FILE.read_text("utf-8"))
SMOKE = configuration("smoke")


def changed(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return values with others at some dotted keys; "absent" removes a key."""
    for key, value in changes.items():
        values = set_key(values, key, value)
        if value == "absent":
            *sections, last = key.split(".")
            del functools.reduce(dict.__getitem__, sections, values)[last]
    return values


def refuse_file(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("faulty.yaml").write_text(text, encoding="utf-8")
        read_file(Path("faulty.yaml"))


REFUSE = {
    "a section": lambda case: Toy.read(
        changed({"server": {"steps": 3}, "clipping": "moving"}, case["change"])
    ),
    "a configuration": lambda case: plan(changed(SMOKE, case["change"])),
    "a data set": lambda case: known(
        **{f"datasets.{key}": value for key, value in case["change"].items()}
    ),
    "a run": lambda case: run_of(case["method"], case["change"]),
    "a file": lambda case: refuse_file(case["text"]),
}


def error_of(function: Callable[..., Any], *arguments: Any) -> str:
    """Return the message of a call that is refused, else "accepted"."""
    try:
        function(*arguments)
    except BenchError as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize(
    ("group", "case"),
    [
        pytest.param(group, case, id=f"{group} {number}")
        for group, cases in CASES.items()
        for number, case in enumerate(cases)
    ],
)
def test_message_is_that_of_the_snapshot(group: str, case: dict[str, Any]) -> None:
    text = error_of(REFUSE[group], case)
    assert text == case["message"]
    assert "\n" not in text
    assert len(text) < 600


# Random faults

NUMBERS = [0, 1, 2, -1, 0.5, -0.0, 3.7, 1e-9, 1e-300, 1e6, 1e300, -1e300, 10**30]
TEXTS = ["", "null", "1e9", "nan", "yes", "../../../evil", "/etc/passwd", "a" * 300]
LETTERS = ["a{b}", "=cmd|' /C calc'!A0", "<script>", "$\\frac{$", "a\nb", "\u00e9\x00"]
LISTS = [[], [0.0], [0, 0], [[1]], [None], {}, {"kind": "nope"}, {"": 1}, {1: 2}]
OTHERS = [None, True, float("nan"), float("inf"), datetime.date(2020, 1, 1)]
HOSTILE: list[Any] = [*NUMBERS, *TEXTS, *LETTERS, *LISTS, *OTHERS]
NAMES = ["multiplyer", "../evil", "a{b}", "A B", "", "2022", "class", "b" * 300]
PAPERS = ("dp-fedmeta", "adap-dp-fl", "dp-maml", "dp-meta-learning-gbml")


def keys_and_sections(values: dict[str, Any]) -> list[str]:
    """Return all dotted keys of a configuration, and those of its sections."""
    paths = [
        itertools.accumulate(key.split("."), "{}.{}".format) for key in leaves(values)
    ]
    return sorted(set(itertools.chain.from_iterable(paths)))


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


def describe(values: dict[str, Any]) -> None:
    planned = plan(values)
    items = [item.describe({}) for item in planned.items.values()]
    json.dumps(items, allow_nan=False)
    planned.audited_runs()


def test_fuzzed_configurations_are_planned_or_refused_in_one_line() -> None:
    errors = [error_of(describe, mutated(seed)) for seed in range(100, 300)]
    for seed, error in enumerate(errors, start=100):
        assert "\n" not in error and "Traceback" not in error, (seed, error)
        assert len(error) < 1500, (seed, error)
    # The rest are harmless: another title, one more seed, a paper left out.
    assert errors.count("accepted") < 80


DEAR = {"inner_steps", "steps", "rounds", "tasks", "count", "filters", "cohort"}
# A run with large values of these keys would take days.
AFFORDABLE = [value for value in HOSTILE if value not in NUMBERS or value <= 2]


def test_fuzzed_runs_that_are_accepted_end_with_files_or_one_line(
    federation: Any, silos: Any, tmp_path: Any
) -> None:
    """A run with one hostile value is refused, stops with one line, or ends."""
    refused = 0
    ends: list[str] = []
    small = {"participation": {"rounds": 2}, "evaluation": {"every": 0}}
    for seed in range(60):
        rng = random.Random(seed)
        general, data = (RUN, federation) if seed % 2 else (LOTS, silos)
        key = rng.choice([key for key in leaves(general) if key != "method"])
        dear = key.rpartition(".")[2] in DEAR
        change = set_key({}, key, rng.choice(AFFORDABLE if dear else HOSTILE))
        make = functools.partial(make_config, small, change, general=general)
        error = error_of(make)
        refused += error != "accepted"
        if error == "accepted" and len(ends) < 8:
            error = error_of(train, make(), data, tmp_path / str(seed))
            ends.append(error)
        assert "\n" not in error, (change, error)
    assert refused > 20
    assert ends.count("accepted") >= 4


if __name__ == "__main__":
    for group, cases in CASES.items():
        for case in cases:
            case["message"] = error_of(REFUSE[group], case)
    head = "# Bad configurations and their messages. See test_messages.py.\n"
    text = yaml.safe_dump(CASES, sort_keys=False, width=110, allow_unicode=False)
    FILE.write_text(head + text, encoding="utf-8")

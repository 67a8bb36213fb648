"""The messages about bad configurations, pinned by one file, `messages.yaml`.

`python -m tests.dpfedbench.test_messages` writes the messages of all cases again. Read
the difference: each message is one line, with the key and its value.
"""

import contextlib
import copy
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpfedbench.config.merge import set_key
from dpfedbench.config.yaml_files import read_file
from dpfedbench.errors import BenchError
from tests.dpfedbench.config.test_part import Toy
from tests.dpfedbench.papers.test_refusals import run_of
from tests.dpfedbench.test_experiments import configuration, known, plan

FILE = Path(__file__).with_name("messages.yaml")
CASES: dict[str, list[dict[str, Any]]] = yaml.safe_load(FILE.read_text("utf-8"))
SMOKE = configuration("smoke")


def changed(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return values with others at some dotted keys; "absent" removes a key."""
    values = copy.deepcopy(values)
    for key, value in changes.items():
        if value != "absent":
            values = set_key(values, key, value)
            continue
        *sections, last = key.split(".")
        section = values
        for name in sections:
            section = section[name]
        del section[last]
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


def message(group: str, case: dict[str, Any]) -> str:
    try:
        REFUSE[group](case)
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
    text = message(group, case)
    assert text == case["message"]
    assert "\n" not in text
    assert len(text) < 600


if __name__ == "__main__":
    for group, cases in CASES.items():
        for case in cases:
            case["message"] = message(group, case)
    head = "# Bad configurations and their messages. See test_messages.py.\n"
    text = yaml.safe_dump(CASES, sort_keys=False, width=110, allow_unicode=False)
    FILE.write_text(head + text, encoding="utf-8")

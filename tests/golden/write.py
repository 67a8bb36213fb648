"""Write golden.json anew: `python -m tests.golden.write`, from the root of the
repository.

It says that results are meant to have moved: do it where that was decided, in a commit
that says what moved and why. What moved is printed, case by case.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

from tests.golden import runs

GOLDEN = Path(__file__).with_name("golden.json")


def read() -> dict[str, Any]:
    """What golden.json holds; nothing where there is none."""
    return (
        json.loads(GOLDEN.read_text(encoding="utf-8"))
        if GOLDEN.exists()
        else {"machine": {}, "cases": {}}
    )


def main() -> None:
    """Run all cases and write what they give."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument(
        "--check", action="store_true", help="print what differs and write nothing"
    )
    given = arguments.parse_args()
    before = read()
    cases = {}
    with tempfile.TemporaryDirectory() as root:
        data = runs.make_data(Path(root) / "data")
        for number, name in enumerate(runs.CASES):
            folder = Path(root) / str(number)
            with contextlib.redirect_stderr(io.StringIO()):
                runs.files_of(name, data, folder, threads=given.threads)
            cases[name] = runs.found_of(folder)
            if name not in before["cases"]:
                print(f"{name}: new")
            elif moved := runs.differences(before["cases"][name], cases[name]):
                print(f"{name}: " + "\n".join(moved))
    for name in before["cases"].keys() - cases.keys():
        print(f"{name}: gone")
    if not given.check:
        GOLDEN.write_text(
            json.dumps({"machine": runs.machine(), "cases": cases}, indent=1) + "\n",
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()

"""Write golden.json anew: `python -m tests.golden.write`, from the root of the
repository.

Do this only where a change of results was decided, in a commit that says what changed
and why. The command prints the changes, case by case.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

from tests.golden import runs

GOLDEN = Path(__file__).with_name("golden.json")


def read() -> dict[str, Any]:
    """Return the content of golden.json."""
    content: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return content


def main() -> None:
    """Run all cases and write their hashes."""
    before = read()["cases"]
    cases = {}
    with tempfile.TemporaryDirectory() as root:
        data = runs.make_data(Path(root) / "data")
        for number, name in enumerate(runs.CASES):
            folder = Path(root) / str(number)
            with contextlib.redirect_stderr(io.StringIO()):
                runs.files_of(name, data, folder)
            cases[name] = runs.found_of(folder)
            if name in before:
                lines = runs.differences(before[name], cases[name])
                if lines:
                    print(f"{name}: " + "\n".join(lines))
    for name in sorted(before.keys() ^ cases.keys()):
        print(f"{name}: {'new' if name in cases else 'removed'}")
    content = {"machine": runs.machine(), "cases": cases}
    GOLDEN.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

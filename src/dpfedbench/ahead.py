"""What a training job makes ahead for the stages after it: to start Python and torch again takes longer than most do.

It lies in `ahead/` of the run's folder, each file beside what it was made from. A stage takes the file that it would
make itself; any other it makes anew. So a change of a later stage's code, or of its settings, trains nothing again.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpfedbench import files
from dpfedbench.errors import BenchError

FOLDER = "ahead"


def leave(place: Path, made_from: Mapping[str, Any], make: Callable[[Path], None]) -> None:
    """Make a stage's file ahead.

    Args:
        place: where the stage will put it, in a run's folder.
        made_from: all that it depends on, but the run: files as paths, the rest as plain values.
        make: writes the file to the path that it is given.
    """
    made, note = _made(place)
    note.unlink(missing_ok=True)
    make(made)
    files.write_json(note, {"sha256": files.sha256(made), "from": _sums(made_from)})


def take(place: Path, made_from: Mapping[str, Any]) -> bool:
    """Put a file that was made ahead in its place; returns whether there was one, whole and made from the same."""
    made, note = _made(place)
    try:
        found = files.read_json(note)
        good = found == {"sha256": files.sha256(made), "from": _sums(made_from)}
        text = made.read_text(encoding="utf-8")
    except (BenchError, OSError, UnicodeDecodeError):
        return False  # none, or damaged: the stage makes its own
    if good:
        files.write_text(place, text)
    return good


def _made(place: Path) -> tuple[Path, Path]:
    made = place.parent / FOLDER / place.name
    return made, made.with_suffix(".from.json")


def _sums(made_from: Mapping[str, Any]) -> dict[str, Any]:
    plain = {key: files.sha256(value) if isinstance(value, Path) else value for key, value in made_from.items()}
    return dict(json.loads(json.dumps(plain)))

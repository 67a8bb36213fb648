"""Reading of history.csv."""

from pathlib import Path

import pytest

from dpfedbench.training.history import read_history
from tests.dpfedbench.data.conftest import refusal


@pytest.mark.parametrize(
    "text",
    [
        "",
        "round;loss\n1;2\n",
        "round,loss\nx,2\n",
        "round,loss\n1,2,3\n",
    ],
    ids=["empty", "semicolons", "text", "long row"],
)
def test_history_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    """Of the long row pandas alone would read round 2."""
    path = tmp_path / "history.csv"
    path.write_text(text, encoding="utf-8")
    message = refusal(read_history, path)
    assert message.startswith(str(path))
    assert message.endswith("delete it and run the workflow again")

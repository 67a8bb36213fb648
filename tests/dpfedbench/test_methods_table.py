"""`dpfedbench methods` and docs/configuration.md have one table, of the classes."""

import pytest

from dpfedbench.command import main
from dpfedbench.methods_table import describe_methods
from dpfedbench.papers import METHODS
from tests.pages import read_page


def test_table_says_what_the_papers_say_of_their_methods() -> None:
    """DP-AGRLR: Algorithm 3 protects records from the server, Algorithm 2 clients.
    SCAFFOLD: clients send two differences, and keep a control variate. FedAvg keeps none.
    """
    rows = {name: cells for name, *cells in describe_methods()}
    assert set(rows) == set(METHODS)
    protects, kind, messages, state = (
        {name: cells[2 + place] for name, cells in rows.items()} for place in range(4)
    )
    assert protects["dp-agr"] == "client, from everyone"
    assert protects["dp-agrlr"] == "record, from server; client, from everyone"
    assert protects["adap-dp-fl"] == "record, from server"
    assert protects["local-reptile"] == "client, from server"
    assert {protects[name] for name in ("maml", "fedavg", "random")} == {"–"}
    assert kind["dp-maml"] == "few-shot tasks"
    assert kind["dp-fnas"] == "records"
    assert messages["dp-fnas"] == "weights, architecture"
    assert messages["dp-scaffold"] == "control-difference, model-difference"
    assert messages["adap-dp-fl"] == "model"
    assert state["dp-scaffold"] == "kept"
    assert {state[name] for name in ("dp-agr", "dp-fedavg", "adap-dp-fl")} == {"none"}


def test_page_and_command_have_the_same_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["methods"]) == 0
    printed = capsys.readouterr().out
    page = read_page("configuration.md")
    chapter = page.partition("\n## Methods\n")[2].partition("\n### ")[0]
    rows = [line for line in chapter.splitlines() if line.startswith("| `")]
    assert len(rows) == len(METHODS)
    for row, line in zip(rows, printed.splitlines()[1:], strict=False):
        for cell in row.strip("| ").split(" | "):
            assert cell.strip("`") in line
    for line in chapter.splitlines():
        if line.startswith("- `"):
            assert line.removeprefix("- ").replace("`", "") in printed

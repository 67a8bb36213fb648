"""Origin of clients: owners of the data, or invented by a partition."""

import pandas as pd
import pytest

from dpfedbench.config.sections import PartitionScheme
from dpfedbench.results import answer, formats, frontier, privacy, tables
from dpfedbench.results.runs_table import collect_cells, collect_runs
from dpfedbench.results.summary import unit_labels

from .conftest import changed_cells, runs_of


@pytest.mark.parametrize(
    ("values", "origin"),
    [
        ({"clients": {"partition": "natural"}}, "owner"),
        ({"clients": {"partition": "natural-tasks"}}, "owner"),
        ({"clients": {"partition": "fragments"}}, "synthetic"),
        ({"clients": {"partition": "dirichlet"}}, "synthetic"),
        ({"clients": {}}, "synthetic"),
        ({"task": {"text": {"words": 9}}, "clients": {}}, "owner"),
        ({"clients": {"partition": "of a plugin that is gone"}}, ""),
    ],
)
def test_origin_of_clients_follows_from_the_partition(values, origin):
    assert PartitionScheme.origin_of(values) == origin


def test_only_a_client_has_its_origin_beside_it():
    units = ["client", "client", "client", "record", ""]
    origins = ["owner", "synthetic", "", "synthetic", "owner"]
    rows = pd.DataFrame({"unit": units, "client_origin": origins})
    expected = ["client (owner)", "client (synthetic)", "client", "record", ""]
    assert unit_labels(rows).tolist() == expected


def test_frames_have_the_origin_of_each_run(described, results):
    cells = described("table2").cells
    runs = collect_runs(results, runs_of(cells))
    assert set(runs["client_origin"]) == {"synthetic"}
    assert set(collect_cells(results, cells, runs)["client_origin"]) == {"synthetic"}


@pytest.mark.parametrize("origin", ["owner", "synthetic"])
def test_tables_state_the_origin_beside_the_unit(described, results, published, origin):
    item = changed_cells(described("table2"), client_origin=origin)
    table = tables.read(item, results, published)
    private = (tables.tidy(table)["unit"] == "client").to_numpy()
    assert private.any()
    assert not private.all()
    assert set(tables.tidy(table)["client_origin"]) == {origin}
    shown = [fields["unit"].text for fields in tables.listing(table).rows]
    label = f"client ({origin})"
    assert [text == label for text in shown] == private.tolist()


def test_answer_and_privacy_state_the_origin(entries, results, published):
    from dpfedbench.results.configurations import read_configurations

    cells = [{**cell, "client_origin": "owner"} for entry in entries for cell in entry]
    rows = privacy.explain(read_configurations(cells, results), results, published)
    units = {fields["unit"].text for fields in privacy.listing(rows).rows}
    assert units == {"client (owner)", "record"}
    answers = answer.listing(answer.read(rows), {})
    assert "of a client (owner), δ" in answers.rows[0]["paper"].line


def test_frontier_states_the_origin(described, results, tmp_path):
    item = changed_cells(described("frontier"), client_origin="owner")
    points = frontier.read(item, results)
    figure = frontier.draw(item, points)
    assert any("of a client (owner)" in axes.get_xlabel() for axes in figure.axes)
    path = tmp_path / "points.csv"
    path.write_text(formats.csv_text(tables.csv_columns(points, "frontier")))
    shown = {
        row["unit"].text for row in frontier.listing(frontier.read_points(path)).rows
    }
    assert "client (owner)" in shown

"""Experiments: the cells and runs that follow from the configuration."""

import functools
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dpfedbench.config.merge import KeyFault, lay, set_key
from dpfedbench.data import read_table
from dpfedbench.data.readers import reader_modules
from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import (
    Configuration,
    overlaid,
    shipped_files,
)
from dpfedbench.experiments.datasets import (
    known_datasets,
    read_holdings,
    read_owned,
)
from dpfedbench.experiments.expand import make_plan
from dpfedbench.experiments.plan import Plan
from dpfedbench.papers import METHODS
from dpfedbench.run import Run
from tests.shipped import parsed

CONFIG = Path(__file__).resolve().parents[2] / "config"
TABLE = "experiments.dp-fedmeta.tables.table2"


def configuration(preset: str | None = None, /, **changes: Any) -> dict[str, Any]:
    """Return a preset's configuration with changes; by default that of all points."""
    preset = preset or "full"
    files = [*shipped_files(CONFIG, preset), CONFIG / "presets" / f"{preset}.yaml"]
    values = overlaid(*map(parsed, files))
    for key, value in changes.items():
        values = set_key(values, key, value)
    return values


def test_overlaid_merges_mappings_and_leaves_the_files_as_they_are() -> None:
    base = {"run": {"noise": {"multiplier": 1.0}, "seeds": [0, 1]}}
    file = {"run": {"noise": {"kind": "fixed"}, "seeds": [2]}, "only": "toy"}
    group = {"only": {"name": "toy"}}
    assert overlaid(base, file, group) == {
        "run": {"noise": {"multiplier": 1.0, "kind": "fixed"}, "seeds": [2]},
        "only": {"name": "toy"},
    }
    assert base == {"run": {"noise": {"multiplier": 1.0}, "seeds": [0, 1]}}
    assert file["run"] == {"noise": {"kind": "fixed"}, "seeds": [2]}


@functools.cache
def planned(preset: str | None = None) -> Plan:
    """Return the plan of a shipped configuration. It is made once for all tests."""
    return plan(configuration(preset))


def plan(values: dict[str, Any]) -> Plan:
    configuration = Configuration.read(values)
    return make_plan(
        configuration,
        datasets=known_datasets(configuration),
        holdings=read_holdings(configuration),
        owned=read_owned(configuration),
    )


def known(**changes: Any) -> dict[str, str]:
    """Return the data sets of the default run and one of a user, with their versions."""
    options = {"folder": "shapes", "size": 28, "channels": 1, "test_images": 5}
    shapes = {"reader": "image-folder", "options": options}
    values = configuration(**{"datasets.shapes": shapes} | changes)
    return known_datasets(Configuration.read(values))


def test_data_set_version_follows_from_all_its_settings() -> None:
    versions = known()
    assert versions["glyphs"] == "1"
    assert set(versions) >= {*read_table(), "shapes"}
    assert known(**{"datasets.shapes.version": 2})["shapes"] != versions["shapes"]
    assert "shapes" not in known(**{"datasets.shapes": None})


def test_plan_has_a_run_of_two_items_once() -> None:
    """Figure 4b at z = 1 and Table 2 have the DP-AGR runs of 5-way 1-shot in common."""
    shipped = planned()
    table = shipped.items["dp-fedmeta", "table2"]
    figure = shipped.items["dp-fedmeta", "figure4b"]
    shared = set(table.runs) & set(figure.runs)
    assert {shipped.runs[folder].method for folder in shared} == {"dp-agr"}
    assert len(shared) == len(figure.cells[0].runs)
    runs_of_items = [folder for item in shipped.items.values() for folder in item.runs]
    used = [run.references.values() for run in shipped.runs.values()]
    references = {run.folder for runs in used for run in runs}
    assert set(shipped.runs) == set(runs_of_items) | references
    assert len(shipped.runs) < len(runs_of_items)


def test_configuration_layers_lie_in_order() -> None:
    """small < run < paper < task < method's defaults < methods < the paper's methods < cell.

    The test sets the layers one by one, and each time sees the last one.
    """
    values = configuration()
    values["experiments"] = {"dp-fedmeta": values["experiments"]["dp-fedmeta"]}
    del values["experiments"]["dp-fedmeta"]["run"]["clipping"]
    sections = [
        "small.dp-agr",
        "run",
        "experiments.dp-fedmeta.run",
        "experiments.dp-fedmeta.tasks.omniglot-1shot",
        "methods.dp-agr",
        "experiments.dp-fedmeta.methods.dp-agr",
        f"{TABLE}.series.dp-agr.run",
    ]
    for level, section in enumerate(sections, start=1):
        values = set_key(values, f"{section}.clipping.threshold", float(level))
        cells: Any = plan(values).items["dp-fedmeta", "table2"].cells
        assert cells[2].runs[0].clipping.threshold == level
    assert cells[1].runs[0].method == "maml"
    assert not hasattr(cells[1].runs[0], "clipping")


def mismatches(preset: str | None, paper: str, table: str) -> dict[str, str]:
    """Return why the first cell of each series is not comparable, or ""."""
    cells = planned(preset).items[paper, table].cells
    return {cell.series: cell.mismatch for cell in reversed(cells)}


def test_published_number_is_comparable_on_its_data_and_scale_alone() -> None:
    """An untrained method is comparable at any scale."""
    stand_in = mismatches(None, "dp-fedmeta", "table2")
    assert set(stand_in.values()) == {"published on omniglot, measured on glyphs"}
    scale = "clients.count 400,000 at the published scale, 16,000 here"
    real = mismatches("real", "dp-fedmeta", "table2")
    assert (real["dp-agr"], real["random"]) == (scale, "")
    assert mismatches("real", "dp-maml", "table3")["maml"] != ""
    assert mismatches("scale", "dp-fedmeta", "table2")["dp-agr"] == ""
    for paper, table in ("dp-fedmeta", "table2"), ("dp-maml", "table3"):
        assert mismatches("paper", paper, table)["maml"] == ""


def test_swept_value_comes_with_the_values_of_also() -> None:
    cells = planned().items["dp-maml", "figure6b"].cells
    plans = [cell.runs[0].participation for cell in cells]
    sizes = [(plan.cohort, plan.rounds) for plan in plans]
    assert sizes == [(30, 50), (100, 15), (300, 5)]


def test_figure_of_accounts_needs_no_run() -> None:
    """The published threshold reads raw norms; a private quantile does not."""
    item = planned().items["dp-maml", "figure12"]
    assert not item.runs
    records = item.cell_records({})
    assert len(records) == len(item.spec["x"]["values"]) * len(item.spec["series"])
    mechanism = records[0]["mechanism"]
    assert mechanism["noise_multiplier"] == 1.0
    assert mechanism["sampler"]["rate"] == 1600 / 380800
    counted = {record["series"]: record["mechanism"]["counted"] for record in records}
    expected = {"claimed": False, "published": False, "quantile": True, "secret": True}
    assert counted == expected


def test_meta_model_is_trained_once_for_all_shots_of_the_meta_test() -> None:
    """The initialisation figure uses the meta-models of the table. Only pre-trained
    models are further runs.
    """
    item = planned("paper").items["dp-fedmeta", "figure5"]
    shared = planned("paper").items["dp-fedmeta", "table2"].runs
    further = {run.method for key, run in item.runs.items() if key not in shared}
    assert further == {"transfer", "dp-transfer"}
    tested = {(key[0], test.task.shots) for key, test in item.tests.items()}
    assert tested == {(folder, n) for folder in item.runs for n in (1, 5, 10, 15, 20)}


def test_audit_is_shared_by_configurations_of_one_mechanism() -> None:
    """The noise that follows the loss of its run is no other run's."""
    shipped = planned()
    audited_runs = shipped.audited_runs()
    first_seeds: list[Any] = [runs[0] for runs in shipped.private_runs().values()]
    folders = {run.folder for run in first_seeds}
    assert set(map(audited_runs.get, folders)) < folders
    sections = ("method", "participation", "clipping", "noise", "budget", "within_task")
    for run in first_seeds:
        audited: Any = shipped.runs[audited_runs[run.folder]]
        for section in sections:
            assert getattr(run, section, None) == getattr(audited, section, None)
        assert run.clients.count == audited.clients.count
        if any(sum_.noise.follows_loss for sum_ in run.sums() if sum_.private):
            assert run == audited


def test_plan_with_too_many_disjoint_clients_is_refused() -> None:
    """1,150 classes have 20 images; a client has 6 of each of its 5 classes. So each
    class serves 3 clients, and 1,150 x 3 / 5 = 690 clients fit.
    """

    def plan_clients(count: int) -> None:
        clients = {"partition": "disjoint", "count": count}
        run = {"clients": clients, "participation": {"cohort": 10}}
        plan(configuration("smoke", **{f"{TABLE}.series.maml.run": run}))

    plan_clients(690)
    with pytest.raises(BenchError, match="glyphs has images for 690 clients"):
        plan_clients(700)


PRINT_HEAVY_IMPORTS = """
import sys
from tests.dpfedbench.test_experiments import planned
for preset in (None, "smoke", "scale", "paper", "real"):
    planned(preset)
print([name for name in ["numpy"] if name in sys.modules])
planned().private_runs()
heavy = ("torch", "numba", "scipy", "pandas")
print([name for name in heavy if name in sys.modules])
"""


def test_plan_imports_no_heavy_library() -> None:
    """With --use-conda the plan is read where NumPy is not installed. torch takes
    seconds to import, and numba one: a dry run must not wait for them.
    """
    command = [sys.executable, "-c", PRINT_HEAVY_IMPORTS]
    output = subprocess.check_output(command, cwd=CONFIG.parent, text=True)
    assert output == "[]\n[]\n"


LETTERS = {"dataset": "glyphs"}
RECORDS = {
    "dataset": "digits",
    "task": {"ways": 10, "shots": 0},
    "clients": {"count": 4, "partition": "fragments", "fragments": 20},
    "model": "cnn",
}
LOTS = ("local-record", "fedavg")


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, method in METHODS.items()
        if method.trained and "party" not in method.groups()
    ],
)
@pytest.mark.parametrize("preset", [None, "paper"])
def test_own_experiment_has_small_sizes_without_asking(
    name: str, preset: str | None
) -> None:
    """It states the data and the method alone. The classes have the papers' sizes:
    400,000 clients, 34,000 rounds. The preset `paper` changes the shipped papers alone.
    """
    takes_records = set(LOTS) & set(METHODS[name].groups())
    pretrains = METHODS[name].pretrains
    task = RECORDS if takes_records and not pretrains else LETTERS
    settings = {"method": name}
    if name == "fedavg":
        settings |= {"run": {"participation": "poisson-lots", "server": "average"}}
    if name in ("dp-fedavg", "dp-scaffold", "dp-fedrep", "fedrep", "local-training"):
        settings |= {"run": {"clients": RECORDS["clients"], "model": "cnn"}}
        task = RECORDS | {"participation": {"kind": "poisson", "cohort": 2}}
    values = configuration(preset) | {
        "experiments": {
            "mine": {
                "title": "Mine",
                "tasks": {"data": task},
                "tables": {
                    "one": {
                        "title": "one",
                        "tasks": ["data"],
                        "series": {"row": settings},
                    }
                },
            }
        }
    }
    for run in plan(values).runs.values():
        assert run.clients.count <= 2000
        assert run.participation.cohort <= 500
        assert run.participation.rounds <= 150
        assert run.evaluation.tasks <= 200


def test_data_whose_owners_are_no_clients_have_a_notice() -> None:
    """Client-level results of `writers` by invented clients have one; by its writers,
    or without privacy, none.
    """
    run = {
        "dataset": "writers",
        "task": {"ways": 62, "shots": 0},
        "participation": {"kind": "poisson", "cohort": 5, "rounds": 2},
        "client_update": {"kind": "model-difference"},
        "server": {"kind": "step"},
    }
    invented = {"partition": "fragments", "fragments": 10, "count": 10}
    natural = {"partition": "natural", "count": 500}

    def notices(method: str, clients: dict[str, Any]) -> tuple[str, ...]:
        series = {"one": {"method": method}}
        table = {"title": "People", "tasks": ["people"], "series": series}
        values = configuration()
        values["experiments"] = {
            "people": {
                "title": "People",
                "source": "none",
                "run": {**run, "clients": clients},
                "tasks": {"people": {}},
                "tables": {"table1": table},
            }
        }
        return plan(values).notices

    (notice,) = notices("dp-fedavg", invented)
    assert notice.startswith(
        "the examples of writers have owners, but clients.partition fragments"
    )
    assert notices("dp-fedavg", natural) == ()
    assert notices("fedavg", invented) == ()


def test_data_sets_with_owners_are_those_that_count_them() -> None:
    counted: set[str] = set()
    for name in reader_modules().values():
        counted |= {*getattr(importlib.import_module(name), "OWNER_COUNTS", {})}
    values = Configuration.read(configuration())
    assert read_owned(values) == counted
    options = {"folder": "shapes", "size": 28, "channels": 1, "test_images": 5}
    shapes = {"reader": "image-folder", "options": options}
    for owner, owned in ((None, set()), ("(u.)_", {"shapes"})):
        entry = {**shapes, "options": {**options, "owner": owner}}
        values = Configuration.read(configuration(**{"datasets.shapes": entry}))
        assert read_owned(values) - counted == owned


def test_cohort_and_lot_are_two_keys_of_one_section() -> None:
    """DP-AGR draws cohorts of clients, DP-FL lots of a client's records."""
    both = {"participation": {"cohort": 20, "lot": 5}}
    agr, lots = METHODS["dp-agr"], METHODS["dp-fl"]
    laid = lay(agr, agr.default_values(), both, "run")
    assert laid["participation"]["cohort"] == 20
    assert "lot" not in laid["participation"]
    laid = lay(lots, lots.default_values(), both, "run")
    assert laid["participation"]["lot"] == 5
    assert "cohort" not in laid["participation"]


@pytest.mark.parametrize(
    ("method", "key", "message"),
    [
        (
            "dp-fl",
            "cohort",
            "run.participation.cohort: poisson-lots has lot in its place; a section for"
            " several methods states both, cohort and lot",
        ),
        (
            "dp-agr",
            "lot",
            "run.participation.lot: one-pass has cohort in its place; a section for"
            " several methods states both, lot and cohort",
        ),
    ],
)
def test_size_of_the_other_unit_alone_is_refused(
    method: str, key: str, message: str
) -> None:
    cls = METHODS[method]
    with pytest.raises(KeyFault) as fault:
        lay(cls, cls.default_values(), {"participation": {key: 5}}, "run")
    assert str(fault.value) == message
    assert fault.value.key == f"run.participation.{key}"


def test_identity_of_a_run_has_the_earlier_name_of_a_lot() -> None:
    """So its key stays, and results of earlier versions are read."""
    runs = planned().runs.values()
    values = next(run for run in runs if run.method == "dp-fl").plain()
    cls = METHODS["dp-fl"]
    run = cls.read(values | {"participation": {"kind": "poisson-lots", "lot": 7}})
    assert run.identity()["participation"]["cohort"] == 7
    assert run.plain()["participation"]["lot"] == 7
    former = {"kind": "poisson-lots", "cohort": 7}
    assert cls.read(values | {"participation": former}) == run
    assert Run.another(run.identity()) == run

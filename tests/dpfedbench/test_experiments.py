"""Experiments: from the configuration to cells and runs."""

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpfedbench.data import DATASETS_TABLE
from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import Configuration, overlaid
from dpfedbench.experiments.datasets import known_datasets, read_datasets, read_holdings
from dpfedbench.experiments.expand import make_plan
from dpfedbench.experiments.plan import Plan
from dpfedbench.settings.merge import set_key
from dpsum.accounting.calibration import epsilon_after
from tests.shipped import parsed

CONFIG = Path(__file__).resolve().parents[2] / "config"
TABLE = "experiments.dp-fedmeta.tables.table2"
FIGURE = "experiments.dp-fedmeta.figures.figure4a"
NOTHING: dict[str, Any] = dict.fromkeys(
    ("random", "maml", "dp-agr", "dp-agrlr", "gbml")
)


def configuration(preset: str | None = None, /, **changes: Any) -> dict[str, Any]:
    files = [CONFIG / "config.yaml", *sorted((CONFIG / "experiments").glob("*.yaml"))]
    files += [CONFIG / "presets" / f"{preset}.yaml"] if preset else []
    found = overlaid(*map(parsed, files))
    for key, value in changes.items():
        found = set_key(found, key, value)
    return found


@functools.cache
def planned(preset: str | None = None) -> Plan:
    """The shipped plan, which is made once for the tests here."""
    return plan(configuration(preset))


def plan(found: dict[str, Any]) -> Plan:
    table = DATASETS_TABLE
    read = Configuration.read(found)
    return make_plan(
        read, datasets=known_datasets(table, read), holdings=read_holdings(table)
    )


def refusal(found: dict[str, Any]) -> str:
    with pytest.raises(BenchError) as caught:
        plan(found)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_run_that_two_items_need_exists_once() -> None:
    found = planned()
    table = found.items["dp-fedmeta", "table2"]
    figure = found.items["dp-fedmeta", "figure4b"]
    shared = set(table.runs) & set(figure.runs)
    # Figure 4b at z = 1 and Table 2 have the DP-AGR runs of 5-way 1-shot in common.
    assert {found.runs[folder].method for folder in shared} == {"dp-agr"}
    assert len(shared) == len(figure.cells[0].runs)
    shown = {folder for item in found.items.values() for folder in item.runs}
    asked = {
        other.folder for run in found.runs.values() for other in run.references.values()
    }
    assert set(found.runs) == shown | asked
    assert len(found.runs) < sum(len(item.runs) for item in found.items.values())


def test_layers_lie_in_order() -> None:
    """run < paper < task < method's defaults < methods < the paper's methods < cell;
    each is seen at last.
    """
    found = configuration()
    found["experiments"] = {"dp-fedmeta": found["experiments"]["dp-fedmeta"]}
    key = "clipping.threshold"

    def threshold() -> float:
        run: Any = plan(found).items["dp-fedmeta", "table2"].cells[2].runs[0]
        return float(run.clipping.threshold)

    places = [
        "run",
        "experiments.dp-fedmeta.run",
        "experiments.dp-fedmeta.tasks.omniglot-1shot",
        "methods.dp-agr",
        "experiments.dp-fedmeta.methods.dp-agr",
    ]
    for level, place in enumerate([*places, f"{TABLE}.series.dp-agr.run"], start=1):
        found = set_key(found, f"{place}.{key}", float(level))
        assert threshold() == level
    found["run"]["clipping"]["threshold"] = 9.0
    run = plan(found).items["dp-fedmeta", "table2"].cells[1].runs[0]
    assert run.method == "maml"
    assert not hasattr(run, "clipping")


def test_a_stand_in_is_named_as_itself_and_never_comparable() -> None:
    cell = planned().items["dp-fedmeta", "table2"].cells[0]
    assert cell.runs[0].dataset == "glyphs"
    assert cell.published_dataset == "omniglot"
    assert cell.mismatch == "published on omniglot, measured on glyphs"


def test_real_data_at_another_scale_is_not_comparable_and_at_the_published_scale_is() -> (
    None
):
    """An untrained method is comparable at any scale; MAML at its own batch of 8
    (DP-MAML, Table 4).
    """
    real = planned("real").items["dp-fedmeta", "table2"].cells
    mismatches = {cell.series: cell.mismatch for cell in real}
    scale = "clients.count 400,000 at the published scale, 16,000 here"
    assert mismatches["dp-agr"] == scale
    assert mismatches["random"] == ""
    for cell in planned("paper").items["dp-fedmeta", "table2"].cells:
        assert cell.mismatch == ""
    for preset, comparable in (("paper", True), ("real", False)):
        cells = planned(preset).items["dp-maml", "table3"].cells
        maml = [cell for cell in cells if cell.series == "maml"]
        assert maml
        assert {cell.mismatch == "" for cell in maml} == {comparable}


def test_the_paper_preset_is_the_published_scale() -> None:
    found = planned("paper")
    cells = found.items["dp-fedmeta", "table2"].cells
    assert len(cells) == 6 * 5
    for cell in cells:
        for run in cell.runs:
            assert run.clients.count == 400_000
            if run.method != "random":
                rounds = run.participation  # type: ignore[attr-defined]
                # MAML's batch is 8 (DP-MAML, Table 4), over the same clients.
                planned_rounds = (8, 50_000) if run.method == "maml" else (1_600, 250)
                assert (rounds.cohort, rounds.rounds) == planned_rounds
    assert {cell.runs[0].dataset for cell in cells} == {
        "omniglot",
        "cifar-fs",
        "mini-imagenet",
    }


def test_the_scale_preset_is_the_published_number_of_clients() -> None:
    item = planned("scale").items["dp-fedmeta", "table2"]
    cells = {cell.series: cell for cell in item.cells}
    assert list(cells) == ["maml", "dp-agr", "balls-and-bins"]
    assert {cell.mismatch for cell in cells.values()} == {""}
    runs: dict[str, Any] = {name: cell.runs[0] for name, cell in cells.items()}
    for name, run in runs.items():
        assert run.dataset == "omniglot"
        assert run.clients.count == 400_000
        plan_of_run = run.participation.cohort, run.participation.rounds
        assert plan_of_run == ((8, 50_000) if name == "maml" else (1_600, 250))
        update = run.client_update
        assert run.model.filters == 32
        assert update.inner_steps == 2
        assert update.order == 2
    assert runs["dp-agr"].noise.multiplier == 1.0
    assert runs["dp-agr"].budget.epsilon is None
    repair = runs["balls-and-bins"]
    assert cells["balls-and-bins"].repairs == "dp-agr"
    assert repair.participation.kind == "balls-and-bins"
    assert repair.noise.multiplier is None
    assert repair.budget.epsilon == 1.5
    assert repair.budget.profile == "proven"


@pytest.mark.parametrize("preset", [None, "smoke", "real", "scale", "paper"])
def test_a_budget_of_an_experiment_has_room_for_a_round(preset: str | None) -> None:
    """A configured noise that the first round is claimed to overspend would stop the
    whole workflow while training.
    """
    allowed: dict[Any, bool] = {}
    for run in planned(preset).runs.values():  # type: Any
        server = run.sums()[-1] if run.sums() else None
        if server is None or not server.budget or not server.noise:
            continue
        budget = server.budget
        z = server.noise.multiplier
        if budget.epsilon is None or z is None:
            continue
        participation = run.participation
        sampler = {
            "kind": participation.kind,
            "clients": run.clients.count,
            "cohort": participation.cohort,
            "rounds": participation.rounds,
            "rate": participation.cohort / run.clients.count,
        }
        key = budget.profile, sampler["rate"], z, budget.delta, budget.epsilon
        if key not in allowed:
            spent = epsilon_after(
                budget.profile, sampler, z, 1, budget.delta, claims=run.claims
            )
            allowed[key] = spent <= budget.epsilon
        assert allowed[key], run.folder
    assert allowed or preset in ("smoke", "scale")


def test_what_has_to_change_with_a_swept_value_changes_with_it() -> None:
    cells = planned().items["dp-maml", "figure6b"].cells
    sizes = [
        (cell.runs[0].participation.cohort, cell.runs[0].participation.rounds)
        for cell in cells
    ]
    assert sizes == [(30, 50), (100, 15), (300, 5)]
    found = configuration(**{"experiments.dp-maml.figures.figure6b.x.also": [{}]})
    assert (
        refusal(found)
        == "experiments.dp-maml.figures.figure6b.x.also has 1 overlays for 3 values:"
        " give one for each, in their order"
    )


def test_a_figure_of_accounts_needs_no_run() -> None:
    found = planned()
    item = found.items["dp-maml", "figure12"]
    swept = len(item.spec["x"]["values"]) * len(item.spec["series"])
    assert item.kind == "account"
    assert not item.runs
    assert len(item.cells) == swept
    records = item.cell_records()
    first = records[0]
    assert first["run"] is None
    assert first["mechanism"]["noise_multiplier"] == 1.0
    assert first["mechanism"]["sampler"]["rate"] == 1600 / 380800
    # As published the threshold reads raw norms; a private quantile does not.
    counted = {record["series"]: record["mechanism"]["counted"] for record in records}
    assert counted == {
        "claimed": False,
        "published": False,
        "quantile": True,
        "secret": True,
    }
    shown = {folder.split("/")[-1] for folder in found.private_runs()}
    assert not shown & {cell.runs[0].key for cell in item.cells}
    series = "experiments.dp-maml.figures.figure12.series.claimed"
    broken = configuration()
    del broken["experiments"]["dp-maml"]["figures"]["figure12"]["series"]["claimed"][
        "epsilon"
    ]
    assert (
        refusal(broken)
        == f"{series} needs profile and epsilon: a figure of accounts shows delta"
    )


def test_sweeps_repeat_a_series_at_each_value_and_leave_out_the_level_ones() -> None:
    found = configuration(**{f"{FIGURE}.x.values": [20, 40]})
    found["experiments"]["dp-fedmeta"]["figures"]["figure4a"]["series"] = {
        "adaptive": {"method": "dp-agr"},
        "constant": {
            "method": "dp-agr",
            "run": {"clipping": {"kind": "constant"}},
            "sweep": False,
        },
    }
    cells = plan(found).items["dp-fedmeta", "figure4a"].cells
    assert [(cell.series, cell.x, cell.variant) for cell in cells] == [
        ("adaptive", 20.0, "k=20"),
        ("adaptive", 40.0, "k=40"),
        ("constant", None, ""),
    ]
    assert [cell.runs[0].clipping.percentile for cell in cells[:2]] == [20.0, 40.0]  # type: ignore[attr-defined]


def test_null_leaves_out_a_series_an_item_and_a_paper() -> None:
    found = plan(configuration(**{f"{TABLE}.series.random": None, FIGURE: None}))
    assert ("dp-fedmeta", "figure4a") not in found.items
    assert {cell.series for cell in found.items["dp-fedmeta", "table2"].cells} == {
        "maml",
        "dp-agr",
        "dp-agrlr",
        "gbml",
    }
    without = plan(configuration(**{"experiments.dp-fedmeta": None}))
    papers = configuration()["experiments"]
    assert {paper for paper, _ in without.items} == set(papers) - {"dp-fedmeta"}
    nothing = configuration(**{f"experiments.{paper}": None for paper in papers})
    assert "no table or figure left" in refusal(nothing)


def test_a_new_paper_costs_an_experiment_and_nothing_else() -> None:
    """A second paper that asks for a run of the first shares it."""
    paper = {
        "title": "Another",
        "tasks": {"any": {"dataset": "omniglot", "evaluation": {"tasks": 100}}},
        "tables": {
            "table1": {
                "title": "t",
                "tasks": ["any"],
                "series": {"a": {"method": "dp-agr"}},
            }
        },
    }
    found = plan(configuration(**{"experiments.another": paper}))
    assert set(found.items["another", "table1"].runs) <= set(
        found.items["dp-fedmeta", "table2"].runs
    )


def test_a_run_that_others_find_their_threshold_in_is_planned_once() -> None:
    """The median of a run without privacy with the same cohorts: that of Figure 2b
    where one is there, else one more run.
    """
    median = {
        "method": "dp-agr",
        "run": {"clipping": {"kind": "median-of-run", "threshold": None}},
    }
    found = plan(configuration(**{f"{TABLE}.series.median": median}))
    item = found.items["dp-fedmeta", "table2"]
    plain = {
        run.folder
        for cell in found.items["dp-fedmeta", "figure2b"].cells
        if cell.series == "maml"
        for run in cell.runs
    }
    shown = [
        run
        for cell in item.cells
        for run in cell.runs
        if cell.series == "median" and run.dataset == "glyphs" and run.task.shots == 1
    ]
    assert {other.folder for run in shown for other in run.references.values()} <= plain
    without = configuration(**{f"{TABLE}.series": {"median": median} | NOTHING})
    without["experiments"] = {
        "dp-fedmeta": without["experiments"]["dp-fedmeta"] | {"figures": {}}
    }
    without["experiments"]["dp-fedmeta"]["tables"] = {
        "table2": without["experiments"]["dp-fedmeta"]["tables"]["table2"]
    }
    alone = plan(without)
    assert {run.method for run in alone.runs.values()} == {"dp-agr", "maml"}
    assert len(alone.runs) == 2 * len(alone.items["dp-fedmeta", "table2"].runs)


SHAPES = {
    "reader": "image-folder",
    "options": {"folder": "shapes", "size": 28, "channels": 1, "test_images": 5},
}


def known(**changes: Any) -> dict[str, str]:
    found = Configuration.read(configuration(**{"datasets.shapes": SHAPES} | changes))
    return known_datasets(DATASETS_TABLE, found)


def test_data_sets_of_the_configuration_are_known_by_all_that_it_says() -> None:
    found = known()
    assert found["glyphs"] == "1"
    assert set(found) >= {
        *read_datasets(DATASETS_TABLE),
        "shapes",
    }
    assert known(**{"datasets.shapes.version": 2})["shapes"] != found["shapes"]
    assert "shapes" not in known(**{"datasets.shapes": None})


@pytest.mark.parametrize(
    ("preset", "shots"), [(None, [1, 5, 10]), ("paper", [1, 5, 10, 15, 20])]
)
def test_a_meta_model_is_trained_once_for_all_shots_of_the_test(
    preset: str | None, shots: list[int]
) -> None:
    """The meta-models of the initialisation figures are those of the tables, but for
    the pre-trained ones, and random ones that the table lacks.
    """
    found = planned(preset)
    anew = {"transfer", "dp-transfer"}
    for paper, name, table, others in (
        ("dp-fedmeta", "figure5", "table2", anew),
        ("dp-maml", "figure13b", "table3", anew | {"random"}),
    ):
        item = found.items[paper, name]
        first_seeds = [run for run in item.runs.values() if run.seed == 0]
        shared = found.items[paper, table].runs
        assert {run.method for run in first_seeds if run.folder not in shared} == others
        for folder in item.runs:
            tests = [test for place, test in item.tests.items() if place[0] == folder]
            assert sorted({test.task.shots for test in tests}) == shots
        assert {test.evaluation.steps for test in item.tests.values()} == {30}


def test_no_shipped_file_gives_a_key_twice():
    """YAML takes the last one without a word."""

    class Strict(yaml.CSafeLoader):
        pass

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if key.value != "<<"]
        assert len(names) == len(set(names)), (
            f"{node.start_mark}: {sorted({n for n in names if names.count(n) > 1})}"
        )
        loader.flatten_mapping(node)
        return loader.construct_mapping(node, deep=True)

    Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    files = [
        path
        for name in ("config", "profiles", "workflow")
        for path in CONFIG.with_name(name).rglob("*.yaml")
    ]
    assert len(files) > 8
    for path in files:
        yaml.load(path.read_bytes(), Strict)


@pytest.mark.parametrize("preset", [None, "real"])
def test_configurations_with_one_mechanism_have_one_audit(preset: str | None) -> None:
    made = planned(preset)
    audited_runs = made.audited_runs()
    first_seeds: list[Any] = [runs[0] for runs in made.private_runs().values()]
    folders = {run.folder for run in first_seeds}
    assert {audited_runs[folder] for folder in folders} < folders
    sections = ("method", "participation", "clipping", "noise", "budget", "within_task")
    for run in first_seeds:
        audited: Any = made.runs[audited_runs[run.folder]]
        for section in sections:
            assert getattr(run, section, None) == getattr(audited, section, None)
        assert run.clients.count == audited.clients.count
        records = [
            sum_ for sum_ in run.sums() if sum_.private and sum_.unit == "record"
        ]
        if records and run.client_data == "records":
            assert run.dataset == audited.dataset
            assert run.clients == audited.clients
        elif records:
            assert run.task.ways == audited.task.ways
            assert run.clients.support_per_class == audited.clients.support_per_class
        if any(sum_.noise.follows_loss for sum_ in records):
            assert run == audited  # the loss that the noise follows is the run's own


def test_a_preset_changes_its_own_papers_and_no_other() -> None:
    series = {"a": {"method": "maml"}, "b": {"method": "dp-agr"}}
    table = {"title": "t", "tasks": ["any"], "series": series}
    own = {
        "title": "Another",
        "tasks": {"any": {"dataset": "glyphs"}},
        "tables": {"one": table},
    }
    plain, *presets = (
        plan(configuration(preset) | {"experiments": {"another": own}})
        for preset in (None, "real", "paper")
    )
    for found in presets:
        assert list(found.runs) == list(plain.runs)


def test_variants_lie_below_a_series_own_overlay() -> None:
    found = configuration()
    paper = found["experiments"]["dp-fedmeta"]
    paper["variants"] |= {
        "one": {"noise": {"multiplier": 7}, "clipping": "constant"},
        "two": {"noise": {"multiplier": 8}},
    }
    paper["tables"]["table2"]["series"] = {
        "a": {"method": "dp-agr", "use": "one"},
        "b": {"method": "dp-agr", "use": ["one", "two"]},
        "c": {
            "method": "dp-agr",
            "use": ["one", "two"],
            "run": {"noise": {"multiplier": 9}},
        },
    }
    runs: list[Any] = [
        cell.runs[0] for cell in plan(found).items["dp-fedmeta", "table2"].cells[:3]
    ]
    assert [run.noise.multiplier for run in runs] == [7, 8, 9]
    assert {run.clipping.kind for run in runs} == {"constant"}
    assert {run.clipping.threshold for run in runs} == {0.5}


def test_a_plan_is_read_without_what_computes() -> None:
    """torch takes seconds to import, numba one: a dry run shall not wait for them."""
    code = (
        "import sys, yaml\nfrom pathlib import Path\nfrom"
        " dpfedbench.experiments.configuration import Configuration, overlaid\nfrom"
        " dpfedbench.experiments.expand import make_plan\nfolder ="
        f" Path({str(CONFIG)!r})\nfiles = [folder / 'config.yaml',"
        " *folder.glob('experiments/*.yaml')]\nconfiguration ="
        " overlaid(*(yaml.safe_load(file.read_text(encoding='utf-8')) for file in"
        " files))\nmake_plan(Configuration.read(configuration)).private_runs()\nprint([name"
        " for name in ('torch', 'numba', 'scipy', 'pandas') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr

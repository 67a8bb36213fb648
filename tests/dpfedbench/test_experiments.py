"""Experiments: the cells and runs that follow from the configuration."""

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpfedbench.config.merge import set_key
from dpfedbench.data import DATASETS_TABLE
from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import Configuration, overlaid
from dpfedbench.experiments.datasets import known_datasets, read_datasets, read_holdings
from dpfedbench.experiments.expand import make_plan
from dpfedbench.experiments.plan import Plan
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
    if preset:
        files.append(CONFIG / "presets" / f"{preset}.yaml")
    values = overlaid(*map(parsed, files))
    for key, value in changes.items():
        values = set_key(values, key, value)
    return values


@functools.cache
def planned(preset: str | None = None) -> Plan:
    """Return the plan of a shipped configuration. It is made once for all tests."""
    return plan(configuration(preset))


def plan(values: dict[str, Any]) -> Plan:
    configuration = Configuration.read(values)
    return make_plan(
        configuration,
        datasets=known_datasets(DATASETS_TABLE, configuration),
        holdings=read_holdings(DATASETS_TABLE),
    )


def refusal(values: dict[str, Any]) -> str:
    with pytest.raises(BenchError) as caught:
        plan(values)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_plan_has_a_run_of_two_items_once() -> None:
    shipped = planned()
    table = shipped.items["dp-fedmeta", "table2"]
    figure = shipped.items["dp-fedmeta", "figure4b"]
    shared = set(table.runs) & set(figure.runs)
    # Figure 4b at z = 1 and Table 2 have the DP-AGR runs of 5-way 1-shot in common.
    assert {shipped.runs[folder].method for folder in shared} == {"dp-agr"}
    assert len(shared) == len(figure.cells[0].runs)
    runs_of_items = [folder for item in shipped.items.values() for folder in item.runs]
    references = {
        reference.folder
        for run in shipped.runs.values()
        for reference in run.references.values()
    }
    assert set(shipped.runs) == set(runs_of_items) | references
    assert len(shipped.runs) < len(runs_of_items)


def test_configuration_layers_lie_in_order() -> None:
    """run < paper < task < method's defaults < methods < the paper's methods < cell.

    The test sets the layers one by one, and each time sees the last one.
    """
    values = configuration()
    values["experiments"] = {"dp-fedmeta": values["experiments"]["dp-fedmeta"]}
    key = "clipping.threshold"

    def threshold() -> float:
        run: Any = plan(values).items["dp-fedmeta", "table2"].cells[2].runs[0]
        return float(run.clipping.threshold)

    sections = [
        "run",
        "experiments.dp-fedmeta.run",
        "experiments.dp-fedmeta.tasks.omniglot-1shot",
        "methods.dp-agr",
        "experiments.dp-fedmeta.methods.dp-agr",
        f"{TABLE}.series.dp-agr.run",
    ]
    for level, section in enumerate(sections, start=1):
        values = set_key(values, f"{section}.{key}", float(level))
        assert threshold() == level
    values["run"]["clipping"]["threshold"] = 9.0
    run = plan(values).items["dp-fedmeta", "table2"].cells[1].runs[0]
    assert run.method == "maml"
    assert not hasattr(run, "clipping")


def test_stand_in_data_is_never_comparable() -> None:
    cell = planned().items["dp-fedmeta", "table2"].cells[0]
    assert cell.runs[0].dataset == "glyphs"
    assert cell.published_dataset == "omniglot"
    assert cell.mismatch == "published on omniglot, measured on glyphs"


def test_real_data_is_comparable_at_the_published_scale_alone() -> None:
    """An untrained method is comparable at any scale. MAML's batch is 8 (DP-MAML,
    Table 4).
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


def test_paper_preset_has_the_published_scale() -> None:
    cells = planned("paper").items["dp-fedmeta", "table2"].cells
    assert len(cells) == 6 * 5
    runs: list[Any] = [run for cell in cells for run in cell.runs]
    for run in runs:
        assert run.clients.count == 400_000
        if run.method == "random":
            continue
        # MAML's batch is 8 (DP-MAML, Table 4), over the same clients.
        is_maml = run.method == "maml"
        assert run.participation.cohort == (8 if is_maml else 1_600)
        assert run.participation.rounds == (50_000 if is_maml else 250)
    datasets = {cell.runs[0].dataset for cell in cells}
    assert datasets == {"omniglot", "cifar-fs", "mini-imagenet"}


def test_scale_preset_has_the_published_number_of_clients() -> None:
    item = planned("scale").items["dp-fedmeta", "table2"]
    cells = {cell.series: cell for cell in item.cells}
    assert set(cells) == {"maml", "maml-ensemble", "dp-agr", "balls-and-bins"}
    assert {cell.mismatch for cell in cells.values()} == {""}
    runs: dict[str, Any] = {name: cell.runs[0] for name, cell in cells.items()}
    for name, run in runs.items():
        assert run.dataset == "omniglot"
        assert run.clients.count == 400_000
        is_maml = name.startswith("maml")
        assert run.participation.cohort == (8 if is_maml else 1_600)
        assert run.participation.rounds == (50_000 if is_maml else 250)
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
def test_experiment_budgets_have_room_for_a_round(preset: str | None) -> None:
    """Noise whose first round spends more than the budget would stop the workflow."""
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


def test_swept_value_comes_with_the_values_of_also() -> None:
    cells = planned().items["dp-maml", "figure6b"].cells
    plans = [cell.runs[0].participation for cell in cells]
    assert [plan.cohort for plan in plans] == [30, 100, 300]
    assert [plan.rounds for plan in plans] == [50, 15, 5]
    values = configuration(**{"experiments.dp-maml.figures.figure6b.x.also": [{}]})
    assert (
        refusal(values)
        == "experiments.dp-maml.figures.figure6b.x.also has 1 overlays for 3 values:"
        " give one for each, in their order"
    )


def test_figure_of_accounts_needs_no_run() -> None:
    shipped = planned()
    item = shipped.items["dp-maml", "figure12"]
    swept = len(item.spec["x"]["values"]) * len(item.spec["series"])
    assert item.kind == "account"
    assert not item.runs
    assert len(item.cells) == swept
    records = item.cell_records()
    first = records[0]
    assert first["run"] is None
    assert first["mechanism"]["noise_multiplier"] == 1.0
    assert first["mechanism"]["sampler"]["rate"] == 1600 / 380800
    # The published threshold reads raw norms; a private quantile does not.
    counted = {record["series"]: record["mechanism"]["counted"] for record in records}
    assert counted == {
        "claimed": False,
        "published": False,
        "quantile": True,
        "secret": True,
    }
    keys = {folder.split("/")[-1] for folder in shipped.private_runs()}
    assert not keys & {cell.runs[0].key for cell in item.cells}
    values = configuration()
    figure = values["experiments"]["dp-maml"]["figures"]["figure12"]
    del figure["series"]["claimed"]["epsilon"]
    assert (
        refusal(values) == "experiments.dp-maml.figures.figure12.series.claimed needs"
        " profile and epsilon: a figure of accounts shows delta"
    )


def test_sweep_repeats_each_series_except_those_with_sweep_false() -> None:
    values = configuration(**{f"{FIGURE}.x.values": [20, 40]})
    values["experiments"]["dp-fedmeta"]["figures"]["figure4a"]["series"] = {
        "adaptive": {"method": "dp-agr"},
        "constant": {
            "method": "dp-agr",
            "run": {"clipping": {"kind": "constant"}},
            "sweep": False,
        },
    }
    cells = plan(values).items["dp-fedmeta", "figure4a"].cells
    assert [(cell.series, cell.x, cell.variant) for cell in cells] == [
        ("adaptive", 20.0, "k=20"),
        ("adaptive", 40.0, "k=40"),
        ("constant", None, ""),
    ]
    assert [cell.runs[0].clipping.percentile for cell in cells[:2]] == [20.0, 40.0]  # type: ignore[attr-defined]


def test_null_leaves_out_a_series_an_item_and_a_paper() -> None:
    changes = {f"{TABLE}.series.random": None, FIGURE: None}
    changed = plan(configuration(**changes))
    assert ("dp-fedmeta", "figure4a") not in changed.items
    cells = changed.items["dp-fedmeta", "table2"].cells
    assert {cell.series for cell in cells} == {"maml", "dp-agr", "dp-agrlr", "gbml"}
    without = plan(configuration(**{"experiments.dp-fedmeta": None}))
    papers = configuration()["experiments"]
    assert {paper for paper, _ in without.items} == set(papers) - {"dp-fedmeta"}
    nothing = configuration(**{f"experiments.{paper}": None for paper in papers})
    assert "no table or figure left" in refusal(nothing)


def test_new_paper_shares_the_runs_of_others() -> None:
    """A paper is one experiment file. Its runs are those of earlier papers."""
    series = {"a": {"method": "dp-agr"}}
    paper = {
        "title": "Another",
        "tasks": {"any": {"dataset": "omniglot", "evaluation": {"tasks": 100}}},
        "tables": {"table1": {"title": "t", "tasks": ["any"], "series": series}},
    }
    changed = plan(configuration(**{"experiments.another": paper}))
    runs = set(changed.items["another", "table1"].runs)
    assert runs <= set(changed.items["dp-fedmeta", "table2"].runs)


def test_median_of_run_shares_its_reference_run() -> None:
    """The threshold is the median norm of a run without privacy with the same cohorts.

    Figure 2b has such a run. Without the figure the plan gets one more run.
    """
    median = {
        "method": "dp-agr",
        "run": {"clipping": {"kind": "median-of-run", "threshold": None}},
    }
    changed = plan(configuration(**{f"{TABLE}.series.median": median}))
    figure_runs = {
        run.folder
        for cell in changed.items["dp-fedmeta", "figure2b"].cells
        if cell.series == "maml"
        for run in cell.runs
    }
    references = {
        reference.folder
        for cell in changed.items["dp-fedmeta", "table2"].cells
        for run in cell.runs
        if cell.series == "median" and run.dataset == "glyphs" and run.task.shots == 1
        for reference in run.references.values()
    }
    assert references <= figure_runs
    values = configuration(**{f"{TABLE}.series": {"median": median} | NOTHING})
    paper = values["experiments"]["dp-fedmeta"]
    paper["figures"] = {}
    paper["tables"] = {"table2": paper["tables"]["table2"]}
    values["experiments"] = {"dp-fedmeta": paper}
    alone = plan(values)
    assert {run.method for run in alone.runs.values()} == {"dp-agr", "maml"}
    assert len(alone.runs) == 2 * len(alone.items["dp-fedmeta", "table2"].runs)


SHAPES = {
    "reader": "image-folder",
    "options": {
        "folder": "shapes",
        "size": 28,
        "channels": 1,
        "test_images": 5,
    },
}


def known(**changes: Any) -> dict[str, str]:
    values = configuration(**{"datasets.shapes": SHAPES} | changes)
    return known_datasets(DATASETS_TABLE, Configuration.read(values))


def test_data_set_version_follows_from_all_its_settings() -> None:
    versions = known()
    assert versions["glyphs"] == "1"
    assert set(versions) >= {*read_datasets(DATASETS_TABLE), "shapes"}
    assert known(**{"datasets.shapes.version": 2})["shapes"] != versions["shapes"]
    assert "shapes" not in known(**{"datasets.shapes": None})


@pytest.mark.parametrize(
    ("preset", "shots"), [(None, [1, 5, 10]), ("paper", [1, 5, 10, 15, 20])]
)
def test_meta_model_is_trained_once_for_all_shots_of_the_meta_test(
    preset: str | None, shots: list[int]
) -> None:
    """The initialisation figures use the meta-models of the tables.

    Only pre-trained models, and random ones that the table lacks, are further runs.
    """
    shipped = planned(preset)
    pretrained = {"transfer", "dp-transfer"}
    for paper, figure, table, further in (
        ("dp-fedmeta", "figure5", "table2", pretrained),
        ("dp-maml", "figure13b", "table3", pretrained | {"random"}),
    ):
        item = shipped.items[paper, figure]
        shared = shipped.items[paper, table].runs
        unshared = [run for run in item.runs.values() if run.folder not in shared]
        assert {run.method for run in unshared if run.seed == 0} == further
        for folder in item.runs:
            tests = [test for key, test in item.tests.items() if key[0] == folder]
            assert sorted({test.task.shots for test in tests}) == shots
        assert {test.evaluation.steps for test in item.tests.values()} == {30}


def test_shipped_files_have_no_duplicate_keys():
    """A YAML reader takes the last value of a duplicate key, without a warning."""

    class Strict(yaml.CSafeLoader):
        pass

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if key.value != "<<"]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        assert not duplicates, f"{node.start_mark}: {duplicates}"
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
def test_audit_is_shared_by_configurations_of_one_mechanism(preset: str | None) -> None:
    shipped = planned(preset)
    audited_runs = shipped.audited_runs()
    first_seeds: list[Any] = [runs[0] for runs in shipped.private_runs().values()]
    folders = {run.folder for run in first_seeds}
    assert {audited_runs[folder] for folder in folders} < folders
    sections = ("method", "participation", "clipping", "noise", "budget", "within_task")
    for run in first_seeds:
        audited: Any = shipped.runs[audited_runs[run.folder]]
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
            # The noise follows the loss of its run, so another run has other noise.
            assert run == audited


@pytest.mark.parametrize("preset", ["real", "paper"])
def test_preset_leaves_experiments_of_users_unchanged(preset: str) -> None:
    series = {"a": {"method": "maml"}, "b": {"method": "dp-agr"}}
    table = {"title": "t", "tasks": ["any"], "series": series}
    experiment = {
        "title": "Another",
        "tasks": {"any": {"dataset": "glyphs"}},
        "tables": {"one": table},
    }
    experiments = {"experiments": {"another": experiment}}
    plain = plan(configuration() | experiments)
    assert list(plan(configuration(preset) | experiments).runs) == list(plain.runs)


def test_variants_lie_below_the_overlay_of_a_series() -> None:
    values = configuration()
    paper = values["experiments"]["dp-fedmeta"]
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
    cells = plan(values).items["dp-fedmeta", "table2"].cells[:3]
    runs: list[Any] = [cell.runs[0] for cell in cells]
    assert [run.noise.multiplier for run in runs] == [7, 8, 9]
    assert {run.clipping.kind for run in runs} == {"constant"}
    assert {run.clipping.threshold for run in runs} == {0.5}


PRINT_HEAVY_IMPORTS = """
import sys
from pathlib import Path
import yaml
from dpfedbench.experiments.configuration import Configuration, overlaid
from dpfedbench.experiments.expand import make_plan
folder = Path(sys.argv[1])
files = [folder / "config.yaml", *folder.glob("experiments/*.yaml")]
values = overlaid(*(yaml.safe_load(file.read_text(encoding="utf-8")) for file in files))
make_plan(Configuration.read(values)).private_runs()
heavy = ("torch", "numba", "scipy", "pandas")
print([name for name in heavy if name in sys.modules])
"""


def test_plan_imports_no_heavy_library() -> None:
    """torch takes seconds to import, and numba one. A dry run must not wait for them."""
    done = subprocess.run(
        [sys.executable, "-c", PRINT_HEAVY_IMPORTS, str(CONFIG)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr

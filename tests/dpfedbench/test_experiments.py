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
from dpfedbench.experiments.plan import Plan, audited_as
from dpfedbench.settings.layers import set_key
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
    table, read = DATASETS_TABLE, Configuration.read(found)
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
    table, figure = (
        found.items["dp-fedmeta", "table2"],
        found.items["dp-fedmeta", "figure4b"],
    )
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
    assert run.method == "maml" and not hasattr(run, "clipping")


def test_a_stand_in_is_named_as_itself_and_never_comparable() -> None:
    cell = planned().items["dp-fedmeta", "table2"].cells[0]
    assert cell.runs[0].dataset == "glyphs" and cell.published_dataset == "omniglot"
    assert cell.mismatch == "published on omniglot, measured on glyphs"


def test_real_data_at_another_scale_is_not_comparable_and_at_the_published_scale_is() -> (
    None
):
    agr = next(
        c
        for c in planned("real").items["dp-fedmeta", "table2"].cells
        if c.series == "dp-agr"
    )
    assert agr.mismatch == "clients.count 400,000 at the published scale, 16,000 here"
    for cell in planned("paper").items["dp-fedmeta", "table2"].cells:
        assert cell.mismatch == ""


def test_an_untrained_method_is_comparable_at_any_scale() -> None:
    cells = planned("real").items["dp-fedmeta", "table2"].cells
    assert next(cell for cell in cells if cell.series == "random").mismatch == ""


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


def test_maml_is_comparable_at_its_own_batch() -> None:
    """DP-MAML's Table 4 has a batch of 8; the lot of 1,600 is of the private rows."""
    for preset, comparable in (("paper", True), ("real", False)):
        cells = planned(preset).items["dp-maml", "table3"].cells
        maml = [cell for cell in cells if cell.series == "maml"]
        assert maml and all((cell.mismatch == "") is comparable for cell in maml)


def test_the_scale_preset_is_the_published_number_of_clients_and_nothing_else() -> None:
    found = planned("scale")
    named = yaml.safe_load(
        (Path(__file__).parents[2] / "config/presets/scale.yaml").read_text(
            encoding="utf-8"
        )
    )["experiments"]
    assert [item for item in found.items if item[0] in named] == [
        ("dp-fedmeta", "table2")
    ]
    cells = {cell.series: cell for cell in found.items["dp-fedmeta", "table2"].cells}
    assert list(cells) == ["maml", "dp-agr", "balls-and-bins"]
    runs: dict[str, Any] = {name: cell.runs[0] for name, cell in cells.items()}
    assert len({run.folder for run in runs.values()}) == 3 and {
        run.dataset for run in runs.values()
    } == {"omniglot"}
    for name, run in runs.items():
        cohort, rounds = (8, 50_000) if name == "maml" else (1_600, 250)
        assert (
            run.clients.count,
            run.participation.cohort,
            run.participation.rounds,
        ) == (400_000, cohort, rounds)
        assert (
            run.model.filters,
            run.client_update.inner_steps,
            run.client_update.order,
        ) == (32, 2, 2)
    assert (
        runs["dp-agr"].noise.multiplier == 1.0 and runs["dp-agr"].budget.epsilon is None
    )
    repair = runs["balls-and-bins"]
    assert (
        cells["balls-and-bins"].repairs == "dp-agr"
        and repair.participation.kind == "balls-and-bins"
    )
    assert (repair.noise.multiplier, repair.budget.epsilon, repair.budget.profile) == (
        None,
        1.5,
        "holds",
    )
    assert all(cell.mismatch == "" for cell in cells.values())


@pytest.mark.parametrize("preset", [None, "smoke", "real", "paper"])
def test_every_preset_has_the_items_of_its_papers(preset: str | None) -> None:
    items = set(planned(preset).items)
    wanted = {
        ("dp-fedmeta", name)
        for name in (
            "table2",
            "table3-time",
            "repairs",
            "figure2b",
            "figure4a",
            "figure4b",
        )
    }
    wanted |= {("dp-maml", name) for name in ("table3", "figure6a", "figure12")}
    wanted |= {("adap-dp-fl", name) for name in ("accuracy-b", "figure4d", "figure6b")}
    if preset != "smoke":
        wanted |= {("dp-fedmeta", name) for name in ("figure3", "figure4c", "figure4d")}
        wanted |= {
            ("dp-maml", name)
            for name in (
                "repairs",
                "figure4",
                "figure6b",
                "figure9",
                "figure10",
                "figure11",
            )
        }
        wanted |= {("dp-maml", "figure13"), ("adap-dp-fl", "figure1b")}
    assert wanted <= items
    # MNIST is not at hand where real data is wanted from a folder of its own, and no
    # colour but Tiny-ImageNet.
    assert (("adap-dp-fl", "accuracy-a") in items) == (preset in (None, "paper"))
    assert (("dp-fedmeta", "figure5") in items) == (preset in (None, "paper"))
    assert (("dp-fedmeta", "readings") in items) == (preset in ("real", "paper"))


@pytest.mark.parametrize("preset", [None, "smoke", "real", "paper"])
def test_every_new_rule_and_schedule_is_run(preset: str | None) -> None:
    runs: list[Any] = [run for run in planned(preset).runs.values() if run.trained]
    assert {"median-of-run", "percentile-of-raw-norms", "private-quantile"} <= {
        run.clipping.kind for run in runs if hasattr(run, "clipping")
    }
    assert {"constant", "cosine"} <= {
        run.server.schedule.kind for run in runs if hasattr(run.server, "schedule")
    }


@pytest.mark.parametrize("preset", [None, "smoke", "real", "scale", "paper"])
def test_a_budget_of_an_experiment_has_room_for_a_round(preset: str | None) -> None:
    """A configured noise that the first round is claimed to overspend would stop the
    whole workflow while training.
    """
    checked = {}
    for run in planned(preset).runs.values():
        server = run.sums()[-1] if run.sums() else None
        if (
            server is None
            or server.budget is None
            or server.budget.epsilon is None
            or server.noise is None
        ):
            continue
        budget, z, given = server.budget, server.noise.multiplier, run.participation  # type: ignore[attr-defined]
        if z is None:
            continue
        sampler = {
            "kind": given.kind,
            "clients": run.clients.count,
            "cohort": given.cohort,
            "rounds": given.rounds,
            "rate": given.cohort / run.clients.count,
        }
        asked = (budget.profile, sampler["rate"], z, budget.delta, budget.epsilon)
        if asked not in checked:
            spent = epsilon_after(
                budget.profile, sampler, z, 1, budget.delta, claims=run.claims
            )
            checked[asked] = spent <= budget.epsilon
        assert checked[asked], run.folder
    assert checked or preset in ("smoke", "scale")


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
    assert item.kind == "account" and not item.runs and len(item.cells) == swept
    records = item.cell_records()
    first = records[0]
    assert first["run"] is None and first["mechanism"]["noise_multiplier"] == 1.0
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


def test_some_tasks_of_a_table_may_have_other_seeds() -> None:
    cells = planned().items["dp-fedmeta", "table2"].cells
    assert {
        (cell.published_dataset, cell.runs[0].task.shots): len(cell.runs)
        for cell in cells
    } == {
        ("omniglot", 1): 3,
        ("omniglot", 5): 1,
        ("cifar-fs", 1): 1,
        ("cifar-fs", 5): 1,
        ("mini-imagenet", 1): 1,
    }


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


def test_rows_that_would_have_one_name_have_their_own() -> None:
    table = {"title": "Mine", "tasks": ["a"], "seeds": [0]}
    table["series"] = {
        "maml": {"method": "maml"},
        "plain": {"method": "dp-agr"},
        "fast": {
            "method": "dp-agr",
            "label": "rate 0.1",
            "run": {"server": {"rate": 0.1}},
        },
        "named": {
            "method": "dp-agr",
            "variant": "slow",
            "run": {"server": {"rate": 0.001}},
        },
    }
    mine = {
        "title": "Mine",
        "run": {"dataset": "glyphs"},
        "tasks": {"a": {}},
        "tables": {"t": table},
    }
    found = plan(configuration() | {"experiments": {"mine": mine}})
    variants = {cell.series: cell.variant for cell in found.items["mine", "t"].cells}
    assert variants == {
        "maml": "",
        "plain": "plain",
        "fast": "rate 0.1",
        "named": "slow",
    }


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


def test_a_bad_cell_names_its_place() -> None:
    message = refusal(configuration(**{f"{FIGURE}.x.values": [50, 120]}))
    assert message.startswith("clipping.percentile is 120")
    assert message.endswith(
        f"[in {FIGURE}, task omniglot-1shot, series adaptive at clipping.percentile"
        " 120]"
    )


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
    assert found["glyphs"] == "1" and set(found) >= {
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
    the pre-trained ones.
    """
    found = planned(preset)
    for paper, name, table, random in (
        ("dp-fedmeta", "figure5", "table2", True),
        ("dp-maml", "figure13a", "table3", False),
        ("dp-maml", "figure13b", "table3", False),
    ):
        item = found.items[paper, name]
        trained = {
            run.method: folder for folder, run in item.runs.items() if run.seed == 0
        }
        named = {series["method"] for series in item.spec["series"].values()}
        assert set(trained) == named
        anew = {
            folder
            for folder in trained.values()
            if folder not in found.items[paper, table].runs
        }
        others = {"transfer", "dp-transfer"} | (set() if random else {"random"})
        assert anew == {trained[method] for method in others}
        for folder in item.runs:
            assert (
                list(
                    dict.fromkeys(
                        test.task.shots
                        for place, test in item.tests.items()
                        if place[0] == folder
                    )
                )
                == shots
            )
        assert {test.evaluation.steps for test in item.tests.values()} == {30}
    of_papers = [
        found.items[place].runs
        for place in (("dp-fedmeta", "figure5"), ("dp-maml", "figure13b"))
    ]
    assert {run.method for run in of_papers[0].values()} & {
        "transfer",
        "dp-transfer",
        "random",
    } == {run.method for folder, run in of_papers[1].items() if folder in of_papers[0]}


def test_a_test_of_the_runs_own_is_none_besides_and_its_keys_are_checked() -> None:
    given = configuration()
    where = "experiments.dp-fedmeta.figures.figure5"
    own = given["experiments"]["dp-fedmeta"]["tasks"]["cifar-fs-1shot"]["evaluation"][
        "tasks"
    ]
    same = set_key(
        set_key(given, f"{where}.test", {"steps": 5, "tasks": own}),
        f"{where}.x.values",
        [1],
    )
    series = {
        name: None
        for name in same["experiments"]["dp-fedmeta"]["figures"]["figure5"]["series"]
    }
    same = set_key(same, f"{where}.series", series | {"maml": {"method": "maml"}})
    record = plan(same).items["dp-fedmeta", "figure5"].cell_records()[0]
    assert record["test"] == ""
    with pytest.raises(
        BenchError,
        match=r"unknown key experiments\.dp-fedmeta\.figures\.figure5\.test\.shot",
    ):
        plan(set_key(given, f"{where}.x.key", "test.shot"))
    with pytest.raises(
        BenchError,
        match=r"figure5\.test\.shots is 0",
    ):
        plan(set_key(given, f"{where}.x.values", [0]))


def test_no_shipped_file_gives_a_key_twice():
    """YAML takes the last one without a word."""

    class Strict(yaml.SafeLoader):
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
        yaml.load(path.read_text(encoding="utf-8"), Strict)


@pytest.mark.parametrize("preset", [None, "real"])
def test_configurations_with_one_mechanism_have_one_audit(preset: str | None) -> None:
    made = planned(preset)
    audited_runs = made.audited_runs()
    first_seeds = [runs[0] for runs in made.private_runs().values()]
    assert {audited_runs[run.folder] for run in first_seeds} < {
        run.folder for run in first_seeds
    }
    for own in first_seeds:  # type: Any
        other: Any = made.runs[audited_runs[own.folder]]
        for section in (
            "method",
            "participation",
            "clipping",
            "noise",
            "budget",
            "within_task",
        ):
            assert getattr(own, section, None) == getattr(other, section, None)
        assert own.clients.count == other.clients.count
        records = [
            sum_ for sum_ in own.sums() if sum_.private and sum_.unit == "record"
        ]
        if records:
            assert own.task.ways == other.task.ways
            assert own.clients.support_per_class == other.clients.support_per_class
            assert getattr(own.client_update, "inner_steps", 1) == getattr(
                other.client_update, "inner_steps", 1
            )
        if records and own.client_data == "records":
            assert (own.dataset, own.clients) == (other.dataset, other.clients)
        if any(sum_.noise.follows_loss for sum_ in records):
            assert own == other  # the loss that the noise follows is the run's own


def test_what_is_in_a_mechanism() -> None:
    runs: list[Any] = list(planned().runs.values())
    run = next(
        run for run in runs if run.method == "dp-agr" and run.noise.multiplier == 1
    )
    assert audited_as(
        run.replace(seed=9, model=run.model.replace(filters=7))
    ) == audited_as(run)
    for changed in (
        run.replace(noise=run.noise.replace(multiplier=2.0)),
        run.replace(clipping=run.clipping.replace(threshold=0.123)),
        run.replace(budget=run.budget.replace(delta=1e-7)),
    ):
        assert audited_as(changed) != audited_as(run)


def test_what_is_said_to_all_is_left_out_where_it_does_not_fit() -> None:
    found = plan(
        configuration(
            **{
                "run.clipping": {
                    "kind": "noised-mean-norm",
                    "factor": 3.0,
                    "threshold": 0.3,
                }
            }
        )
    )
    run: Any = next(
        cell
        for cell in found.items["dp-fedmeta", "table2"].cells
        if cell.series == "dp-agr"
    ).runs[0]
    assert (
        run.clipping.plain()["threshold"] == 0.3
        and run.clipping.kind == "percentile-of-releases"
    )


def test_a_preset_changes_its_own_papers_and_no_other() -> None:
    own = {
        "title": "Another",
        "tasks": {"any": {"dataset": "glyphs"}},
        "tables": {
            "one": {
                "title": "t",
                "tasks": ["any"],
                "series": {"a": {"method": "maml"}, "b": {"method": "dp-agr"}},
            }
        },
    }
    plain = plan(configuration(**{"experiments.another": own})).items["another", "one"]
    for preset in ("real", "paper"):
        found = plan(configuration(preset, **{"experiments.another": own}))
        assert list(found.items["another", "one"].runs) == list(plain.runs)


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
    assert {run.clipping.kind for run in runs} == {"constant"} and {
        run.clipping.threshold for run in runs
    } == {0.5}


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


def test_which_run_belongs_to_which_cell() -> None:
    found = planned()
    records = found.cell_records()
    rows = [
        (record["paper"], record["item"], record["series"], record["x"], record["run"])
        for record in records
    ]
    assert {run for *_, run in rows} <= set(found.runs) and len(rows) == len(set(rows))
    of_table = found.items["dp-fedmeta", "table2"].cells[2].runs[0].folder
    shown = [cell for *cell, run in rows if run == of_table]
    assert ["dp-fedmeta", "table2", "dp-agr", None] in shown
    assert ["dp-fedmeta", "figure4b", "dp-agr", 1.0] in shown
    assert not any(row[1] == "figure12" for row in rows)

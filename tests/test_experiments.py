"""Experiments: from the configuration to cells and runs."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpfedbench import methods
from dpfedbench.accounting.calibration import epsilon_after
from dpfedbench.config import merge, set_key
from dpfedbench.errors import BenchError
from dpfedbench.experiments import Plan, audited_as, known_datasets, make_plan, read_datasets
from dpfedbench.federation.composition import CLAIMS_OF_TODAY
from dpfedbench.federation.participation import make_participation

CONFIG = Path(__file__).resolve().parents[1] / "config"
METHODS: dict[str, dict[str, Any]] = {name: method.DEFAULTS for name, method in methods.METHODS.items()}
TABLE = "experiments.dp-fedmeta.tables.table2"
NOTHING: dict[str, Any] = dict.fromkeys(("random", "maml", "dp-agr", "dp-agrlr", "gbml"))
FIGURE = "experiments.dp-fedmeta.figures.figure4a"


def configuration(preset: str | None = None, /, **changes: Any) -> dict[str, Any]:
    files = [CONFIG / "config.yaml", *sorted((CONFIG / "experiments").glob("*.yaml"))]
    files += [CONFIG / "presets" / f"{preset}.yaml"] if preset else []
    found = merge(*(yaml.safe_load(path.read_text(encoding="utf-8")) for path in files))
    for key, value in changes.items():
        found = set_key(found, key, value)
    return found


def plan(found: dict[str, Any]) -> Plan:
    return make_plan(found, method_defaults=METHODS, datasets=read_datasets(CONFIG / "datasets.tsv"))


def refusal(found: dict[str, Any]) -> str:
    with pytest.raises(BenchError) as caught:
        plan(found)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_run_that_two_items_need_exists_once() -> None:
    found = plan(configuration())
    table, figure = found.items["dp-fedmeta", "table2"], found.items["dp-fedmeta", "figure4b"]
    shared = set(table.runs) & set(figure.runs)
    # Figure 4b at z = 1 and Table 2 have the DP-AGR runs of 5-way 1-shot in common.
    assert {found.runs[folder].method for folder in shared} == {"dp-agr"}
    assert len(shared) == len(figure.cells[0].runs)
    assert len(found.runs) == len({folder for item in found.items.values() for folder in item.runs})
    assert len(found.runs) < sum(len(item.runs) for item in found.items.values())


def test_layers_lie_in_order() -> None:
    """run < paper < task < method's defaults < methods < cell; each is seen where nothing lies over it."""
    found = configuration()
    key = "clipping.threshold"

    def threshold() -> float:
        run = plan(found).items["dp-fedmeta", "table2"].cells[2].runs[0]
        assert run.clipping is not None
        return run.clipping.threshold

    places = [
        "run",
        "experiments.dp-fedmeta.run",
        "experiments.dp-fedmeta.tasks.omniglot-1shot",
        "methods.dp-agr",
    ]
    for level, place in enumerate([*places, f"{TABLE}.series.dp-agr.run"], start=1):
        found = set_key(found, f"{place}.{key}", float(level))
        assert threshold() == level
    run = plan(configuration(**{"run.clipping.threshold": 9.0})).items["dp-fedmeta", "table2"].cells[1].runs[0]
    assert run.method == "maml" and run.clipping is None


def test_a_stand_in_is_named_as_itself_and_never_comparable() -> None:
    cell = plan(configuration()).items["dp-fedmeta", "table2"].cells[0]
    assert cell.runs[0].dataset == "glyphs" and cell.published_dataset == "omniglot"
    assert cell.mismatch == "published on omniglot, measured on glyphs"


def test_real_data_at_another_scale_is_not_comparable_and_at_the_published_scale_is() -> None:
    agr = next(c for c in plan(configuration("real")).items["dp-fedmeta", "table2"].cells if c.series == "dp-agr")
    assert agr.mismatch == "clients.count 400,000 at the published scale, 16,000 here"
    for cell in plan(configuration("paper")).items["dp-fedmeta", "table2"].cells:
        assert cell.mismatch == ""


def test_an_untrained_method_is_comparable_at_any_scale() -> None:
    cells = plan(configuration("real")).items["dp-fedmeta", "table2"].cells
    assert next(cell for cell in cells if cell.series == "random").mismatch == ""


def test_the_paper_preset_is_the_published_scale() -> None:
    found = plan(configuration("paper"))
    cells = found.items["dp-fedmeta", "table2"].cells
    assert len(cells) == 6 * 5
    for cell in cells:
        for run in cell.runs:
            sizes = (run.clients.count, run.participation.cohort)
            assert sizes == (400_000, 1_600)
            if run.method != "random":
                assert run.participation.rounds == 250
    assert {cell.runs[0].dataset for cell in cells} == {"omniglot", "cifar-fs", "mini-imagenet"}


@pytest.mark.parametrize("preset", [None, "smoke", "real", "paper"])
def test_every_preset_has_every_item(preset: str | None) -> None:
    items = plan(configuration(preset)).items
    of_fedmeta = {"table2", "table3-time", "repairs", "figure2b", "figure4a", "figure4b"}
    of_maml = {"table3", "figure6a", "figure9", "figure12"}
    if preset != "smoke":
        of_fedmeta |= {"figure3", "figure4c", "figure4d"}
        of_fedmeta |= {"figure5"} if preset != "real" else {"readings", "table2-colour"}
        of_maml |= {"figure13"} | ({"figure13a", "figure13b"} if preset != "real" else set())
        of_maml |= {
            "repairs",
            "table4-time",
            "figure4",
            "figure6b",
            "figure6c",
            "figure7a",
            "figure7b",
            "figure10",
            "figure11",
        }
    assert {name for paper, name in items if paper == "dp-fedmeta"} == of_fedmeta
    assert {name for paper, name in items if paper == "dp-maml"} == of_maml
    of_adap = {name for paper, name in items if paper == "adap-dp-fl"}
    wanted = (
        {"figure1b", "figure4d", "figure6b"}
        if preset == "smoke"
        else {"figure1b", "figure6b"} | {f"figure{number}{letter}" for number in (3, 4, 5) for letter in "cd"}
    )
    assert of_adap >= {"accuracy-b"} | wanted
    # MNIST is not at hand where real data is wanted from a folder of its own.
    assert ({"accuracy-a", "figure1a", "figure3a"} <= of_adap) == (preset in (None, "paper"))


@pytest.mark.parametrize("preset", [None, "smoke", "real", "paper"])
def test_every_new_rule_and_schedule_is_run(preset: str | None) -> None:
    runs = plan(configuration(preset)).runs.values()
    assert {"median-of-run", "percentile-of-raw-norms", "private-quantile"} <= {
        run.clipping.rule for run in runs if run.clipping
    }
    assert {"constant", "cosine"} <= {run.server.schedule for run in runs}


@pytest.mark.parametrize("preset", [None, "smoke", "real", "paper"])
def test_a_budget_of_an_experiment_has_room_for_a_round(preset: str | None) -> None:
    """A configured noise that the first round is claimed to overspend would stop the whole workflow while training."""
    checked = {}
    for run in plan(configuration(preset)).runs.values():
        if run.budget is None or run.noise is None or run.budget.epsilon is None or run.noise.multiplier is None:
            continue
        if run.by_record:
            continue
        sampler = make_participation(
            run.participation.kind, clients=run.clients.count, cohort=run.participation.cohort,
            rounds=run.participation.rounds, seed=0,
        ).describe()  # fmt: skip
        given = (run.budget.profile, sampler["rate"], run.noise.multiplier, run.budget.delta, run.budget.epsilon)
        if given not in checked:
            checked[given] = epsilon_after(given[0], sampler, given[2], 1, given[3], claims=CLAIMS_OF_TODAY) <= given[4]
        assert checked[given], run.folder


def test_what_has_to_change_with_a_swept_value_changes_with_it() -> None:
    cells = plan(configuration()).items["dp-maml", "figure6b"].cells
    sizes = [(cell.runs[0].participation.cohort, cell.runs[0].participation.rounds) for cell in cells]
    assert sizes == [(30, 50), (100, 15), (300, 5)]
    found = configuration(**{"experiments.dp-maml.figures.figure6b.x.with": [{}]})
    assert refusal(found) == (
        "experiments.dp-maml.figures.figure6b.x.with has 1 overlays for 3 values: give one for each, in their order"
    )


def test_a_figure_of_accounts_needs_no_run() -> None:
    found = plan(configuration())
    item = found.items["dp-maml", "figure12"]
    assert item.kind == "account" and not item.runs and len(item.cells) == 24
    cells = item.describe(dict.fromkeys(METHODS, "")).cells
    first = cells[0].mechanism
    assert first is not None and cells[0].folders == ()
    assert first.sampler["rate"] == 1600 / 380800 and first.noise_multiplier == 1.0
    # What reads raw norms is in no release that an account counts.
    assert {cell.series for cell in cells if cell.mechanism and not cell.mechanism.counted} == {"claimed", "published"}
    shown = {entry["folders"][0].split("/")[-2] for entry in found.private(dict.fromkeys(METHODS, ""))}
    assert not shown & {cell.runs[0].key for cell in item.cells}
    series = "experiments.dp-maml.figures.figure12.series.claimed"
    broken = configuration()
    del broken["experiments"]["dp-maml"]["figures"]["figure12"]["series"]["claimed"]["epsilon"]
    assert refusal(broken) == f"{series} needs profile and epsilon: a figure of accounts shows delta"


def test_some_tasks_of_a_table_may_have_other_seeds() -> None:
    cells = plan(configuration()).items["dp-fedmeta", "table2"].cells
    assert {(cell.published_dataset, cell.runs[0].task.shots): len(cell.runs) for cell in cells} == {
        ("omniglot", 1): 3,
        ("omniglot", 5): 1,
        ("cifar-fs", 1): 1,
        ("cifar-fs", 5): 1,
        ("mini-imagenet", 1): 1,
        ("mini-imagenet", 5): 1,
    }


def test_sweeps_repeat_a_series_at_each_value_and_leave_out_the_level_ones() -> None:
    found = configuration(**{f"{FIGURE}.x.values": [20, 40]})
    found["experiments"]["dp-fedmeta"]["figures"]["figure4a"]["series"] = {
        "adaptive": {"method": "dp-agr"},
        "constant": {"method": "dp-agr", "run": {"clipping": {"rule": "constant"}}, "sweep": False},
    }
    cells = plan(found).items["dp-fedmeta", "figure4a"].cells
    assert [(cell.series, cell.x, cell.variant) for cell in cells] == [
        ("adaptive", 20.0, "k=20"), ("adaptive", 40.0, "k=40"), ("constant", None, ""),
    ]  # fmt: skip
    assert [cell.runs[0].clipping.percentile for cell in cells[:2] if cell.runs[0].clipping] == [20.0, 40.0]


def test_null_leaves_out_a_series_an_item_and_a_paper() -> None:
    found = plan(configuration(**{f"{TABLE}.series.random": None, FIGURE: None}))
    assert ("dp-fedmeta", "figure4a") not in found.items
    assert {cell.series for cell in found.items["dp-fedmeta", "table2"].cells} == {"maml", "dp-agr", "dp-agrlr", "gbml"}
    without = plan(configuration(**{"experiments.dp-fedmeta": None}))
    assert {paper for paper, _ in without.items} == {"adap-dp-fl", "dp-maml"}
    papers = ("dp-fedmeta", "dp-maml", "adap-dp-fl")
    nothing = configuration(**{f"experiments.{paper}": None for paper in papers})
    assert "no table or figure left" in refusal(nothing)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("run.noise.multiplyer", 1, "unknown key run.noise.multiplyer: did you mean run.noise.multiplier?"),
        ("run.noise.multiplier", 0, "run.noise.multiplier is 0: expected a number above 0 or null"),
        ("seeds", [], "seeds is empty: give at least one"),
        ("seeds", [0, 0], "seeds is [0, 0]: expected a list without repeats"),
        ("seed", [0], "unknown key seed: did you mean seeds?"),
        ("machine.thread", 1, "unknown key machine.thread: did you mean machine.threads?"),
        ("methods.dp-arg", {}, "methods.dp-arg: there is no method 'dp-arg', the nearest is 'dp-agr'"),
        ("stand_ins.omniglot", "glyph", "stand_ins.omniglot: there is no data set 'glyph', the nearest is 'glyphs'"),
        (f"{TABLE}.tasks", ["omniglot-1"], f"{TABLE}: there is no task 'omniglot-1', the nearest is 'omniglot-1shot'"),
        (f"{TABLE}.series.maml.method", "mamal", f"{TABLE}.series.maml.method: there is no method 'mamal', the nearest is 'maml'"),  # noqa: E501
        (f"{TABLE}.series", NOTHING, f"{TABLE} has no cell left: give it a series that is not null, or set {TABLE} to null"),  # noqa: E501
        (f"{FIGURE}.x.values", [], f"{FIGURE}.x.values is empty: give at least one"),
    ],
)  # fmt: skip
def test_bad_configurations_are_refused_by_name(key: str, value: Any, expected: str) -> None:
    assert refusal(configuration(**{key: value})) == expected


def test_a_bad_cell_names_its_place() -> None:
    message = refusal(configuration(**{f"{FIGURE}.x.values": [50, 120]}))
    assert message.startswith("clipping.percentile is 120")
    assert message.endswith(f"[in {FIGURE}, task omniglot-1shot, series adaptive at clipping.percentile 120]")
    assert refusal(configuration(**{"run.participation.cohort": 300})).endswith("[in run]")


def test_a_figure_needs_what_its_kind_draws() -> None:
    found = configuration()
    del found["experiments"]["dp-fedmeta"]["figures"]["figure4a"]["x"]["key"]
    assert refusal(found) == f"{FIGURE}.x.key is missing: a sweep figure needs it"
    found = configuration()
    del found["experiments"]["dp-fedmeta"]["figures"]["figure2b"]["series"]["maml"]["curves"]
    assert "figure2b.series.maml.curves is missing" in refusal(found)


def test_a_new_paper_costs_an_experiment_and_nothing_else() -> None:
    """A second paper that asks for a run of the first shares it."""
    paper = {
        "title": "Another",
        "tasks": {"any": {"dataset": "omniglot"}},
        "tables": {"table1": {"title": "t", "tasks": ["any"], "series": {"a": {"method": "maml"}}}},
    }
    found = plan(configuration(**{"experiments.another": paper}))
    assert set(found.items["another", "table1"].runs) <= set(found.items["dp-fedmeta", "table2"].runs)


def test_a_run_that_others_find_their_threshold_in_is_planned_once() -> None:
    """The median of a run without privacy: that of the table where one is there, else one more run."""
    median = {"method": "dp-agr", "run": {"clipping": {"rule": "median-of-run", "threshold": None}}}
    found = plan(configuration(**{f"{TABLE}.series.median": median}))
    item = found.items["dp-fedmeta", "table2"]
    plain = {run.folder for cell in item.cells if cell.series == "maml" for run in cell.runs}
    shown = [run for cell in item.cells if cell.series == "median" for run in cell.runs]
    assert {run.reference.folder for run in shown if run.reference} <= plain
    without = configuration(**{f"{TABLE}.series": {"median": median} | NOTHING})
    without["experiments"] = {"dp-fedmeta": without["experiments"]["dp-fedmeta"] | {"figures": {}}}
    without["experiments"]["dp-fedmeta"]["tables"] = {
        "table2": without["experiments"]["dp-fedmeta"]["tables"]["table2"]
    }
    alone = plan(without)
    assert {run.method for run in alone.runs.values()} == {"dp-agr", "maml"}
    assert len(alone.runs) == 2 * len(alone.items["dp-fedmeta", "table2"].runs)


SHAPES = {"reader": "image-folder", "options": {"folder": "shapes", "size": 28, "channels": 1, "test_images": 5}}


def known(**changes: Any) -> dict[str, str]:
    return known_datasets(CONFIG / "datasets.tsv", configuration(**{"datasets.shapes": SHAPES} | changes))


def test_data_sets_of_the_configuration_are_known_by_all_that_it_says() -> None:
    found = known()
    assert found["glyphs"] == "1" and set(found) == {*read_datasets(CONFIG / "datasets.tsv"), "shapes"}
    assert known(**{"datasets.shapes.version": 2})["shapes"] != found["shapes"]
    assert "shapes" not in known(**{"datasets.shapes": None})


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("glyphs", SHAPES, "datasets.glyphs: dpfedbench comes with a data set of this name, choose another"),
        ("shapes.reader", "image-folders", "no module in src/dpfedbench/data for 'image-folders', the nearest is 'ima"),
        ("shapes.options.sise", 3, "unknown key datasets.shapes.options.sise: did you mean datasets.shapes.options.si"),
        ("shapes.options.channels", 2, "datasets.shapes.options.channels is 2: expected one of 1, 3"),
        ("shapes.options.split_classes", {"train": 3}, "datasets.shapes.options.split_classes.validation is missing"),
        ("shapes.version", "two", 'datasets.shapes.version is "two": expected a whole number at least 1'),
        ("other", {}, "datasets.other.reader is missing"),
    ],
)
def test_a_bad_data_set_of_the_configuration_is_one_line(key: str, value: Any, said: str) -> None:
    with pytest.raises(BenchError) as caught:
        known(**{f"datasets.{key}": value})
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("preset", "shots"), [(None, [1, 5, 20]), ("paper", [1, 5, 10, 15, 20])])
def test_a_meta_model_is_trained_once_for_all_shots_of_the_test(preset: str | None, shots: list[int]) -> None:
    """The meta-models of the initialisation figures are those of the tables, but for the pre-trained ones."""
    found = plan(configuration(preset))
    for paper, name, table, random in (
        ("dp-fedmeta", "figure5", "table2", True),
        ("dp-maml", "figure13a", "table3", False),
        ("dp-maml", "figure13b", "table3", False),
    ):
        item = found.items[paper, name]
        trained = {run.method: folder for folder, run in item.runs.items() if run.seed == 0}
        assert len(trained) == len(item.spec["series"])
        anew = {folder for folder in trained.values() if folder not in found.items[paper, table].runs}
        others = {"transfer", "dp-transfer"} | (set() if random else {"random"})
        assert anew == {trained[method] for method in others}
        for folder in item.runs:
            assert [test.task.shots for place, test in item.tests.items() if place[0] == folder] == shots
        assert {test.evaluation.steps for test in item.tests.values()} == {30}
    of_papers = [found.items[place].runs for place in (("dp-fedmeta", "figure5"), ("dp-maml", "figure13b"))]
    assert {run.method for run in of_papers[0].values()} & {"transfer", "dp-transfer", "random"} == {
        run.method for folder, run in of_papers[1].items() if folder in of_papers[0]
    }


def test_a_test_of_the_runs_own_is_none_besides_and_its_keys_are_checked() -> None:
    given = configuration()
    where = "experiments.dp-fedmeta.figures.figure5"
    own = given["experiments"]["dp-fedmeta"]["tasks"]["cifar-fs-1shot"]["evaluation"]["tasks"]
    same = set_key(set_key(given, f"{where}.test", {"steps": 5, "tasks": own}), f"{where}.x.values", [1])
    series = {name: None for name in same["experiments"]["dp-fedmeta"]["figures"]["figure5"]["series"]}
    same = set_key(same, f"{where}.series", series | {"maml": {"method": "maml"}})
    cell = plan(same).items["dp-fedmeta", "figure5"].describe({"maml": "MAML"}).cells[0]
    assert cell.metrics == "metrics.json"
    with pytest.raises(BenchError, match=r"unknown key experiments\.dp-fedmeta\.figures\.figure5\.test\.shot: "):
        plan(set_key(given, f"{where}.x.key", "test.shot"))
    with pytest.raises(BenchError, match=r"figure5\.test\.shots is 0: expected a whole number at least 1"):
        plan(set_key(given, f"{where}.x.values", [0]))


def test_no_shipped_file_gives_a_key_twice():
    """YAML takes the last one without a word."""

    class Strict(yaml.SafeLoader):
        pass

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if key.value != "<<"]
        assert len(names) == len(set(names)), f"{node.start_mark}: {sorted({n for n in names if names.count(n) > 1})}"
        loader.flatten_mapping(node)
        return loader.construct_mapping(node, deep=True)

    Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    files = [path for name in ("config", "profiles", "workflow") for path in CONFIG.with_name(name).rglob("*.yaml")]
    assert len(files) > 8
    for path in files:
        yaml.load(path.read_text(encoding="utf-8"), Strict)


@pytest.mark.parametrize("preset", [None, "real"])
def test_configurations_with_one_mechanism_have_one_audit(preset: str | None) -> None:
    planned = plan(configuration(preset))
    entries = planned.private(dict.fromkeys(METHODS, "title"))
    assert {entry["audited"] for entry in entries} < {entry["folders"][0] for entry in entries}
    for entry in entries:
        own, other = planned.runs[entry["folders"][0]], planned.runs[entry["audited"]]
        for section in ("method", "participation", "clipping", "noise", "budget", "local"):
            assert getattr(own, section) == getattr(other, section)
        assert own.clients.count == other.clients.count
        if own.by_record:
            assert (own.dataset, own.clients) == (other.dataset, other.clients)
        if own.local is not None:
            assert own.task.ways == other.task.ways
            assert own.clients.support_per_class == other.clients.support_per_class
        if own.local is not None or own.by_record:
            assert own.client_update.inner_steps == other.client_update.inner_steps
        if own.noise is not None and own.noise.decay < 1:
            assert own == other  # the loss that the noise follows is the run's own


def test_what_is_in_a_mechanism() -> None:
    runs = plan(configuration()).runs.values()
    run = next(run for run in runs if run.method == "dp-agr" and run.noise and run.noise.multiplier == 1)
    assert audited_as(dataclasses.replace(run, seed=9, model=dataclasses.replace(run.model, filters=7))) == audited_as(
        run
    )
    for changed in (
        dataclasses.replace(run, noise=dataclasses.replace(run.noise, multiplier=2.0)),
        dataclasses.replace(run, clipping=dataclasses.replace(run.clipping, threshold=0.123)),
        dataclasses.replace(run, budget=dataclasses.replace(run.budget, delta=1e-7)),
    ):
        assert audited_as(changed) != audited_as(run)

"""Searches on private data whose values change the privacy of their runs are refused."""

import pytest

from dpfedbench.config.merge import merge
from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import Configuration
from dpfedbench.experiments.expand import make_plan
from dpfedbench.experiments.planned import Planned
from dpfedbench.experiments.search_privacy import privacy_settings
from dpfedbench.papers import METHODS
from tests.base_values import fit
from tests.dpfedbench.training.conftest import LOTS, RUN, lots_config, make_config

POISSON = {"participation": {"kind": "poisson", "cohort": 10, "rounds": 20}}
DECAYING = {"noise": {"kind": "decaying", "multiplier": 2.0, "decay": 0.9, "falls": 3}}
RECORDS = {"model": {"normalisation": "record"}}


def plan_of(values, *overlays, method="dp-agr", general=RUN, **further):
    """Return the plan of a table that searches these values, and of further tables.

    Each of `further` has keys of a table of the same series.
    """
    run = merge(general, {"validation": {"every": 4, "tasks": 4}}, *overlays)
    del run["method"], run["seed"]
    run = fit(METHODS[method], run)
    table = {"title": "t", "tasks": ["a"]}
    series = {"method": method, "search": {"values": values}}
    tables = {"one": table | {"series": {"it": series}}}
    for name, changes in further.items():
        tables[name] = table | changes
    paper = {"title": "m", "tasks": {"a": {}}, "tables": tables}
    values = {"seeds": [0, 1], "run": run, "experiments": {"mine": paper}}
    return make_plan(Configuration.read(values))


MORE_CLIENTS = {"clients": {"count": 1000}}
LAYERS = {"clipping": {"kind": "constant", "groups": "layers"}}
CONSTANT = {"clipping": {"kind": "constant"}}
REFUSED = [
    # The run of z = 0.5 alone has an epsilon of 2.113 at delta 1e-3 (a low end). The
    # account of four runs of z = 4 printed 0.0405.
    ("noise.multiplier", [0.5, 4.0], (POISSON, MORE_CLIENTS), {}),
    ("participation.cohort", [10, 20], (POISSON, MORE_CLIENTS), {}),
    ("participation.rounds", [10, 20], (POISSON, MORE_CLIENTS), {}),
    ("participation.kind", ["poisson", "fixed-size"], (POISSON, MORE_CLIENTS), {}),
    ("budget.delta", [1e-3, 1e-4], (POISSON, MORE_CLIENTS), {}),
    ("clients.count", [500, 1000], (POISSON,), {}),
    ("noise.multiplier", [0.5, 4.0], (), {}),
    ("client_update.inner_steps", [1, 2], (RECORDS,), {"method": "dp-agrlr"}),
    ("within_task.multiplier", [1.0, 2.0], (RECORDS,), {"method": "dp-agrlr"}),
    ("client_update.inner_steps", [1, 2], (), {"method": "dp-fl", "general": LOTS}),
    ("participation.lot", [4, 8], (), {"method": "dp-fl", "general": LOTS}),
    ("model.filters", [4, 8], (LAYERS,), {}),
    (
        "validation.every",
        [2, 4],
        (DECAYING,),
        {"method": "adap-dp-fl", "general": LOTS},
    ),
]


@pytest.mark.parametrize(("key", "values", "overlays", "options"), REFUSED)
def test_search_whose_values_change_the_ledger_is_refused(
    key, values, overlays, options
):
    message = (
        r"^experiments\.mine\.tables\.one\.series\.it\.search compares runs that differ"
        rf" in {key}.*: give all of them the same value$"
    )
    with pytest.raises(BenchError, match=message):
        plan_of({key: values}, *overlays, **options)


ACCEPTED = [
    ("server.rate", [0.01, 0.02], (POISSON, MORE_CLIENTS), {}),
    ("client_update.inner_rate", [0.1, 0.2], (POISSON, MORE_CLIENTS), {}),
    ("client_update.inner_steps", [1, 2], (POISSON, MORE_CLIENTS), {}),
    ("clipping.threshold", [0.5, 1.0], (POISSON, MORE_CLIENTS), {}),
    # A client is in one block, of whatever size.
    (
        "participation",
        [{"cohort": 4, "rounds": 12}, {"cohort": 8, "rounds": 6}],
        (),
        {},
    ),
    ("model.filters", [4, 8], (CONSTANT,), {}),
    ("clipping.threshold", [0.5, 1.0], (), {"method": "dp-fl", "general": LOTS}),
]


@pytest.mark.parametrize(("key", "values", "overlays", "options"), ACCEPTED)
def test_search_whose_values_leave_the_account_is_planned(
    key, values, overlays, options
):
    plan = plan_of({key: values}, *overlays, **options)
    assert {search["runs"] for search in plan.searches.values()} == {4}


def test_search_without_privacy_may_change_everything():
    values = {"participation.rounds": [6, 12], "clients.count": [48, 96]}
    plan = plan_of(values, method="maml")
    assert {search["data"] for search in plan.searches.values()} == {"public"}


def followed(values, **changes):
    series = {"method": "dp-agr", "search": {"values": values, "follows": "one"}}
    return {"series": {"it": series}} | changes


def test_search_that_follows_runs_of_other_noise_is_refused():
    second = followed({"evaluation.rate": [0.1, 0.2]})
    second["series"]["it"]["run"] = {"noise": {"multiplier": 4.0}}
    with pytest.raises(BenchError, match=r"tables\.second.* differ in noise\.mult"):
        plan_of({"server.rate": [0.01, 0.02]}, second=second)


def test_search_counts_all_seeds_of_the_search_that_it_follows():
    """Two settings on five seeds, and then three settings on one."""
    second = followed({"evaluation.rate": [0.1, 0.2, 0.3]}, seeds=[0])
    plan = plan_of(
        {"server.rate": [0.01, 0.02]},
        second=second,
        one={
            "seeds": [0, 1, 2, 3, 4],
            "series": {
                "it": {
                    "method": "dp-agr",
                    "search": {"values": {"server.rate": [0.01, 0.02]}},
                }
            },
        },
    )
    item = plan.items["mine", "second"]
    assert {plan.searches[folder]["runs"] for folder in item.runs} == {13}


@pytest.mark.parametrize(("declared", "runs"), [(3, 4), (100, 100)])
def test_declared_search_counts_where_it_is_larger_than_that_of_a_table(declared, runs):
    plan = plan_of({"server.rate": [0.01, 0.02]})
    tuning = {"dp-agr": {"runs": declared, "data": "private"}}
    planned = Planned(Configuration.read({"tuning": tuning}), plan)
    searches = [planned.search_for(run) for run in plan.runs.values()]
    assert searches == [{"runs": runs, "data": "private"}] * 4


def test_privacy_settings_have_what_an_account_may_depend_on():
    """Of a run with claims, they differ where a release has no account."""
    plain = privacy_settings(make_config())
    assert plain["noise.multiplier"] == 1.0
    assert plain["participation.kind"] == "one-pass"
    assert "server.rate" not in plain
    lots = privacy_settings(lots_config())
    assert lots["participation.lot"] == 8
    assert lots["client_update.inner_steps"] == 1

"""Contents of audit.json, and refusals of an audit."""

import functools
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from dpfedbench.audit import report
from dpfedbench.audit.canaries import audit_seed
from dpfedbench.audit.report import audit, audit_run, bounds_of, family_of, own_family
from dpfedbench.errors import BenchError
from dpfedbench.files import read_json
from dploss.gaussian import gaussian_epsilon
from dpsum.ledger import check_same_mechanism
from tests.dpfedbench.training.conftest import rounds_without_data
from tests.finished_run import RUN_FOLDER

from .conftest import LOTS, experiment, make_config
from .test_own_updates import LOCAL

POISSON = {"participation": {"kind": "poisson"}}
RAW = {"clipping": {"kind": "percentile-of-raw-norms"}}
RAW_MEAN = {"clipping": {"kind": "mean-of-raw-norms"}}
DECAY = {
    "noise": {"kind": "decaying", "multiplier": 2.0, "decay": 0.9},
    "validation": {"every": 1},
}


def run_of(*overlays, **values):
    """Return a run and its ledger, from the same code with another seed."""
    config = make_config(*overlays)
    return config, experiment(config, seed=99, **values).releases


def planned_run(*overlays):
    """Return a run and its ledger; its rounds read no data."""
    config = make_config(*overlays)
    rounds = rounds_without_data(config)
    for index in range(config.participation.rounds):
        rounds.round(index)
    return config, rounds.ledger


@pytest.mark.parametrize("overlay", [{}, LOTS], ids=["clients", "records"])
def test_audit_states_bounds_and_what_they_are_of(overlay):
    """A quarter of the 400 units are no canaries."""
    config, releases = run_of(overlay)
    result = audit(config, releases, canaries=400)
    headline = result["bounds"][0]
    expected = {
        "method": "f-DP by ranks",
        "epsilon": headline["epsilon"],
        "epsilon_ideal": headline["ideal"],
        "unit": releases[0].unit,
        "observer": releases[0].observer,
        "canaries": 300,
        "rounds": config.participation.rounds,
    }
    assert result | expected == result
    assert result["epsilon"] <= result["epsilon_proven"]
    assert 0 < result["epsilon_ideal"] < result["epsilon_proven"]
    names = [bound["name"] for bound in result["bounds"]]
    assert names == ["f-DP by ranks", "one-run (eps, delta)-DP", "Clopper-Pearson"]
    assert all(bound["assumes"] for bound in result["bounds"])
    assert "not above" in result["status"]


def test_audit_of_a_folder_is_the_same_again_but_for_its_time(results_copy):
    audit_run(RUN_FOLDER, "again.json")
    first = read_json(RUN_FOLDER / "audit.json")
    again = read_json("again.json")
    assert first | {"seconds": 0} == again | {"seconds": 0}


TWO_FOLD = {"method": "dp-agrlr", "budget": {"delta": 1e-4}}
RUN_LOCAL = functools.partial(report.one_run_of_updates, LOCAL, seed=99, canaries=50)
AUDITED_RUNS = {
    "clients": run_of,
    "records": lambda: run_of(LOTS),
    "two-fold": lambda: planned_run(TWO_FOLD),
    "local": lambda: (LOCAL, RUN_LOCAL().releases),
}
EXPERIMENT_DELTAS = {
    "clients": {"one_run": 1e-6},
    "records": {"one_run": 1e-5},
    "two-fold": {"one_run": 1e-4, "one_run_of_examples": 1e-5},
    "local": {"one_run_of_updates": 1e-3},
}


def record_experiments(monkeypatch):
    """Return a list that fills with each experiment's name, seed and result."""
    experiments = []

    def record(name, function, *arguments, **options):
        result = function(*arguments, **options)
        experiments.append((name, options["seed"], result))
        return result

    for name in ("one_run", "one_run_of_examples", "one_run_of_updates"):
        function = getattr(report, name)
        monkeypatch.setattr(report, name, functools.partial(record, name, function))
    return experiments


@pytest.mark.parametrize("name", AUDITED_RUNS)
def test_bounds_are_at_the_stated_confidence_and_delta(name, monkeypatch):
    """Bounds follow from the experiment at 95 %; at 50 % they would differ."""
    config, releases = AUDITED_RUNS[name]()
    experiments = record_experiments(monkeypatch)
    audited = audit(config, releases, canaries=400)
    parts = [audited, *audited.get("also", [])]
    deltas = EXPERIMENT_DELTAS[name]
    assert [function for function, _, _ in experiments] == list(deltas)
    for part, (function, seed, result) in zip(parts, experiments, strict=True):
        delta = deltas[function]
        if function == "one_run_of_examples":
            family = own_family(result.releases, delta)
        else:
            family = family_of(result.releases)
        assert (part["confidence"], part["delta"]) == (0.95, delta)
        options = {"delta": delta, "seed": seed}
        confident = bounds_of(result, family, confidence=0.95, **options)
        assert part["bounds"] == [report._plain(bound) for bound in confident]
        unsure = bounds_of(result, family, confidence=0.5, **options)
        for bound, lax_bound in zip(confident, unsure, strict=True):
            assert bound.epsilon < lax_bound.epsilon or lax_bound.epsilon == 0


def audit_sample_level(**multipliers):
    """Return both audits of a run of the sample level with this noise."""
    noise = {key: {"multiplier": value} for key, value in multipliers.items()}
    overlay = {
        "method": "dp-maml-sample",
        "clients": {"count": 800},
        "participation": {"cohort": 80},
    }
    audited = audit(*planned_run(overlay, noise), canaries=600)
    return [audited, *audited["also"]]


def test_sample_level_is_audited_by_both_of_its_sums():
    """Proven: one Gaussian of z = 1. A bound above has a chance of 5 %; seed fixed."""
    parts = audit_sample_level()
    assert {part["clients_audited"] is None for part in parts} == {False, True}
    proven = gaussian_epsilon(1.0, 1e-5)
    for part in parts:
        assert part["unit"] == "record"
        assert part["epsilon_proven"] == pytest.approx(proven, rel=1e-6)
        assert 0.6 * part["epsilon_ideal"] < part["epsilon"] <= part["epsilon_proven"]
        assert not part["another_mechanism"]


@pytest.mark.parametrize(("server_noise", "client_noise"), [(0.5, 4.0), (4.0, 0.5)])
def test_headline_is_of_the_sum_that_leaks_more(server_noise, client_noise):
    """At z = 0.5 and 4 the difference is clear: 10.0 and 0.93 are proven at 1e-5."""
    first, second = audit_sample_level(noise=server_noise, within_task=client_noise)
    assert first["epsilon"] > 5
    assert second["epsilon"] < 1
    assert (first["clients_audited"] is None) == (server_noise < client_noise)


def test_part_of_another_mechanism_comes_first_however_low():
    parts = [
        {"another_mechanism": another, "epsilon": epsilon}
        for another, epsilon in ((False, 5.0), (True, 0.1), (False, 9.0))
    ]
    parts.sort(key=report._worst_first)
    assert [part["epsilon"] for part in parts] == [0.1, 9.0, 5.0]


@pytest.mark.parametrize("name", AUDITED_RUNS)
def test_ledger_with_another_denominator_is_refused(name):
    """The test changes each line of the first round, of each kind of sum."""
    config, releases = AUDITED_RUNS[name]()
    for index, event in enumerate(releases):
        if event.round == 0:
            changed = list(releases)
            changed[index] = replace(event, denominator=7.0)
            message = r"denominator 7\.0, but the current code"
            with pytest.raises(BenchError, match=message):
                audit(config, changed, canaries=50)


@pytest.mark.parametrize(("overlays", "records"), [([RAW], 0), ([LOTS, RAW_MEAN], 200)])
def test_attack_on_a_rule_is_at_the_runs_settings(overlays, records, monkeypatch):
    leak = Mock(wraps=report.leak_of)
    monkeypatch.setattr(report, "leak_of", leak)
    config, releases = run_of(*overlays, {"clipping": {"threshold": 0.75}})
    audit(config, releases, canaries=100, runs=20)
    assert leak.call_args.kwargs == {
        "records": records,
        "first": 0.75,
        "delta": config.budget.delta,
        "confidence": 0.95,
        "runs": 20,
    }


@pytest.mark.parametrize("steps", [1, 2])
def test_audit_of_decayed_noise_takes_multipliers_from_the_ledger(steps):
    """An audit has no loss that the noise could follow."""
    multipliers = [2.0] * 5 + [1.8] * 5
    overlays = (LOTS, DECAY, {"client_update": {"inner_steps": steps}})
    config, releases = run_of(*overlays, multipliers=multipliers, steps=steps)
    stated = [event.noise_multiplier for event in releases]
    assert stated == np.repeat(multipliers, steps).tolist()
    assert audit(config, releases, canaries=100)["rounds"] == 10 * steps


def test_audit_seeds_differ_by_run_and_from_the_published_one():
    overlays = ({}, {"seed": 1}, {"noise": {"multiplier": 2.0}})
    seeds = {
        audit_seed(make_config(overlay), *index)
        for overlay in overlays
        for index in ((), (1,), (2,))
    }
    assert len(seeds) == 9
    assert min(seeds) > 1000


def test_number_of_experiments_is_limited(monkeypatch):
    """Without the limit there are four experiments of 50 canaries."""
    monkeypatch.setattr(report, "_REPEATS", 3)
    assert audit(*run_of(POISSON), canaries=50)["canaries"] == 150


def test_experiments_under_secret_participation_are_independent(monkeypatch):
    """Each of four experiments has its own seed, coins and scores."""
    experiments = record_experiments(monkeypatch)
    assert audit(*run_of(POISSON), canaries=50)["canaries"] == 200
    draws = [
        (seed, result.coins.tobytes(), result.scores.tobytes())
        for _, seed, result in experiments
    ]
    assert [len(set(values)) for values in zip(*draws, strict=True)] == [4, 4, 4]


def test_threshold_from_raw_norms_is_audited_over_many_runs():
    result = audit(*run_of(RAW), canaries=100, runs=60)
    assert result["method"] == "Clopper-Pearson over many runs"
    assert 2 < result["epsilon"] <= result["epsilon_ideal"]
    assert result["epsilon_proven"] == float("inf")


def test_attack_that_does_not_fit_the_plan_leaves_the_one_run_bound():
    result = audit(*run_of(RAW, POISSON), canaries=100, runs=60)
    assert result["method"] == "f-DP by ranks"
    attack = result["bounds"][-1]
    assert attack["epsilon"] is None
    assert "one-pass" in attack["reason"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("noise_multiplier", 2.0),
        ("denominator", 39.0),
        ("sampler", {"kind": "poisson"}),
        ("noise_std", 0.25),
        ("data_dependent_threshold", True),
    ],
)
def test_release_of_another_mechanism_is_refused(field, value):
    _, releases = run_of()
    check_same_mechanism(releases, releases)
    if field == "sampler":
        value = replace(releases[3].sampler, **value)
    changed = [*releases[:3], replace(releases[3], **{field: value}), *releases[4:]]
    with pytest.raises(BenchError, match=f"release 3.*{field}"):
        check_same_mechanism(changed, releases)


def test_ledger_of_other_releases_is_refused():
    config, releases = run_of()
    with pytest.raises(BenchError, match="9 releases"):
        check_same_mechanism(releases[:-1], releases)
    renamed = [replace(event, name="gradient-sum") for event in releases]
    for events, names in (([], ""), (renamed, "gradient-sum")):
        with pytest.raises(BenchError, match=f"releases of {names}, but"):
            audit(config, events)


def test_run_without_privacy_or_analysis_has_a_reason_instead_of_a_bound():
    config, releases = run_of()
    correlated = [replace(event, mechanism="correlated") for event in releases]
    for result, reason in (
        (audit(make_config({"method": "maml"}), []), "no release claims privacy"),
        (audit(config, correlated), "no analysis for correlated noise"),
    ):
        assert result["epsilon"] is None
        assert reason in result["reason"]

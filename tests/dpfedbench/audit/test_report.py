"""Contents of audit.json, and refusals of an audit."""

import dataclasses
import functools
import json
from unittest.mock import Mock

import numpy as np
import pytest

from dpfedbench.audit import report
from dpfedbench.audit.canaries import audit_seed
from dpfedbench.audit.report import audit, audit_run, bounds_of, family_of, own_family
from dpfedbench.errors import BenchError
from dpfedbench.files import write_json
from dploss.gaussian import gaussian_epsilon
from dpsum.ledger import Ledger, check_same_mechanism
from tests.dpfedbench.training.conftest import rounds_without_data

from .conftest import LOTS, experiment, make_config
from .test_own_updates import run as local_run

POISSON = {"participation": {"kind": "poisson"}}
RAW = {"clipping": {"kind": "percentile-of-raw-norms"}}
DECAY = {
    "noise": {"kind": "decaying", "multiplier": 2.0, "decay": 0.9},
    "validation": {"every": 1},
}


def ledger_of(config, **values):
    """Return a run's ledger, from the same code with another seed."""
    return experiment(config, seed=99, **values).releases


def with_change(releases, index, **values):
    """Return a ledger with other values in one line."""
    changed = dataclasses.replace(releases[index], **values)
    return [*releases[:index], changed, *releases[index + 1 :]]


@pytest.mark.parametrize("overlay", [{}, LOTS], ids=["clients", "records"])
def test_audit_states_bounds_and_what_they_are_of(overlay):
    """A quarter of the 400 units are no canaries."""
    config = make_config(overlay)
    releases = ledger_of(config)
    result = audit(config, releases, canaries=400)
    headline = result["bounds"][0]
    expected = {
        "method": "f-DP by ranks",
        "epsilon": headline["epsilon"],
        "epsilon_ideal": headline["ideal"],
        "confidence": 0.95,
        "delta": config.budget.delta,
        "unit": releases[0].unit,
        "observer": releases[0].observer,
        "canaries": 300,
        "rounds": config.participation.rounds,
    }
    assert {name: result[name] for name in expected} == expected
    assert result["epsilon"] <= result["epsilon_proven"]
    assert 0 < result["epsilon_ideal"] < result["epsilon_proven"]
    names = {bound["name"] for bound in result["bounds"]}
    assert names == {"f-DP by ranks", "one-run (eps, delta)-DP", "Clopper-Pearson"}
    assert all(bound["assumes"] for bound in result["bounds"])
    assert "not above" in result["status"]


@pytest.mark.parametrize("overlay", [{}, LOTS], ids=["clients", "records"])
def test_audit_of_a_folder_is_the_same_again_but_for_its_time(overlay, tmp_path):
    config = make_config(overlay)
    folder = tmp_path / config.folder
    seed = str(audit_seed(config, 99))
    ledger = Ledger(folder / "ledger.jsonl")
    for event in ledger_of(config):
        noise_stream = event.noise_stream.replace(seed, str(config.seed))
        ledger.append(dataclasses.replace(event, noise_stream=noise_stream))
    (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    write_json(
        folder / "training.json",
        {"rounds_run": config.participation.rounds, "ledger": ledger.chain},
    )
    written = []
    for name in ("first.json", "second.json"):
        audit_run(folder, tmp_path / name)
        written.append(json.loads((tmp_path / name).read_text()))
        written[-1].pop("seconds")
    assert written[0] == written[1]


def run_of(*overlays):
    """Return a run and its ledger."""
    config = make_config(*overlays)
    return config, ledger_of(config)


def planned_run(*overlays):
    """Return a run and its ledger; its rounds read no data."""
    config = make_config(*overlays)
    rounds = rounds_without_data(config)
    for index in range(config.participation.rounds):
        rounds.round(index)
    return config, rounds.ledger


def local_update_run():
    """Return a run whose clients noise their own updates, and its ledger."""
    config = local_run()
    return config, report.one_run_of_updates(config, seed=99, canaries=50).releases


TWO_FOLD = {"method": "dp-agrlr", "budget": {"delta": 1e-4}}
AUDITED_RUNS = {
    "clients": run_of,
    "records": lambda: run_of(LOTS),
    "two-fold": lambda: planned_run(TWO_FOLD),
    "local": local_update_run,
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
        confident = bounds_of(result, family, delta=delta, confidence=0.95, seed=seed)
        unsure = bounds_of(result, family, delta=delta, confidence=0.5, seed=seed)
        assert part["confidence"] == 0.95
        assert part["delta"] == delta
        assert part["bounds"] == [report._plain(bound) for bound in confident]
        for bound, lax_bound in zip(confident, unsure, strict=True):
            assert bound.epsilon < lax_bound.epsilon or lax_bound.epsilon == 0


def sample_level(**multipliers):
    """Return a run of the sample level with this noise, and its ledger."""
    noise = {key: {"multiplier": value} for key, value in multipliers.items()}
    overlay = {
        "method": "dp-maml-sample",
        "clients": {"count": 800},
        "participation": {"cohort": 80},
    }
    return planned_run(overlay, noise)


def test_sample_level_is_audited_by_both_of_its_sums():
    """An example is in the clients' sum or in the server's: one Gaussian of z = 1 at
    1e-5 (closed form), of an example, and not of all that a client has. A bound above
    it on right code has a chance of 5 % in all; the seed is fixed.
    """
    audited = audit(*sample_level(), canaries=600)
    parts = [audited, *audited["also"]]
    assert [part["unit"] for part in parts] == ["record", "record"]
    of_the_server = [part["clients_audited"] is None for part in parts]
    assert sorted(of_the_server) == [False, True]
    proven = gaussian_epsilon(1.0, 1e-5)
    for part in parts:
        assert part["epsilon_proven"] == pytest.approx(proven, rel=1e-6)
        assert 0.6 * part["epsilon_ideal"] < part["epsilon"] <= part["epsilon_proven"]
        assert not part["another_mechanism"]


@pytest.mark.parametrize(
    ("multipliers", "server_leaks"),
    [
        ({"noise": 0.5, "within_task": 4.0}, True),
        ({"noise": 4.0, "within_task": 0.5}, False),
    ],
)
def test_headline_is_of_the_sum_that_leaks_more(multipliers, server_leaks):
    """At z = 0.5 and 4 the difference is clear: 10.0 and 0.93 are proven at 1e-5."""
    audited = audit(*sample_level(**multipliers), canaries=600)
    assert audited["epsilon"] > 5
    assert audited["also"][0]["epsilon"] < 1
    assert (audited["clients_audited"] is None) == server_leaks


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
            changed = with_change(releases, index, denominator=7.0)
            with pytest.raises(
                BenchError, match=r"denominator 7\.0, but the current code"
            ):
                audit(config, changed, canaries=50)


@pytest.mark.parametrize(
    ("overlays", "records"),
    [
        ([RAW], 0),
        ([LOTS, {"clipping": {"kind": "mean-of-raw-norms"}}], 200),
    ],
    ids=["clients", "records"],
)
def test_attack_on_a_rule_is_at_the_runs_settings(overlays, records, monkeypatch):
    leak = Mock(wraps=report.leak_of)
    monkeypatch.setattr(report, "leak_of", leak)
    config = make_config(*overlays, {"clipping": {"threshold": 0.75}})
    audit(config, ledger_of(config), canaries=100, runs=20)
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
    config = make_config(LOTS, DECAY, {"client_update": {"inner_steps": steps}})
    multipliers = [2.0] * 5 + [1.8] * 5
    releases = ledger_of(config, multipliers=multipliers, steps=steps)
    stated = [event.noise_multiplier for event in releases]
    assert stated == np.repeat(multipliers, steps).tolist()
    assert audit(config, releases, canaries=100)["rounds"] == 10 * steps


def test_audit_seeds_differ_by_run_and_from_the_published_one():
    configs = [
        make_config(),
        make_config({"seed": 1}),
        make_config({"noise": {"multiplier": 2.0}}),
    ]
    seeds = [audit_seed(run, *index) for run in configs for index in ((), (1,), (2,))]
    assert len({*seeds, 0, 1}) == 11
    assert min(seeds) > 1000


def test_experiments_under_secret_participation_are_independent(monkeypatch):
    """Each of four experiments has its own seed, coins and scores."""
    experiments = record_experiments(monkeypatch)
    config = make_config(POISSON)
    assert audit(config, ledger_of(config), canaries=50)["canaries"] == 200
    draws = {
        (seed, result.coins.tobytes(), result.scores.tobytes())
        for _, seed, result in experiments
    }
    assert len(experiments) == 4
    for values in zip(*draws, strict=True):
        assert len(set(values)) == 4


def test_threshold_from_raw_norms_is_audited_over_many_runs():
    config = make_config(RAW)
    result = audit(config, ledger_of(config), canaries=100, runs=60)
    assert result["method"] == "Clopper-Pearson over many runs"
    assert 2 < result["epsilon"] <= result["epsilon_ideal"]
    assert result["epsilon_proven"] == float("inf")


def test_attack_that_does_not_fit_the_plan_leaves_the_one_run_bound():
    config = make_config(RAW, POISSON)
    result = audit(config, ledger_of(config), canaries=100, runs=60)
    assert result["method"] == "f-DP by ranks"
    attack = result["bounds"][-1]
    assert attack["epsilon"] is None
    assert "one-pass" in attack["reason"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("noise_multiplier", 2.0),
        ("denominator", 39.0),
        ("sampler", {"kind": "poisson", "clients": 400, "cohort": 40, "rounds": 10}),
        ("noise_std", 0.25),
        ("data_dependent_threshold", True),
    ],
)
def test_release_of_another_mechanism_is_refused(field, value):
    _, releases = run_of()
    check_same_mechanism(releases, releases)
    changed = with_change(releases, 3, **{field: value})
    with pytest.raises(BenchError, match=f"release 3.*{field}"):
        check_same_mechanism(changed, releases)


def test_ledger_of_other_releases_is_refused():
    config, releases = run_of()
    with pytest.raises(BenchError, match="9 releases"):
        check_same_mechanism(releases[:-1], releases)
    renamed = [dataclasses.replace(event, name="gradient-sum") for event in releases]
    for others, names in (([], ""), (renamed, "gradient-sum")):
        with pytest.raises(BenchError, match=f"releases of {names}, but"):
            audit(config, others)


def test_run_without_privacy_or_analysis_has_a_reason_instead_of_a_bound():
    config, releases = run_of()
    correlated = [
        dataclasses.replace(event, mechanism="correlated") for event in releases
    ]
    for result, reason in (
        (audit(make_config({"method": "maml"}), []), "no release claims privacy"),
        (audit(config, correlated), "no analysis for correlated noise"),
    ):
        assert result["epsilon"] is None
        assert reason in result["reason"]

"""audit.json: what it says, and when it refuses."""

import dataclasses
import functools
import json

import numpy as np
import pytest

from dpfedbench.audit import report
from dpfedbench.audit.canaries import audit_seed
from dpfedbench.audit.report import audit, audit_run, bounds_of, family_of, own_family
from dpfedbench.errors import BenchError
from dpfedbench.files import write_json
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.ledger import Ledger, check_same_mechanism
from tests.dpfedbench.federation.conftest import rounds_without_data

from .conftest import LOTS, experiment, make_config
from .test_own_updates import run as local_run

RAW = {"clipping": {"kind": "percentile-of-raw-norms"}}
DECAY = {
    "noise": {"kind": "decaying", "multiplier": 2.0, "decay": 0.9},
    "validation": {"every": 1},
}


def ledger_of(config, **values):
    """A run's ledger, from the same code with another seed."""
    return experiment(config, seed=99, **values).releases


@pytest.mark.parametrize("overlay", [{}, LOTS], ids=["clients", "records"])
def test_what_it_says(overlay, tmp_path):
    config = make_config(overlay)
    releases = ledger_of(config)
    found = audit(config, releases, canaries=200)
    assert found["method"] == found["bounds"][0]["name"] == "f-DP by ranks"
    assert found["epsilon"] == found["bounds"][0]["epsilon"] <= found["epsilon_proven"]
    assert (
        0
        < found["epsilon_ideal"]
        == found["bounds"][0]["ideal"]
        < found["epsilon_proven"]
    )
    assert {"one-run (eps, delta)-DP", "Clopper-Pearson"} <= {
        b["name"] for b in found["bounds"]
    }
    assert all(bound["assumes"] for bound in found["bounds"])
    assert (found["confidence"], found["delta"]) == (0.95, config.budget.delta)
    assert (found["unit"], found["observer"]) == (
        releases[0].unit,
        releases[0].observer,
    )
    assert found["canaries"] == 200 and found["rounds"] == config.participation.rounds
    assert "not above" in found["status"] and found["versions"]["torch"]

    # Written whole, and the same again but for the time it took.
    folder, other = tmp_path / config.folder, str(audit_seed(config, 99))
    ledger = Ledger(folder / "ledger.jsonl")
    for event in releases:
        ledger.append(
            dataclasses.replace(
                event, noise_stream=event.noise_stream.replace(other, str(config.seed))
            )
        )
    (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    write_json(
        folder / "training.json",
        {"rounds_run": config.participation.rounds, "ledger": ledger.chain},
    )
    written = []
    for name in ("one", "two"):
        audit_run(folder, tmp_path / f"{name}.json")
        written.append(json.loads((tmp_path / f"{name}.json").read_text()))
        written[-1].pop("seconds")
    assert written[0] == written[1]


def two_fold():
    """A run whose clients and records are protected, and its ledger."""
    config = make_config({"method": "dp-agrlr", "budget": {"delta": 1e-4}})
    rounds = rounds_without_data(config)
    for index in range(config.participation.rounds):
        rounds.round(index)
    return config, rounds.ledger


def local():
    """A run whose clients noise their own updates, and its ledger."""
    config = local_run()
    return config, report.one_run_of_updates(config, seed=99, canaries=50).releases


AUDITED = {
    "clients": (
        lambda: (config := make_config(), ledger_of(config)),
        {"one_run": 1e-6},
    ),
    "records": (
        lambda: (config := make_config(LOTS), ledger_of(config)),
        {"one_run": 1e-5},
    ),
    "two-fold": (two_fold, {"one_run": 1e-4, "one_run_of_examples": 1e-5}),
    "local": (local, {"one_run_of_updates": 1e-3}),
}


@pytest.mark.parametrize("name", AUDITED)
def test_bounds_are_at_the_confidence_and_delta_that_the_file_says(name, monkeypatch):
    """Each from its own experiment, again at 95 %; at 50 % they would be others."""
    made, experiments = AUDITED[name]
    config, releases = made()
    found, seeds = {}, {}
    for each in ("one_run", "one_run_of_examples", "one_run_of_updates"):

        def spy(own, each, *given, **more):
            found[each], seeds[each] = own(*given, **more), more["seed"]
            return found[each]

        monkeypatch.setattr(
            report, each, functools.partial(spy, getattr(report, each), each)
        )
    said = audit(config, releases, canaries=400)
    parts = [said, *said.get("also", [])]
    assert list(found) == list(experiments) and len(parts) == len(experiments)
    for part, (each, delta) in zip(parts, experiments.items(), strict=True):
        releases = found[each].releases
        family = (
            own_family(releases, delta)
            if each == "one_run_of_examples"
            else family_of(releases)
        )
        at = {
            confidence: bounds_of(
                found[each],
                family,
                delta=delta,
                confidence=confidence,
                seed=seeds[each],
            )
            for confidence in (0.95, 0.5)
        }
        assert (part["confidence"], part["delta"]) == (0.95, delta)
        assert part["bounds"] == [report._plain(bound) for bound in at[0.95]]
        assert part["bounds"] != [report._plain(bound) for bound in at[0.5]]


def sample_level(**z):
    """A run whose examples are in the clients' sums or in the server's, of such noise,
    and its ledger.
    """
    config = make_config(
        {
            "method": "dp-maml-sample",
            "clients": {"count": 800},
            "participation": {"cohort": 80},
        },
        {name: {"multiplier": value} for name, value in z.items()},
    )
    rounds = rounds_without_data(config)
    for index in range(config.participation.rounds):
        rounds.round(index)
    return config, rounds.ledger


def test_the_sample_level_is_audited_by_both_of_its_sums():
    """An example is in the clients' sum or in the server's: one Gaussian of z = 1 at
    1e-5 (closed form), of an example, and not of all that a client has. A bound above
    it on right code has a chance of 5 % in all; the seed is fixed.
    """
    found = audit(*sample_level(), canaries=600)
    parts = [found, *found["also"]]
    assert len(parts) == 2 and {part["unit"] for part in parts} == {"record"}
    assert {part["clients_audited"] is None for part in parts} == {
        True,
        False,
    }  # the server's, the clients'
    for part in parts:
        assert part["epsilon_proven"] == pytest.approx(
            gaussian_epsilon(1.0, 1e-5), rel=1e-6
        )
        assert 0.6 * part["epsilon_ideal"] < part["epsilon"] <= part["epsilon_proven"]
        assert not part["another_mechanism"]


@pytest.mark.parametrize("loud", ["noise", "within_task"])
def test_of_two_sums_of_one_unit_the_one_that_leaks_more_is_told(loud):
    """At z = 0.5 and 4 there is no doubt which: 10.0 and 0.93 hold at 1e-5."""
    quiet = {"noise": "within_task", "within_task": "noise"}[loud]
    found = audit(*sample_level(**{loud: 4.0, quiet: 0.5}), canaries=600)
    (other,) = found["also"]
    assert found["epsilon"] > 5 > 1 > other["epsilon"] and (
        found["clients_audited"] is None
    ) == (quiet == "noise")
    # What another mechanism's bound says nothing of comes first, however low it is.
    parts = [
        {"another_mechanism": another, "epsilon": e}
        for another, e in ((False, 5.0), (True, 0.1), (False, 9.0))
    ]
    assert [part["epsilon"] for part in sorted(parts, key=report._worst_first)] == [
        0.1,
        9.0,
        5.0,
    ]


@pytest.mark.parametrize("name", ["clients", "records", "two-fold", "local"])
def test_an_audit_refuses_a_ledger_that_its_own_run_does_not_give(name):
    """Of each kind of sum: whoever releases, one line of the first round has another
    denominator.
    """
    config, releases = AUDITED[name][0]()
    for place, event in enumerate(releases):
        if event.round == 0:
            changed = [
                *releases[:place],
                dataclasses.replace(event, denominator=7.0),
                *releases[place + 1 :],
            ]
            with pytest.raises(
                BenchError, match=r"denominator 7\.0, the code as it is now"
            ):
                audit(config, changed, canaries=50)


def test_the_attack_on_a_rule_is_at_the_same_confidence(monkeypatch):
    """And at the run's first threshold, delta and number of records, over as many runs
    as were asked for.
    """
    given = {}
    leak = report.leak_of
    monkeypatch.setattr(
        report,
        "leak_of",
        lambda run, rule, **more: (given.update(more), leak(run, rule, **more))[1],
    )
    for overlays, records in (
        ([{}], 0),
        ([LOTS, {"clipping": {"kind": "mean-of-raw-norms"}}], 200),
    ):
        config = make_config(
            *overlays, {"clipping": {"threshold": 0.75}}, *([] if records else [RAW])
        )
        releases = ledger_of(config)
        audit(config, releases, canaries=100, runs=20)
        assert given == {
            "records": records,
            "first": 0.75,
            "delta": config.budget.delta,
            "confidence": 0.95,
            "runs": 20,
        }


def test_noise_that_decayed_is_the_ledgers():
    """The loss that drove it is not there; each round's multiplier is taken from the
    ledger and checked against it.
    """
    config = make_config(LOTS, DECAY)
    z = [2.0] * 5 + [1.8] * 5
    releases = ledger_of(config, multipliers=z)
    assert [event.noise_multiplier for event in releases] == z
    assert audit(config, releases, canaries=100)["rounds"] == 10
    # Of two steps a round, both are at the round's.
    config = make_config(LOTS, DECAY, {"client_update": {"inner_steps": 2}})
    releases = ledger_of(config, multipliers=z, steps=2)
    assert [event.noise_multiplier for event in releases] == [
        each for each in z for _ in range(2)
    ]
    assert audit(config, releases, canaries=100)["rounds"] == 20


def test_the_audit_draws_from_a_seed_of_its_own_and_leaves_ordinary_units():
    """Not from the published one of the run; another for each run, seed and mechanism.
    A quarter stay as they are.
    """
    runs = [
        make_config(),
        make_config({"seed": 1}),
        make_config({"noise": {"multiplier": 2.0}}),
    ]
    seeds = [audit_seed(run, *index) for run in runs for index in ((), (1,), (2,))]
    assert len({*seeds, 0, 1}) == 11 and min(seeds) > 1000
    config = make_config()
    assert audit(config, ledger_of(config), canaries=400)["canaries"] == 300


def test_experiments_of_one_audit_are_apart(monkeypatch):
    """Where participation is secret there are several: of seeds, coins and scores of
    their own, which all count.
    """
    made, own = [], report.one_run

    def spy(*given, **more):
        made.append((more["seed"], own(*given, **more)))
        return made[-1][1]

    monkeypatch.setattr(report, "one_run", spy)
    config = make_config({"participation": {"kind": "poisson"}})
    found = audit(config, ledger_of(config), canaries=50)
    assert (
        len(made) == len({seed for seed, _ in made}) == 4 and found["canaries"] == 200
    )
    pairs = [(one.coins, one.scores) for _, one in made]
    for index, (coins, scores) in enumerate(pairs):
        assert not any(
            np.array_equal(coins, more) or np.array_equal(scores, other)
            for more, other in pairs[:index]
        )


def test_a_run_that_claims_no_privacy_has_no_bound_and_a_reason():
    config = make_config({"method": "maml"})
    found = audit(config, [])
    assert found["epsilon"] is None and found["reason"] == "no release claims privacy"


def test_a_threshold_from_raw_norms_is_audited_over_many_runs():
    config = make_config({"clipping": {"kind": "percentile-of-raw-norms"}})
    found = audit(config, ledger_of(config), canaries=100, runs=60)
    assert (
        found["method"] == "Clopper-Pearson over many runs"
        and 2 < found["epsilon"] <= found["epsilon_ideal"]
    )
    assert found["epsilon_proven"] == float("inf")
    # Where the attack does not fit the plan, the one-run bound stands and the reason is
    # there.
    config = make_config(
        {
            "clipping": {"kind": "percentile-of-raw-norms"},
            "participation": {"kind": "poisson"},
        }
    )
    found = audit(config, ledger_of(config), canaries=100, runs=60)
    assert found["method"] == "f-DP by ranks" and found["bounds"][-1]["epsilon"] is None
    assert "one-pass" in found["bounds"][-1]["reason"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"noise_multiplier": 2.0}, "noise_multiplier 2.0, the code as it is now 1.0"),
        ({"denominator": 39.0}, "denominator 39.0"),
        (
            {
                "sampler": {
                    "kind": "poisson",
                    "clients": 400,
                    "cohort": 40,
                    "rounds": 10,
                    "rate": 0.1,
                }
            },
            "another sampler",
        ),
        ({"noise_std": 0.25}, "noise_std of 0.5 C, the code as it is now 1 C"),
        ({"data_dependent_threshold": True}, "data_dependent_threshold"),
    ],
)
def test_a_ledger_of_another_mechanism_is_refused(change, line):
    config = make_config()
    releases = ledger_of(config)
    check_same_mechanism(releases, releases)
    changed = [*releases[:3], dataclasses.replace(releases[3], **change), *releases[4:]]
    with pytest.raises(BenchError, match="release 3") as error:
        check_same_mechanism(changed, releases)
    assert line in str(error.value)
    with pytest.raises(BenchError, match="9 releases"):
        check_same_mechanism(releases[:-1], releases)
    with pytest.raises(BenchError, match="empty"):
        audit(config, [])
    renamed = [dataclasses.replace(event, name="gradient-sum") for event in releases]
    with pytest.raises(
        BenchError,
        match="releases of gradient-sum, the code as it is now of query-gradient-sum",
    ):
        audit(config, renamed)


def test_a_mechanism_without_an_analysis_has_no_bound_and_a_reason():
    config = make_config()
    correlated = [
        dataclasses.replace(event, mechanism="correlated")
        for event in ledger_of(config)
    ]
    found = audit(config, correlated)
    assert (
        found["epsilon"] is None
        and "no analysis for correlated noise" in found["reason"]
    )

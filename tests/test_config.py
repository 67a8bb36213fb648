"""Configurations: layers, refusals in one line, identity."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpfedbench.config import RunConfig, check, leaves, merge, schema, set_key, typed
from dpfedbench.errors import BenchError

RUN = """
method: dp-agr
seed: 0
dataset: omniglot
task: {ways: 5, shots: 1}
clients: {count: 4000, examples_per_class: 7, support_per_class: 1, query_per_class: 5, partition: shared,
  fragments: null}
model: {name: conv4, filters: 32, normalisation: batch, pixel_mean: 0.0, pixel_deviation: 1.0}
participation: {kind: one-pass, cohort: 100, rounds: 40}
client_update: {kind: maml, inner_steps: 1, inner_rate: 0.1, order: 2, optimizer: sgd, keep_state: true,
                learnable_rates: false, multi_step_rounds: 0}
local: null
clipping: {rule: percentile-of-releases, threshold: 0.5, percentile: 90, window: 10, form: sum,
  never_rising: true, factor: 1.0, quantile_rate: 0.2, count_noise: null}
noise: {multiplier: 1.0, decay: 1.0, falls: 3}
budget: {epsilon: null, delta: 1.0e-6, profile: as_claimed, stop: true}
server: {optimizer: adam, rate: 0.01, momentum: 0.0, schedule: constant, final_rate: null}
validation: {every: 0, tasks: 100, ensemble: 1, public: true}
evaluation: {every: 0, tasks: 300, query_per_class: 15, steps: 5, rate: 0.1}
"""


def values(**changes: Any) -> dict[str, Any]:
    """A run, with dotted keys (written with __) changed."""
    found: dict[str, Any] = yaml.safe_load(RUN)
    for key, value in changes.items():
        found = set_key(found, key.replace("__", "."), value)
    return found


def refusal(found: dict[str, Any]) -> str:
    with pytest.raises(BenchError) as caught:
        RunConfig.from_dict(found)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_merge_lays_mappings_over_one_another_and_replaces_the_rest() -> None:
    below = {"a": {"b": 1, "c": [1, 2]}, "d": {"e": 1}}
    assert merge(below, {"a": {"c": [3]}, "d": None}) == {"a": {"b": 1, "c": [3]}, "d": None}
    assert merge({"d": None}, {"d": {"e": 2}}) == {"d": {"e": 2}}
    assert below == {"a": {"b": 1, "c": [1, 2]}, "d": {"e": 1}}


def test_leaves_and_set_key_are_inverse() -> None:
    nested = {"a": {"b": 1}, "c": None}
    rebuilt: dict[str, Any] = {}
    for key, value in leaves(nested).items():
        rebuilt = set_key(rebuilt, key, value)
    assert rebuilt == nested


def test_round_trip_through_yaml(tmp_path: Path) -> None:
    run = RunConfig.from_dict(values())
    path = tmp_path / "config.yaml"
    path.write_text(run.to_yaml(), encoding="utf-8")
    assert RunConfig.from_yaml(path) == run
    assert RunConfig.from_dict(run.to_dict()) == run


def test_a_run_without_privacy_round_trips() -> None:
    run = RunConfig.from_dict(values(clipping=None, noise=None, budget=None))
    assert not run.private and run.notices == ()
    assert RunConfig.from_dict(run.to_dict()) == run


def test_an_unknown_key_is_named_in_full_with_the_nearest_one() -> None:
    assert refusal(values(client_update__inner_step=3)) == (
        "unknown key client_update.inner_step: did you mean client_update.inner_steps?"
    )
    # A key that belongs elsewhere is nearer there than to any of its neighbours.
    assert refusal(values(rounds=3)) == "unknown key rounds: did you mean participation.rounds?"
    assert "the nearest valid key is server." in refusal(values(server__zzz=1))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("task.ways", "five", 'task.ways is "five": expected a whole number at least 2'),
        ("task.ways", True, "task.ways is true: expected a whole number at least 2"),
        ("noise.multiplier", 0, "noise.multiplier is 0: expected a number above 0 or null"),
        ("noise.multiplier", -1.0, "noise.multiplier is -1.0: expected a number above 0 or null"),
        ("noise.multiplier", math.nan, "noise.multiplier is nan: expected a finite number"),
        ("clipping.threshold", 0, "clipping.threshold is 0: expected a number above 0 or null"),
        ("clipping.threshold", math.inf, "clipping.threshold is inf: expected a finite number"),
        ("clipping.percentile", 101, "clipping.percentile is 101: expected a number at least 0 and at most 100"),
        ("budget.delta", 0, "budget.delta is 0: expected a number above 0 and below 1"),
        ("budget.delta", 1.0, "budget.delta is 1.0: expected a number above 0 and below 1"),
        ("client_update.order", 3, "client_update.order is 3: expected one of 1, 2"),
        ("clipping.never_rising", "yes", 'clipping.never_rising is "yes": expected true or false'),
        (
            "participation.kind",
            "all",
            'participation.kind is "all": expected one of one-pass, balls-and-bins, poisson, poisson-lots',
        ),
        ("server", 3, "server is 3: expected a group of keys"),
        ("seed", -1, "seed is -1: expected a whole number at least 0"),
    ],
)  # fmt: skip
def test_a_bad_value_is_named_with_what_was_expected(key: str, value: Any, expected: str) -> None:
    assert refusal(set_key(values(), key, value)) == expected


def test_text_that_stands_for_something_else_is_read_where_that_is_wanted() -> None:
    """As Snakemake hands over `--config 'run={noise: {multiplier: 2}}'`, and YAML 1e-6."""
    assert yaml.safe_load("1e-6") == "1e-6"
    given = {
        "seeds": ["0", "1"],
        "stand_ins": {"omniglot": "null", "cifar-fs": "glyphs"},
        "run": {
            "noise": {"multiplier": "2"},
            "budget": {"delta": "1e-6", "stop": "False"},
            "clipping": "null",
        },
        "methods": {"dp-agr": {"task": {"ways": "five"}}},
        "preset": "1",
    }
    assert typed(given) == {
        "seeds": [0, 1],
        "stand_ins": {"omniglot": None, "cifar-fs": "glyphs"},
        "run": {"noise": {"multiplier": 2}, "budget": {"delta": 1e-6, "stop": False}, "clipping": None},
        "methods": {"dp-agr": {"task": {"ways": "five"}}},
        "preset": "1",
    }


def test_a_missing_key_is_named() -> None:
    found = values()
    del found["task"]["shots"]
    assert refusal(found).startswith("task.shots is missing")


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"participation__cohort": 5000}, "more than clients.count (4000)"),
        ({"participation__cohort": 300}, "does not divide clients.count (4000), as one-pass needs: try 250"),
        ({"participation__rounds": 41}, "last for 40 rounds of one-pass"),
        ({"participation__kind": "balls-and-bins", "participation__rounds": 20}, "try 40 rounds"),
        ({"clients__support_per_class": 3}, "more than clients.examples_per_class"),
        ({"noise": None}, "a private run needs all of clipping, noise, budget"),
        ({"noise__multiplier": None}, "noise.multiplier and budget.epsilon are both null"),
    ],
)
def test_values_that_do_not_go_together_are_refused(changes: dict[str, Any], part: str) -> None:
    assert part in refusal(values(**changes))


def test_poisson_participation_has_no_last_round() -> None:
    run = RunConfig.from_dict(values(participation={"kind": "poisson", "cohort": 300, "rounds": 500}))
    assert run.participation.rounds == 500


def test_a_part_cannot_be_made_with_a_bad_value() -> None:
    run = RunConfig.from_dict(values())
    with pytest.raises(BenchError, match=r"server\.rate is 0"):
        type(run.server)(optimizer="adam", rate=0, momentum=0, schedule="constant", final_rate=None)


def test_any_changed_value_is_another_run() -> None:
    """Every leaf of the configuration, changed to another valid value, changes the key; the seed does not."""
    base = RunConfig.from_dict(values())
    others: dict[str, Any] = {
        "method": "maml", "dataset": "glyphs", "clients.count": 8000, "clients.partition": "disjoint",
        "clients.query_per_class": 4, "participation.kind": "balls-and-bins", "participation.rounds": 39,
        "participation.cohort": 50, "client_update.order": 1, "clipping.rule": "constant", "clipping.form": "mean",
        "budget.epsilon": 2.0, "budget.delta": 2e-6, "budget.profile": "holds", "server.optimizer": "sgd",
        "clients.fragments": 400, "client_update.optimizer": "adam",
        "clipping.count_noise": 3.0,
    }  # fmt: skip
    # These change only with others: test_the_two_shapes_do_not_mix, and the tests of each part.
    only_one = {
        "model.name",
        "client_update.kind",
        "task.shots",
        "noise.decay",
        "seed",
        "model.normalisation",
        "model.pixel_mean",
        "model.pixel_deviation",
        "server.momentum",
        "server.schedule",
        "server.final_rate",
        "local",  # tests/federation/test_record_tasks.py
    }
    keys = {base.key}
    changeable = [key for key in leaves(values()) if key not in only_one]
    for key in changeable:
        value = leaves(values())[key]
        if key not in others:
            others[key] = (not value) if isinstance(value, bool) else value + 1
        keys.add(RunConfig.from_dict(set_key(values(), key, others[key])).key)
    assert len(keys) == 1 + len(changeable)
    assert RunConfig.from_dict(values(seed=7)).key == base.key
    assert RunConfig.from_dict(values(seed=7)).folder != base.folder


COSINE = {"server.schedule": "cosine", "server.final_rate": 0.001}


def test_a_schedule_is_another_run_and_is_checked() -> None:
    def with_keys(changes: dict[str, Any]) -> dict[str, Any]:
        found = values()
        for key, value in changes.items():
            found = set_key(found, key, value)
        return found

    assert RunConfig.from_dict(with_keys(COSINE)).key != RunConfig.from_dict(values()).key
    for changes, said in (
        (COSINE | {"server.final_rate": None}, "server.final_rate is null with server.schedule cosine: cosine needs"),
        (COSINE | {"server.schedule": "constant"}, "server.final_rate is 0.001 with server.schedule constant: cosine"),
        (COSINE | {"server.final_rate": 0.1}, "server.final_rate is 0.1, above server.rate (0.01)"),
        (COSINE | {"server.schedule": "step"}, 'server.schedule is "step": expected one of constant, cosine'),
    ):
        assert refusal(with_keys(changes)).startswith(said)


LOTS = {
    "client_update.kind": "local-steps", "participation.kind": "poisson-lots", "clients.partition": "fragments",
    "clients.fragments": 400, "clients.count": 10, "model.name": "cnn", "server.optimizer": "average",
    "task.shots": 0, "clipping.rule": "constant",
}  # fmt: skip


def silo(changes: dict[str, Any]) -> dict[str, Any]:
    """A run of clients that sum over their own records."""
    found = values()
    for key, value in (LOTS | changes).items():
        found = set_key(found, key, value)
    return found


def test_a_run_over_records_is_known_by_its_kind() -> None:
    run = RunConfig.from_dict(silo({}))
    assert run.by_record and not RunConfig.from_dict(values()).by_record
    assert run.folder.split("/")[2] == "5class" and run.clients_folder == "omniglot/10clients-400fragments-seed0"


@pytest.mark.parametrize("key", [key for key in LOTS if key not in ("clients.fragments", "clients.count")])
def test_the_two_shapes_do_not_mix(key: str) -> None:
    base = values()
    left: Any = base
    for name in key.split("."):
        left = left[name]
    assert "\n" not in refusal(silo({key: left}))


DIFFERENCE = {"client_update.kind": "model-difference", "participation.kind": "poisson", "server.optimizer": "sgd"}


def test_clients_may_send_model_differences() -> None:
    run = RunConfig.from_dict(silo(DIFFERENCE | {"server.momentum": 0.9, "participation.cohort": 5}))
    assert run.on_records and not run.by_record
    for key in DIFFERENCE:
        if key != "client_update.kind":
            assert f"{key} is" in refusal(silo(DIFFERENCE | {"participation.cohort": 5, key: LOTS[key]}))
    assert "only server.optimizer sgd has one" in refusal(values(server__momentum=0.5))
    assert "momentum is 1: expected a number at least 0 and below 1" in refusal(values(server__momentum=1))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clients.count": 401}, "more than the 400 fragments"),
        ({"clients.count": 7}, "try 399 fragments"),
        ({"clients.fragments": None}, "clients.fragments is null"),
        ({"noise.decay": 0.9, "validation.every": 1, "validation.public": False}, "drives the noise"),
        ({"noise.decay": 0.9}, "validation.every is 0"),
        ({"clipping.rule": "noised-mean-norm", "noise.multiplier": None, "budget.epsilon": 2.0}, "give a multiplier"),
        ({"noise.decay": 0.0}, "noise.decay is 0.0: expected a number above 0 and at most 1"),
        ({"noise.decay": 1.1}, "noise.decay is 1.1: expected a number above 0 and at most 1"),
        ({"clipping.rule": "percentile-of-releases"}, "local-steps has constant"),
        ({"clipping.threshold": None}, "needs a first threshold"),
    ],
)
def test_bad_values_of_a_run_over_records_are_one_line(changes: dict[str, Any], said: str) -> None:
    assert said in refusal(silo(changes))


def test_equal_configurations_are_one_run_however_they_are_written() -> None:
    written = values(noise__multiplier=1, clipping__percentile=90, clients__count=4000.0)
    shuffled = dict(reversed(list(written.items())))
    assert RunConfig.from_dict(shuffled).key == RunConfig.from_dict(values(noise__multiplier=1.0)).key


def test_folders_can_be_read() -> None:
    run = RunConfig.from_dict(values(dataset="glyphs", seed=2))
    assert run.folder == f"dp-agr/glyphs/5way-1shot/{run.key}/seed2"
    assert run.clients_folder == "glyphs/5way-4000clients-7examples-shared-seed2"
    assert run.task_name == "5-way 1-shot"


def test_notices_say_what_is_simulated_or_not_private() -> None:
    assert RunConfig.from_dict(values()).notices == ("simulated privacy: the noise seed is public",)
    loose = RunConfig.from_dict(values(budget__delta=1e-3)).notices
    assert "delta 0.001 is not below 1/4000" in loose[1]
    raw = RunConfig.from_dict(values(clipping__rule="percentile-of-raw-norms")).notices
    assert raw[-1] == "the clipping threshold reads raw norms: not private"


def test_a_damaged_config_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    for text in ("a: [", "", "- 1"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(BenchError, match=r"config\.yaml") as caught:
            RunConfig.from_yaml(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(BenchError, match="is missing"):
        RunConfig.from_yaml(tmp_path / "absent.yaml")


def test_an_overlay_may_hold_any_part_but_not_what_others_give() -> None:
    overlay = schema("config")["$defs"]["overlay"]
    check({"noise": {"multiplier": 2}}, overlay, "run")
    check({}, overlay, "run")
    with pytest.raises(BenchError, match=r"unknown key run\.seed"):
        check({"seed": 3}, overlay, "run")


def test_the_schemas_refuse_every_unknown_key() -> None:
    """No group of keys in either schema is open, save those that are keyed by names of the user's own."""

    def groups(part: Any) -> list[dict[str, Any]]:
        if not isinstance(part, dict):
            return []
        inner = [found for value in part.values() for found in groups(value)]
        return [part, *inner] if "properties" in part and "type" in part else inner

    for name in ("run", "config"):
        for group in groups(copy.deepcopy(schema(name))):
            assert group["additionalProperties"] is False, group

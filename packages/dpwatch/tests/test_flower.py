"""Watched strategies and mods of Flower: right ones, and planted faults."""

import itertools
import logging
import math
import random

import dp_accounting
import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import (
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp import strategy as strategies
from flwr.supercore import differential_privacy

from dploss.gaussian import gaussian_epsilon
from dpsum import DpsumError
from dpsum.ledger import read_ledger
from dpwatch.adapters import flower
from dpwatch.adapters.flower_nodes import InProcess

NODES = 40
COHORT = 10
DELTA = 1e-5
MODULE = strategies.dp_fixed_clipping
SHAPES = {"w": (30, 20), "b": (20,), "v": (20, 20)}
logging.getLogger("flwr").setLevel(logging.ERROR)


def make_nodes(*, examples=lambda node: 10, metrics=(), mods=()):
    """Return clients whose updates are normal draws, nearly all of which are clipped."""
    app = ClientApp()

    @app.train(mods=list(mods))
    def train(message, context):
        node = context.node_config["i"]
        rng = np.random.default_rng(node)
        update = {}
        for key, array in next(iter(message.content.array_records.values())).items():
            values = array.numpy() + rng.normal(size=array.shape)
            update[key] = Array(values.astype(array.dtype))
        shown = {"num-examples": examples(node)} | dict.fromkeys(metrics, 0.5)
        content = {"arrays": ArrayRecord(update), "metrics": MetricRecord(shown)}
        return Message(RecordDict(content), reply_to=message)

    return InProcess(app, {1000 + node: {"i": node} for node in range(NODES)})


def zero_model(kind=np.float32, value=0.0):
    arrays = {key: np.full(shape, value, kind) for key, shape in SHAPES.items()}
    return ArrayRecord({key: Array(values) for key, values in arrays.items()})


def fed_avg(kind=strategies.FedAvg, **options):
    return kind(**{"fraction_train": COHORT / NODES, "fraction_evaluate": 0} | options)


def fixed(side="Server", *, inner=None, cohort=COHORT, **options):
    kind = getattr(strategies, f"DifferentialPrivacy{side}SideFixedClipping")
    return kind(inner or fed_avg(), 1.5, 0.5, cohort, **options)


def adaptive(side, **options):
    kind = getattr(strategies, f"DifferentialPrivacy{side}SideAdaptiveClipping")
    return kind(fed_avg(), 0.9, COHORT, initial_clipping_norm=0.5, **options)


@pytest.fixture
def run(path):
    """Run a watched strategy; return its watch."""

    def run_rounds(strategy=None, nodes=None, *, rounds=3, model=None, **options):
        strategy = strategy or fixed()
        random.seed(0)
        np.random.seed(0)
        watched = flower.watch(strategy, path, **options)
        initial = model or zero_model()
        strategy.start(nodes or make_nodes(), initial, num_rounds=rounds)
        return watched

    return run_rounds


def lines_of(watched):
    return read_ledger(watched.path)


def reasons(lines):
    return [line.reason for line in lines]


# Right code


@pytest.mark.parametrize(
    ("side", "mods"), [("Server", []), ("Client", [fixedclipping_mod])]
)
def test_flower_fixed_clipping_has_a_line_a_round(run, side, mods):
    """Equal weights: the mean over 10 with noise z C / 10 is a sum of sensitivity C
    with noise z C.
    """
    lines = lines_of(run(fixed(side), make_nodes(mods=mods)))
    assert [line.round for line in lines] == [0, 1, 2]
    sampler = {"kind": "fixed-size", "clients": 40, "cohort": 10, "rounds": 3}
    for line in lines:
        assert line.sampler == sampler | {"rate": 0.25, "draw": "of the library"}
        assert line.threshold == line.sensitivity == 0.5
        assert (line.denominator, line.dimension) == (10, 1020)
        assert line.noise_std == pytest.approx(0.75, rel=1e-12)
        assert (line.reason, line.data_dependent_threshold) == ("", False)


def test_flower_account_of_known_cohorts_is_one_gaussian_below_the_claim(run):
    """A client may be in all of three rounds of z = 1.5. Flower uses Renyi divergences,
    which are above the exact value.
    """
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    sampling = SamplingMethod.NO_AMPLIFICATION
    config = PrivacyConfig(DELTA, NODES, relation, sampling)
    strategy = fixed(accountant=RdpAccountant(config))
    watched = run(strategy, cohorts="known")
    private = watched.account(DELTA).profiles["claimed"]
    assert (private.status, private.adjacency) == ("void", "add-or-remove")
    profiles = watched.account(DELTA, units_public=True).profiles
    assert profiles["claimed"].status == "proved"
    event = dp_accounting.GaussianDpEvent(1.5)
    renyi = dp_accounting.rdp.RdpAccountant().compose(event, 3).get_epsilon(DELTA)
    assert profiles["claimed"].epsilon_high == pytest.approx(renyi, rel=1e-9)
    proven = profiles["proven"]
    assert proven.status == "proved"
    assert proven.epsilon_high < renyi < 1.2 * proven.epsilon_high
    exact = gaussian_epsilon(1.5 / math.sqrt(3), DELTA)
    assert proven.epsilon_high == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("value", [0.0, 8.0])
@pytest.mark.parametrize(
    ("side", "mods"), [("Server", []), ("Client", [fixedclipping_mod])]
)
def test_flower_half_precision_is_right_code(run, side, mods, value):
    """Numbers of half precision near 8 are 1/128 apart: FedAvg's mean of ten is off by
    more than 1e-5 of their size.
    """
    model = zero_model(np.float16, value)
    lines = lines_of(run(fixed(side), make_nodes(mods=mods), model=model))
    assert reasons(lines) == [""] * 3


class UnweightedMean(strategies.FedAvg):
    """FedAvg of the replies' plain mean, whatever their numbers of examples."""

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        arrays, metrics = super().aggregate_train(server_round, replies)
        rows = [
            next(iter(reply.content.array_records.values())).to_numpy_ndarrays()
            for reply in replies
        ]
        means = [np.mean(values, axis=0) for values in zip(*rows, strict=True)]
        named = zip(arrays.items(), means, strict=True)
        plain = {
            key: Array(mean.astype(old.numpy().dtype)) for (key, old), mean in named
        }
        return ArrayRecord(plain), metrics


def test_flower_half_precision_hides_no_other_mean(run):
    nodes = make_nodes(examples=lambda node: 10 + 5 * node)
    strategy = fixed(inner=fed_avg(UnweightedMean))
    watched = run(
        strategy, nodes, model=zero_model(np.float16), examples=(10, 205), rounds=1
    )
    assert "did not release the weighted mean" in lines_of(watched)[0].reason


def test_flower_noise_of_adaptive_clipping_is_of_the_next_threshold(run):
    """Flower moves C before it adds the noise: updates clipped to C have noise in
    proportion to the next C.
    """
    lines = lines_of(run(adaptive("Server")))
    counts = lines[0::2]
    means = lines[1::2]
    values = {(line.name, line.sensitivity, line.noise_std) for line in counts}
    assert values == {("clipped-count", 0.5, COHORT / 20)}
    z = (0.9**-2 - (2 * COHORT / 20) ** -2) ** -0.5
    for line, next_line in itertools.pairwise(means):
        expected = z * next_line.threshold / line.threshold
        assert line.noise_multiplier == pytest.approx(expected, rel=1e-9)
        assert next_line.threshold != line.threshold
    assert reasons(lines) == [""] * 6


def test_flower_denominator_of_a_larger_cohort_is_less_noise(run):
    """The strategy states 20 clients and 10 take part."""
    lines = lines_of(run(fixed(cohort=20)))
    assert [line.noise_multiplier for line in lines] == pytest.approx([0.75] * 3)


# Weights


def mod_for_node(node, change):
    """Return a mod that changes the arrays of one node's reply in place."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        if context.node_config["i"] == node:
            arrays = next(iter(reply.content.array_records.values()))
            for key, array in list(arrays.items()):
                arrays[key] = Array(change(array.numpy()))
        return reply

    return mod


def test_flower_sensitivity_is_the_weight_of_the_heaviest_client(tmp_path):
    """Without its update the release moves by C n_max / sum n.

    The node sends a tiny update, not zero, since Flower divides by the norm.
    """
    random.seed(1)
    cohort = random.sample(range(NODES), COHORT)
    heaviest = cohort[0]

    def examples(node):
        return 200 if node == heaviest else 10 + node

    silence = mod_for_node(heaviest, lambda values: np.full_like(values, 1e-12))
    models = []
    for name, mods in (("with", []), ("without", [silence])):
        random.seed(1)
        np.random.seed(1)
        strategy = fixed()
        watched = flower.watch(strategy, tmp_path / name)
        nodes = make_nodes(examples=examples, mods=mods)
        result = strategy.start(nodes, zero_model(), num_rounds=1)
        arrays = result.arrays.to_numpy_ndarrays()
        models.append(np.concatenate([values.ravel() for values in arrays]))
    weights = [examples(node) for node in cohort]
    distance = np.linalg.norm(models[0] - models[1])
    assert distance == pytest.approx(0.5 * 200 / sum(weights), rel=1e-4)
    (line,) = lines_of(watched)
    assert line.sensitivity / line.denominator == pytest.approx(distance, rel=1e-4)
    multiplier = 1.5 * sum(weights) / 200 / COHORT
    assert line.noise_multiplier == pytest.approx(multiplier, rel=1e-9)
    assert "weighted by" in line.reason
    assert "examples=(least, greatest)" in line.reason


@pytest.mark.parametrize(("cohorts", "factor"), [("secret", 2), ("known", 1)])
def test_flower_sensitivity_follows_from_bounds_of_the_examples(run, cohorts, factor):
    """10 to 49 examples, 10 clients: at most 49 / (49 + 9 x 10) of the mean, and twice
    that for secret cohorts.
    """
    nodes = make_nodes(examples=lambda node: 10 + node)
    lines = lines_of(run(nodes=nodes, examples=(10, 49), cohorts=cohorts))
    assert reasons(lines) == [""] * 3
    expected = factor * 0.5 * 10 * 49 / 139
    assert [line.sensitivity for line in lines] == pytest.approx([expected] * 3)


def test_flower_reports_examples_beyond_their_bounds(run):
    nodes = make_nodes(examples=lambda node: 10 + node)
    line = lines_of(run(nodes=nodes, examples=(10, 12)))[0]
    assert "not from 10 to 12" in line.reason


# Faults


def half_noise(arrays, std):
    differential_privacy.add_gaussian_noise_inplace(arrays, std / 2)


def same_noise_in_each_round(arrays, std):
    rng = np.random.default_rng(3)
    for array in arrays:
        array += rng.normal(0, std, array.shape).astype(array.dtype)


def noise_on_the_largest_array_alone(arrays, std):
    largest = max(arrays, key=np.size)
    differential_privacy.add_gaussian_noise_inplace([largest], std)


def clip_each_array(param1, param2, clipping_norm):
    for index, previous in enumerate(param2):
        update = param1[index] - previous
        factor = min(1.0, clipping_norm / np.linalg.norm(update))
        param1[index] = previous + update * factor


@pytest.mark.parametrize(
    ("name", "fault", "message"),
    [
        ("add_gaussian_noise_inplace", half_noise, "has deviation 0.03"),
        ("add_gaussian_noise_inplace", same_noise_in_each_round, "used before"),
        (
            "add_gaussian_noise_inplace",
            noise_on_the_largest_array_alone,
            "noise of array",
        ),
        ("compute_clip_model_update", clip_each_array, "more than its threshold 0.5"),
    ],
)
def test_flower_reports_a_fault(run, monkeypatch, name, fault, message):
    """See `test_noise_seen.py` for further faults of the noise."""
    monkeypatch.setattr(MODULE, name, fault)
    line = lines_of(run())[-1]
    assert message in line.reason
    assert line.data_dependent_threshold


class SecondDraw(strategies.FedAvg):
    """Choice of nodes that the adapter does not know: the second of two draws."""

    def configure_train(self, *arguments):
        super().configure_train(*arguments)
        return super().configure_train(*arguments)


FED_ADAM = fixed(inner=fed_avg(strategies.FedAdam))
LOSS = {"metrics": ("train_loss",)}
RELEASED = "were averaged and released without noise"


@pytest.mark.parametrize(
    ("strategy", "nodes", "message"),
    [
        (fixed("Client"), {}, "more than its threshold"),  # a client without its mod
        # FedAvg averages the bit with the other metrics.
        (adaptive("Client"), {"mods": [adaptiveclipping_mod]}, f"norm_bit {RELEASED}"),
        (fixed(), LOSS, f"train_loss {RELEASED}"),
        (FED_ADAM, {}, "FedAdam did not release the weighted mean"),
    ],
)
def test_flower_reports_a_release_without_noise(run, strategy, nodes, message):
    watched = run(strategy, make_nodes(**nodes), rounds=2)
    assert message in lines_of(watched)[-1].reason


def test_flower_allows_metrics_that_are_kept(run):
    assert lines_of(run(nodes=make_nodes(**LOSS), metrics="kept"))[0].reason == ""


def test_flower_reports_evaluation_by_clients(path):
    strategy = fixed(inner=fed_avg(fraction_evaluate=0.5))
    watched = flower.watch(strategy, path, rounds=1)
    nodes = make_nodes()
    messages = strategy.configure_train(1, zero_model(), ConfigRecord(), nodes)
    strategy.aggregate_train(1, nodes.send_and_receive(messages))
    assert "fraction_evaluate to 0" in lines_of(watched)[0].reason


def test_flower_account_refuses_an_unknown_choice_of_nodes(run):
    watched = run(fixed(inner=fed_avg(SecondDraw)), rounds=1)
    with pytest.raises(DpsumError, match="sampler 'unknown', so no epsilon"):
        watched.account(DELTA)


@pytest.mark.parametrize(
    ("value", "examples"), [(1e308, 10), (math.nan, 10), (None, math.inf)]
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of Flower's own arithmetic
def test_flower_writes_a_line_whatever_a_client_sends(run, value, examples):
    """Flower clips huge updates to zero, but not NaN or the weights."""
    mods = []
    if value is not None:
        mods = [mod_for_node(3, lambda values: np.full(values.shape, value))]
    nodes = make_nodes(examples=lambda node: examples if node == 3 else 10, mods=mods)
    strategy = fixed(inner=fed_avg(fraction_train=1.0), cohort=NODES)
    (line,) = lines_of(run(strategy, nodes, rounds=1))
    is_clipped = examples == 10 and math.isfinite(value)
    assert (line.reason == "") == is_clipped
    assert line.data_dependent_threshold != is_clipped


# Local noise

SIGMA = math.sqrt(2 * math.log(1.25e5)) / 2.0


def run_local(folder, *, rounds=3, started=3, **options):
    """Run rounds of all nodes with Flower's local mod; return its watch."""
    mod = LocalDpMod(1.0, 1.0, 2.0, DELTA)
    mod = flower.watch_mod(mod, folder, rounds=rounds, **options)
    nodes = make_nodes(mods=[mod])
    fed_avg(fraction_train=1.0).start(nodes, zero_model(), num_rounds=started)
    return mod


def test_flower_local_mod_reports_examples_and_continues_its_ledger(tmp_path):
    """Each of two processes runs a round."""
    for _ in range(2):
        run_local(tmp_path, rounds=2, started=1)
    lines = read_ledger(tmp_path / "node-1003.jsonl")
    assert [line.round for line in lines] == [0, 1]
    for line in lines:
        assert (line.sensitivity, line.noise_std) == (1.0, pytest.approx(SIGMA))
        assert "the server sees the client's num-examples" in line.reason


def test_flower_local_mod_claims_one_message_of_three(tmp_path):
    """sigma = (2 ln(1.25/delta))^1/2 / epsilon over sensitivity 1; a client is in every
    round: three Gaussians.
    """
    mod = run_local(tmp_path, metrics="kept")
    profiles = mod.of(1003).account(DELTA).profiles
    claimed = profiles["claimed"]
    assert (claimed.epsilon_high, claimed.status) == (2.0, "void")
    for profile, square in (("proven", 3), ("replace_one", 12)):
        expected = gaussian_epsilon(SIGMA / math.sqrt(square), DELTA)
        assert profiles[profile].epsilon_high == pytest.approx(expected, rel=1e-6)


# Audits


@pytest.mark.parametrize("fault", [None, half_noise])
def test_flower_audit_refutes_planted_faults_alone(run, monkeypatch, fault):
    """The audit refutes correct code once in a thousand."""
    watched = run(rounds=1, cohorts="known")
    if fault:
        monkeypatch.setattr(MODULE, "add_gaussian_noise_inplace", fault)
    audit = watched.audit(DELTA, calls=200)
    assert audit.refuted is (fault is not None), audit.status
    assert audit.noise_multiplier == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("strategy", "z"),
    [
        (fixed(), 1.5),
        (fixed("Client"), 1.5),
        (adaptive("Server", clip_norm_lr=1e-9), (0.9**-2 - 1) ** -0.5),
    ],
)
def test_flower_release_of_a_strategy_clips_averages_and_noises(strategy, z):
    """120,000 draws: the deviation is within ten of its deviations.

    The count of the adaptive strategy has noise of deviation 1/2, so z^-2 = 0.9^-2 - 1.
    """
    rows = np.zeros((COHORT, 2000))
    rows[0, 0] = 7.0
    rows[1, 1] = 0.1
    release = flower.release_of(strategy)
    releases = np.array([release(rows) for _ in range(60)])
    std = z * 0.5 / COHORT
    assert releases[:, 2:].std() == pytest.approx(std, rel=0.02)
    means = releases.mean(axis=0)[:2]
    np.testing.assert_allclose(means, [0.05, 0.01], atol=6 * std / math.sqrt(60))
    assert strategy.clipping_norm == 0.5

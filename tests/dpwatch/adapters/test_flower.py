"""The ledger of Flower's own strategies and mods, right and with faults planted in its
loop.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import strategy as flower_strategies
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    dp_adaptive_clipping,
    dp_fixed_clipping,
)
from flwr.supercore import differential_privacy

from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.errors import DpsumError
from dpsum.ledger import Release, read_ledger
from dpwatch.adapters import flower
from dpwatch.adapters.flower_nodes import InProcess

NODES, COHORT = 40, 10
SHAPES = {"w": (30, 20), "b": (20,), "v": (20, 20)}
logging.getLogger("flwr").setLevel(logging.ERROR)


def nodes(
    *,
    examples: Any = lambda i: 10,
    metrics: tuple[str, ...] = (),
    mods: Any = (),
    size: float = 1.0,
) -> InProcess:
    """Clients whose updates are normal draws, so that nearly all of them are
    clipped.
    """
    app = ClientApp()

    @app.train(mods=list(mods))
    def train(message: Message, context: Any) -> Message:
        number = context.node_config["i"]
        sent = next(iter(message.content.array_records.values()))
        draw = np.random.default_rng(number)
        arrays = {
            key: Array(
                np.asarray(
                    one.numpy() + size * draw.normal(size=one.numpy().shape),
                    one.numpy().dtype,
                )
            )
            for key, one in sent.items()
        }
        shown = {"num-examples": examples(number)} | dict.fromkeys(metrics, 0.5)
        return Message(
            RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord(shown)}),
            reply_to=message,
        )

    return InProcess(app, {1000 + i: {"i": i} for i in range(NODES)})


def zeros(shapes: dict[str, tuple[int, ...]] = SHAPES) -> ArrayRecord:
    return ArrayRecord(
        {key: Array(np.zeros(shape, np.float32)) for key, shape in shapes.items()}
    )


def fed_avg(**kwargs: Any) -> FedAvg:
    return FedAvg(
        **{"fraction_train": COHORT / NODES, "fraction_evaluate": 0.0} | kwargs
    )


def fixed(
    inner: Any = None,
    *,
    z: float = 1.5,
    clip: float = 0.5,
    cohort: int = COHORT,
    **kwargs: Any,
) -> Any:
    return DifferentialPrivacyServerSideFixedClipping(
        inner or fed_avg(), z, clip, cohort, **kwargs
    )


def lines(
    strategy: Any,
    folder: Path,
    *,
    grid: Any = None,
    rounds: int = 3,
    seed: int = 0,
    **kwargs: Any,
) -> list[Release]:
    random.seed(seed)
    np.random.seed(seed)
    watched = flower.watch(strategy, folder / "ledger.jsonl", **kwargs)
    strategy.start(
        grid or nodes(), zeros(kwargs.pop("shapes", SHAPES)), num_rounds=rounds
    )
    return read_ledger(watched.path)


@pytest.mark.parametrize("side", ["server", "client"])
def test_a_fixed_threshold_is_one_line_a_round_with_what_ran(
    side: str, tmp_path: Path
) -> None:
    """Equal weights: the mean over 10 with noise z C / 10 is a sum of sensitivity C
    with noise z C.
    """
    strategy, grid = fixed(), nodes()
    if side == "client":
        strategy = DifferentialPrivacyClientSideFixedClipping(
            fed_avg(), 1.5, 0.5, COHORT
        )
        grid = nodes(mods=[fixedclipping_mod])
    found = lines(strategy, tmp_path, grid=grid)
    assert [event.round for event in found] == [0, 1, 2]
    for event in found:
        assert event.sampler == {
            "kind": "fixed-size",
            "clients": 40,
            "cohort": 10,
            "rounds": 3,
            "rate": 0.25,
        }
        assert (
            event.threshold,
            event.sensitivity,
            event.denominator,
            event.dimension,
        ) == (0.5, 0.5, 10, 1020)
        assert event.noise_std == pytest.approx(0.75, rel=1e-12)
        assert (event.reason, event.data_dependent_threshold) == ("", False)


def test_right_code_passes_at_twenty_seeds(tmp_path: Path) -> None:
    for seed in range(20):
        found = lines(fixed(), tmp_path / str(seed), seed=seed, rounds=5)
        assert [event.reason for event in found] == [""] * 5


def test_known_cohorts_are_gaussians_one_after_another(tmp_path: Path) -> None:
    """Three rounds of z = 1.5 that a client may all be in are one Gaussian of 1.5 /
    3^1/2.
    """
    strategy = fixed()
    watched = flower.watch(strategy, tmp_path / "ledger.jsonl", cohorts="known")
    strategy.start(nodes(), zeros(), num_rounds=3)
    holds = watched.account(1e-5).profiles["holds"]
    assert holds.epsilon_high == pytest.approx(
        gaussian_epsilon(1.5 / math.sqrt(3), 1e-5), rel=1e-9
    )
    assert holds.status == "proved"


def test_the_accountants_epsilon_is_the_claim_and_an_upper_end(tmp_path: Path) -> None:
    """Flower's Renyi accountant, no amplification: dp_accounting's of three Gaussians,
    above the exact one.
    """
    accounting = pytest.importorskip("flwr.supercore.privacy_accounting.rdp_accountant")
    rdp = pytest.importorskip("dp_accounting").rdp
    from dp_accounting import GaussianDpEvent
    from flwr.supercore.privacy_accounting import (
        NeighboringRelation,
        PrivacyConfig,
        SamplingMethod,
    )

    config = PrivacyConfig(
        1e-5,
        NODES,
        NeighboringRelation.ADD_OR_REMOVE_ONE,
        SamplingMethod.NO_AMPLIFICATION,
    )
    strategy = fixed(accountant=accounting.RdpAccountant(config))
    watched = flower.watch(strategy, tmp_path / "ledger.jsonl", cohorts="known")
    strategy.start(nodes(), zeros(), num_rounds=3)
    profiles = watched.account(1e-5).profiles
    wanted = rdp.RdpAccountant().compose(GaussianDpEvent(1.5), 3).get_epsilon(1e-5)
    assert profiles["as_claimed"].epsilon_high == pytest.approx(wanted, rel=1e-9)
    assert (
        profiles["holds"].epsilon_high < wanted < 1.2 * profiles["holds"].epsilon_high
    )
    exact = (
        pytest.importorskip("dp_accounting")
        .pld.PLDAccountant()
        .compose(GaussianDpEvent(1.5), 3)
    )
    assert profiles["holds"].epsilon_high == pytest.approx(
        exact.get_epsilon(1e-5), abs=1e-3
    )


def test_a_client_moves_a_weighted_mean_by_its_weight(tmp_path: Path) -> None:
    """What Flower releases with one client's update at zero, all else the same, is C
    n_max / sum n away.
    """

    def at(
        zero: int | None, folder: Path
    ) -> tuple[np.ndarray, list[Release], list[int]]:
        drawn: list[int] = []

        def examples(number: int) -> int:
            drawn.append(number)
            return (
                200
                if number == zero or (zero is None and number == heaviest)
                else 10 + number
            )

        grid = nodes(examples=examples)
        if zero is not None:
            grid._contexts[1000 + zero].node_config["silent"] = True
        return (
            _released(grid, folder, silent=zero),
            read_ledger(folder / "ledger.jsonl"),
            drawn,
        )

    random.seed(1)
    heaviest = random.sample(range(NODES), COHORT)[0]
    one, found, drawn = at(None, tmp_path / "one")
    other, _, again = at(heaviest, tmp_path / "other")
    assert drawn == again and heaviest in drawn
    weights = [200 if number == heaviest else 10 + number for number in drawn]
    moved = float(np.linalg.norm(one - other))
    assert moved == pytest.approx(0.5 * 200 / sum(weights), rel=1e-4)
    (event,) = found
    assert event.sensitivity / event.denominator == pytest.approx(moved, rel=1e-4)
    assert event.noise_multiplier == pytest.approx(
        1.5 * sum(weights) / 200 / COHORT, rel=1e-9
    )
    assert (
        "weighted by" in event.reason and "examples=(least, greatest)" in event.reason
    )


def _released(grid: InProcess, folder: Path, *, silent: int | None) -> np.ndarray:
    """The model after one round, of known noise; `silent` sends the model back as it
    came.
    """
    strategy, app = fixed(), grid._app

    def answer(message: Message, context: Any) -> Message:
        reply = app(message, context)
        if context.node_config["i"] == silent:
            # Flower divides by the norm: next to nothing, in place of nothing.
            tiny = {
                key: Array(np.full(one.shape, 1e-12, np.float32))
                for key, one in zeros().items()
            }
            reply.content["arrays"] = ArrayRecord(tiny)
        return reply

    grid._app = answer  # type: ignore[assignment]
    random.seed(1)
    np.random.seed(1)
    flower.watch(strategy, folder / "ledger.jsonl")
    result = strategy.start(grid, zeros(), num_rounds=1)
    return np.concatenate([one.ravel() for one in result.arrays.to_numpy_ndarrays()])


def test_bounds_of_the_examples_bound_the_weight_in_every_cohort(
    tmp_path: Path,
) -> None:
    """From 10 to 49 examples, 10 clients: at most 49 / (49 + 9 x 10) of the mean, and
    twice that for secret cohorts.
    """
    found = lines(
        fixed(), tmp_path, grid=nodes(examples=lambda i: 10 + i), examples=(10, 49)
    )
    assert [event.reason for event in found] == [""] * 3
    assert [event.sensitivity for event in found] == pytest.approx(
        [2 * 0.5 * 10 * 49 / 139] * 3
    )
    known = lines(
        fixed(),
        tmp_path / "known",
        grid=nodes(examples=lambda i: 10 + i),
        examples=(10, 49),
        cohorts="known",
    )
    assert [event.sensitivity for event in known] == pytest.approx(
        [0.5 * 10 * 49 / 139] * 3
    )
    outside = lines(
        fixed(),
        tmp_path / "outside",
        grid=nodes(examples=lambda i: 10 + i),
        examples=(10, 12),
    )
    assert "not from 10 to 12" in outside[0].reason


Noise = differential_privacy.add_gaussian_noise_inplace


def _half(arrays: Any, std: float) -> None:
    Noise(arrays, std / 2)


def _by_array(arrays: Any, std: float) -> None:
    Noise(arrays, std / math.sqrt(len(arrays)))


def _same_stream(arrays: Any, std: float) -> None:
    np.random.seed(7)
    Noise(arrays, std)


def _same_for_each_array(arrays: Any, std: float) -> None:
    for array in arrays:
        np.random.seed(random.getrandbits(30) if array is arrays[0] else SEEN[-1])
        SEEN.append(int(np.random.get_state()[1][0]))
        Noise([array], std)


def _not_on_some(arrays: Any, std: float) -> None:
    kept = arrays[0][:3].copy()
    Noise(arrays, std)
    arrays[0][:3] = kept


SEEN: list[int] = []


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        (_half, "said to have deviation 0.075 and has 0.03"),
        (_by_array, "said to have deviation 0.075 and has 0.04"),
        (_same_stream, "drawn already in a release before"),
        (_same_for_each_array, "drawn already in this release"),
        (_not_on_some, "60 of 1,020 coordinates have no noise"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_fault_of_the_noise_is_seen(
    planted: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dp_fixed_clipping, "add_gaussian_noise_inplace", planted)
    found = lines(fixed(), tmp_path)
    assert said in found[-1].reason
    assert found[-1].data_dependent_threshold


def _per_layer(param1: Any, param2: Any, clipping_norm: float) -> None:
    for number, old in enumerate(param2):
        update = param1[number] - old
        param1[number] = old + update * min(1.0, clipping_norm / np.linalg.norm(update))


def _not_at_all(param1: Any, param2: Any, clipping_norm: float) -> None:
    """Clipping comes after adding, or never: either way what is averaged is not
    clipped.
    """


@pytest.mark.parametrize("planted", [_per_layer, _not_at_all])
def test_a_fault_of_the_clipping_is_seen(
    planted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dp_fixed_clipping, "compute_clip_model_update", planted)
    assert "more than its threshold 0.5" in lines(fixed(), tmp_path)[0].reason


def test_a_client_without_its_mod_is_seen(tmp_path: Path) -> None:
    strategy = DifferentialPrivacyClientSideFixedClipping(fed_avg(), 1.5, 0.5, COHORT)
    assert (
        "more than its threshold" in lines(strategy, tmp_path, grid=nodes())[0].reason
    )


def test_a_parameter_that_is_one_number_is_not_clipped_by_flower(
    tmp_path: Path,
) -> None:
    """numpy gives back a number for an array of no dimensions, and Flower's clipping in
    place then changes a copy.
    """
    strategy, shapes = fixed(), {"w": (30, 20), "scale": ()}
    watched = flower.watch(strategy, tmp_path / "ledger.jsonl")
    strategy.start(nodes(size=3.0), zeros(shapes), num_rounds=1)
    (event,) = read_ledger(watched.path)
    assert "more than its threshold 0.5" in event.reason


def test_a_denominator_of_another_cohort_is_less_noise(tmp_path: Path) -> None:
    """20 clients are said and 10 come: half the noise for what one client moves."""
    found = lines(fixed(cohort=20), tmp_path)
    assert [event.noise_multiplier for event in found] == pytest.approx([0.75] * 3)


def test_the_noise_of_adaptive_clipping_is_of_the_next_threshold(
    tmp_path: Path,
) -> None:
    """Flower moves C before it adds the noise: updates clipped to C have noise in
    proportion to the next C.
    """
    strategy = DifferentialPrivacyServerSideAdaptiveClipping(
        fed_avg(), 0.9, COHORT, initial_clipping_norm=0.5
    )
    found = lines(strategy, tmp_path, rounds=3)
    counts, means = found[0::2], found[1::2]
    assert {event.name for event in counts} == {"clipped-count"}
    assert {(event.sensitivity, event.noise_std) for event in counts} == {
        (0.5, COHORT / 20)
    }
    z = (0.9**-2 - (2 * COHORT / 20) ** -2) ** -0.5
    for event, following in itertools.pairwise(means):
        assert event.noise_multiplier == pytest.approx(
            z * following.threshold / event.threshold, rel=1e-9
        )
        assert following.threshold != event.threshold
    assert [event.reason for event in found] == [""] * 6


def test_adaptive_clipping_at_the_client_shows_the_bits_as_a_metric(
    tmp_path: Path,
) -> None:
    """FedAvg averages the bit with the other metrics, so that it is released without
    the noise of its count.
    """
    strategy = DifferentialPrivacyClientSideAdaptiveClipping(
        fed_avg(), 0.9, COHORT, initial_clipping_norm=0.5
    )
    found = lines(strategy, tmp_path, grid=nodes(mods=[adaptiveclipping_mod]))
    assert "norm_bit were averaged and released without noise" in found[-1].reason


def test_metrics_beside_the_model_are_a_release_unless_they_are_kept(
    tmp_path: Path,
) -> None:
    noisy = nodes(metrics=("train_loss",))
    shown = lines(fixed(), tmp_path / "shown", grid=noisy)
    assert "train_loss were averaged and released without noise" in shown[0].reason
    assert lines(fixed(), tmp_path / "kept", grid=noisy, metrics="kept")[0].reason == ""
    strategy = fixed(fed_avg(fraction_evaluate=0.5))
    watched = flower.watch(strategy, tmp_path / "evaluated.jsonl", rounds=1)
    grid = nodes()
    replies = grid.send_and_receive(
        strategy.configure_train(1, zeros(), flower_config(), grid)
    )
    strategy.aggregate_train(1, replies)
    assert "fraction_evaluate to 0" in read_ledger(watched.path)[0].reason


def flower_config() -> Any:
    from flwr.app import ConfigRecord

    return ConfigRecord()


def test_a_server_optimiser_under_the_noise_has_no_known_sensitivity(
    tmp_path: Path,
) -> None:
    found = lines(fixed(FedAdam(fraction_train=0.25, fraction_evaluate=0.0)), tmp_path)
    assert "FedAdam did not release the weighted mean" in found[0].reason


def test_another_choice_of_nodes_is_an_unknown_sampler(tmp_path: Path) -> None:
    class First(FedAvg):
        def configure_train(
            self, server_round: int, arrays: Any, config: Any, grid: Any
        ) -> Any:
            record = RecordDict({"arrays": arrays, "config": config})
            return self._construct_messages(
                record, sorted(grid.get_node_ids())[:COHORT], "train"
            )

    strategy = fixed(First(fraction_train=0.25, fraction_evaluate=0.0))
    watched = flower.watch(strategy, tmp_path / "ledger.jsonl")
    strategy.start(nodes(), zeros(), num_rounds=1)
    with pytest.raises(DpsumError, match="sampler 'unknown', so no epsilon"):
        watched.account(1e-5)


def test_the_local_mod_claims_one_message(tmp_path: Path) -> None:
    """sigma = (2 ln(1.25/delta))^1/2 / epsilon over sensitivity 1; a client is in every
    round, so three Gaussians.
    """
    mod = flower.watch_mod(LocalDpMod(1.0, 1.0, 2.0, 1e-5), tmp_path, rounds=3)
    inner = fed_avg(fraction_train=1.0)
    inner.start(nodes(mods=[mod]), zeros(), num_rounds=3)
    sigma = math.sqrt(2 * math.log(1.25e5)) / 2.0
    found = read_ledger(tmp_path / "node-1003.jsonl")
    assert [(event.sensitivity, event.noise_std, event.reason) for event in found] == [
        (
            1.0,
            pytest.approx(sigma),
            "the server sees the client's num-examples, which have no noise",
        )
    ] * 3
    kept = flower.watch_mod(
        LocalDpMod(1.0, 1.0, 2.0, 1e-5), tmp_path / "kept", rounds=3, metrics="kept"
    )
    fed_avg(fraction_train=1.0).start(nodes(mods=[kept]), zeros(), num_rounds=3)
    profiles = kept.of(1003).account(1e-5).profiles
    assert (profiles["as_claimed"].epsilon_high, profiles["as_claimed"].status) == (
        2.0,
        "void",
    )
    assert profiles["holds"].epsilon_high == pytest.approx(
        gaussian_epsilon(sigma / math.sqrt(3), 1e-5), rel=1e-9
    )
    assert profiles["replace_one"].epsilon_high == pytest.approx(
        gaussian_epsilon(sigma / math.sqrt(12), 1e-5), rel=1e-6
    )


def test_a_client_that_goes_on_in_a_new_process_goes_on_with_its_ledger(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        mod = flower.watch_mod(
            LocalDpMod(1.0, 1.0, 2.0, 1e-5), tmp_path, rounds=2, metrics="kept"
        )
        fed_avg(fraction_train=1.0).start(nodes(mods=[mod]), zeros(), num_rounds=1)
    assert [event.round for event in read_ledger(tmp_path / "node-1000.jsonl")] == [
        0,
        1,
    ]


def test_what_cannot_be_watched_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(
        DpsumError, match="FedAvg is no strategy with differential privacy"
    ):
        flower.watch(fed_avg(), tmp_path / "a.jsonl")
    strategy = fixed()
    flower.watch(strategy, tmp_path / "a.jsonl")
    with pytest.raises(DpsumError, match="watched already"):
        flower.watch(strategy, tmp_path / "b.jsonl")
    with pytest.raises(DpsumError, match="cohorts is 'hidden'"):
        flower.watch(fixed(), tmp_path / "c.jsonl", cohorts="hidden")
    with pytest.raises(DpsumError, match="metrics is 'some'"):
        flower.watch(fixed(), tmp_path / "d.jsonl", metrics="some")
    (tmp_path / "e.jsonl").write_text(json.dumps({"name": "x"}) + "\n")
    with pytest.raises(DpsumError, match="has the lines of another run"):
        flower.watch(fixed(), tmp_path / "e.jsonl")
    bare = fixed()
    flower.watch(bare, tmp_path / "f.jsonl")
    with pytest.raises(DpsumError, match="how many rounds are planned"):
        bare.configure_train(1, zeros(), flower_config(), nodes())
    assert hasattr(flower_strategies, "FedAvg") and hasattr(
        dp_adaptive_clipping, "add_gaussian_noise_inplace"
    )


@pytest.mark.parametrize(
    "planted", [None, _half, _not_on_some], ids=["right", "half", "not_on_some"]
)
def test_an_audit_of_its_own_release(
    planted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right code is refuted once in a thousand audits; half the noise, and none on some
    coordinates, always.
    """
    watched = flower.watch(fixed(), tmp_path / "ledger.jsonl", cohorts="known")
    watched._strategy.start(nodes(), zeros(), num_rounds=1)
    if planted is _half:
        monkeypatch.setattr(dp_fixed_clipping, "add_gaussian_noise_inplace", _half)
    elif planted is _not_on_some:
        monkeypatch.setattr(
            dp_fixed_clipping, "add_gaussian_noise_inplace", _not_on_some
        )
    found = watched.audit(1e-5, calls=200)
    assert found.refuted is (planted is not None), found.status
    assert found.noise_multiplier == pytest.approx(1.5)


@pytest.mark.parametrize("side", ["server", "client", "adaptive"])
def test_the_release_that_an_audit_calls_is_the_strategys(side: str) -> None:
    """Rows are clipped to C, averaged, and noised with deviation z C / 10 on each
    coordinate.
    """
    strategy = {
        "server": fixed(),
        "client": DifferentialPrivacyClientSideFixedClipping(
            fed_avg(), 1.5, 0.5, COHORT
        ),
        "adaptive": DifferentialPrivacyServerSideAdaptiveClipping(
            fed_avg(), 0.9, COHORT, initial_clipping_norm=0.5, clip_norm_lr=1e-9
        ),
    }[side]
    rows = np.zeros((COHORT, 2000))
    rows[0, 0], rows[1, 1] = 7.0, 0.1
    call = flower.release_of(strategy)
    seen = np.array([call(rows) for _ in range(60)])
    z = (0.9**-2 - (2 * COHORT / 20) ** -2) ** -0.5 if side == "adaptive" else 1.5
    assert seen[:, 2:].std() == pytest.approx(
        z * 0.5 / COHORT, rel=0.02
    )  # of 120,000 draws, within 10 deviations
    np.testing.assert_allclose(
        seen.mean(axis=0)[:2], [0.05, 0.01], atol=6 * z * 0.05 / math.sqrt(60)
    )
    assert strategy.clipping_norm == 0.5


def test_a_swap_of_two_clients_moves_a_weighted_mean_by_twice_the_largest_weight() -> (
    None
):
    """What secret cohorts of unequal weights count on, for a thousand cohorts of
    vectors at the threshold.
    """
    draw, most = np.random.default_rng(5), 0.0
    for _ in range(1000):
        examples = draw.integers(10, 50, size=11).astype(float)
        rows = (
            draw.choice([-1.0, 1.0], size=11)
            if draw.random() < 0.5
            else np.r_[1.0, -np.ones(10)]
        )
        one, other = np.r_[0, 2:11], np.r_[1, 2:11]
        means = [rows[at] @ examples[at] / examples[at].sum() for at in (one, other)]
        largest = max(examples[at].max() / examples[at].sum() for at in (one, other))
        moved = abs(means[0] - means[1]) / largest
        assert moved <= 2 + 1e-12
        most = max(most, moved)
    assert most > 1.8


@pytest.mark.parametrize(
    ("value", "examples"),
    [(1.2e154, 10), (1e308, 10), (math.nan, 10), (0.0, 1e308), (0.0, math.inf)],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of Flower's own arithmetic
def test_nothing_that_one_client_sends_stops_a_round(
    value: float, examples: float, tmp_path: Path
) -> None:
    """The line is written. Flower clips huge updates to zero, but neither NaN nor the
    weights, so that these have a reason.
    """

    def poisoned(message: Message, context: Any, call_next: Any) -> Message:
        reply: Message = call_next(message, context)
        if context.node_config["i"] == 3 and value:
            sent = next(iter(reply.content.array_records.values()))
            for key, array in list(sent.items()):
                sent[key] = Array(np.full(array.numpy().shape, value))
        return reply

    grid = nodes(examples=lambda i: examples if i == 3 else 10, mods=[poisoned])
    strategy = fixed(fed_avg(fraction_train=1.0), cohort=NODES)
    (event,) = lines(strategy, tmp_path, grid=grid, rounds=1)
    clipped = math.isfinite(value) and examples == 10
    assert bool(event.reason) == event.data_dependent_threshold == (not clipped)


@pytest.mark.parametrize("clip", [1e160, 1e-160, math.inf])
def test_a_clipping_norm_that_no_ledger_holds_is_refused_at_once(
    clip: float, tmp_path: Path
) -> None:
    strategy = fixed(clip=clip)
    with pytest.raises(DpsumError, match=r"clipping norm is .* from 1e-150"):
        flower.watch(strategy, tmp_path / "ledger.jsonl", rounds=1)
    assert not (tmp_path / "ledger.jsonl").exists()
    mod = LocalDpMod(clip, 1.0, 1.0, 1e-5)
    with pytest.raises(DpsumError, match="clipping norm is"):
        flower.watch_mod(mod, tmp_path, rounds=1)

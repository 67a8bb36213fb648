"""The rounds of DP-FNAS: two sums of each party, over halves, by Algorithm 1; and of
networks of known cells.
"""

import json
import math
import multiprocessing
import os
import signal
import time
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch

from dpfedbench.data.partition import RecordPartition
from dpfedbench.data.records import load_records
from dpfedbench.errors import BenchError
from dpfedbench.evaluation import evaluate
from dpfedbench.evaluation.genotype_picture import write_cells
from dpfedbench.experiments.expand import named
from dpfedbench.federation import engine
from dpfedbench.federation.accounts import account_run
from dpfedbench.models.torch_gradients import TorchGradients
from dpfedbench.papers import METHODS, read_run
from dpfedbench.papers.adap_dp_fl import NormOfRelease
from dpfedbench.papers.dp_fnas.methods import DpFnas
from dpfedbench.papers.dp_fnas.search_steps import (
    ARCHITECTURE,
    WEIGHTS,
    SearchSteps,
)
from dpfedbench.parts.client_updates.summed_steps import Parties
from dpsum.accounting.account import account
from dpsum.ledger import chain_of, read_ledger
from dpsum.private_sum import PrivateSum
from dpsum.randomness import stream

from . import conftest
from .conftest import LOTS, rounds_of, train

SEARCH = {
    "method": "dp-fnas",
    "model": {
        "kind": "darts-search",
        "operations": ["none", "skip_connect", "sep_conv_3x3"],
        "nodes": 1,
        "cells": 2,
        "filters": 2,
        "pooling": 7,
        "reductions": [1],
    },
    "participation": {"rounds": 4},
    "client_update": {
        "kind": "search-steps",
        "weights": {"rate": 0.5, "optimizer": "sgd"},
        "architecture": {"rate": 0.01},
    },
    "clipping": {"threshold": 0.1},
    "noise": {"multiplier": 1.0},
    "architecture_clipping": {"threshold": 0.01},
    "architecture_noise": {"multiplier": 1.5},
    "budget": {"profile": "holds"},
    "validation": {"every": 0},
    "evaluation": {"every": 0},
}
CELLS = {
    "method": "dp-cells",
    "model": {**SEARCH["model"], "kind": "darts-cells"},
    "client_update": {
        "kind": "summed-steps",
        "weights": {"rate": 0.5, "optimizer": "sgd"},
    },
}


def make_config(*overlays):
    return conftest.make_config(SEARCH, *overlays, general=LOTS)


def cells(search=None, *overlays):
    values = {
        key: SEARCH[key]
        for key in (
            "participation",
            "clipping",
            "noise",
            "budget",
            "validation",
            "evaluation",
        )
    }
    genotype = (
        {}
        if search is None
        else {"model": {"genotype": {"kind": "found", "search": named(search)}}}
    )
    return conftest.make_config(values, CELLS, genotype, *overlays, general=LOTS)


def halves_of(run):
    """Of each sum, for each of the four parties, the places of its half."""
    return {
        sum_.name: [
            run.client_update.places(sum_, seed=run.seed, client=k, records=100)
            for k in range(4)
        ]
        for sum_ in run.own_sums()
    }


def test_halves_are_disjoint_and_of_one_size():
    for halves in zip(*halves_of(make_config()).values(), strict=True):
        assert [len(half) for half in halves] == [50, 50]
        assert not set(halves[0]) & set(halves[1])


def check_algorithm_1(silos, folder):
    """W steps first, along clipped gradients of training lots; then A, at the new W, of
    validation lots; by autograd.

    Without noise, and with each record's gradient taken by torch of the records that
    each half should have.
    """
    sgd = {"rate": 2.0, "optimizer": {"kind": "sgd", "momentum": 0.0}, "decay": 0.01}
    run = make_config({"client_update": {"architecture": sgd}})
    found = rounds_of(run, silos, folder)
    dataset, partition = load_records(silos[0]), RecordPartition.load(silos[1])
    net = run.net(dataset.image_shape, 10)
    theta = torch.from_numpy(net.initial(stream(0, "initial-weights")))
    for index in range(2):
        for block, half, limit in (
            ("weights", "training half", 0.1),
            ("architecture", "validation half", 0.01),
        ):
            place, total = net.blocks[block], 0.0
            for party in range(4):
                order = stream(0, "halves", party).permutation(100)
                places = np.sort(order[:50] if block == "weights" else order[50:])
                drawn = stream(0, f"lot/{half}", index, 0, party).random(50)
                lot = np.sort(partition.records[party])[places][drawn < 8 / 50]
                if not len(lot):
                    continue
                rows = torch.empty((len(lot), net.dimension))
                TorchGradients(net).each(
                    theta.numpy(), dataset.images[lot], dataset.labels[lot], rows
                )
                rows = rows[:, place]
                total = total + (
                    rows * (limit / rows.norm(dim=1, keepdim=True)).clamp(max=1)
                ).sum(dim=0)
            mean = total / (4 * 8)  # of four expected lots, not of those that came
            # A decay is added to the mean, as torch's optimisers have it.
            theta[place] -= (
                0.5 * mean if block == "weights" else 2.0 * (mean + 0.01 * theta[place])
            )
        found.round(index)
        for place in net.blocks.values():
            torch.testing.assert_close(
                found.theta[place], theta[place], rtol=1e-4, atol=1e-6
            )


def test_a_round_without_noise_is_algorithm_1_by_autograd(silos, tmp_path, monkeypatch):
    monkeypatch.setattr(PrivateSum, "_noised", lambda self, total, generator: total)
    check_algorithm_1(silos, tmp_path)


@pytest.mark.parametrize("apart", [0.0, 7.0])
def test_the_history_says_of_parties_what_follows_from_their_sum(
    silos, tmp_path, monkeypatch, apart
):
    """Everyone sees the parties' sums' sum alone: the history is the same whatever the
    parties' own releases were.

    Two of the four release what the other two take back; of the sum, 3 in each of the
    coordinates, the norm is 3 d^1/2.
    """
    party = Parties._party

    def told(self, phase, theta, index, client):
        released, losses, raw = party(self, phase, theta, index, client)
        return torch.full_like(released, 0.75 + apart * (-1) ** client), losses, raw

    monkeypatch.setattr(Parties, "_party", told)
    found = rounds_of(make_config(), silos, tmp_path)
    row, _ = found.round(0)
    sizes = {name: place.stop - place.start for name, place in found.net.blocks.items()}
    assert row["released_norm"] == pytest.approx(
        3 * math.sqrt(sizes["weights"]), rel=1e-12
    )
    assert row[f"{ARCHITECTURE}_released_norm"] == pytest.approx(
        3 * math.sqrt(sizes["architecture"]), rel=1e-12
    )


class FollowsReleases(DpFnas):
    """DP-FNAS whose weights' thresholds follow each party's own releases."""

    name: ClassVar[str] = "follows-releases"
    clipping: NormOfRelease = NormOfRelease(threshold=1.0)


def test_a_threshold_that_follows_a_partys_own_releases_is_refused(monkeypatch):
    """The ledger tells each party's threshold to everyone, whose account is of the sum
    over parties.
    """
    monkeypatch.setitem(METHODS, FollowsReleases.name, FollowsReleases)
    values = make_config().plain() | {"method": FollowsReleases.name}
    with pytest.raises(
        BenchError,
        match=(
            r"^clipping\.kind is norm-of-release for .*the ledger would show it to"
            r" everyone"
        ),
    ):
        FollowsReleases.read(
            values | {"clipping": {"kind": "norm-of-release", "threshold": 1.0}}
        )


def clip_the_batch(monkeypatch):
    monkeypatch.setattr(PrivateSum, "_limit", math.inf)
    monkeypatch.setattr(
        PrivateSum,
        "_noised",
        lambda self, total, _: (
            total * min(1.0, self.threshold / (np.linalg.norm(total) + 1e-30))
        ),
    )


def divide_by_the_realised_lot(monkeypatch):
    party = Parties._party

    def realised(self, phase, theta, index, client):
        released, losses, raw = party(self, phase, theta, index, client)
        return (
            released * phase.lots.size / max(len(phase.lots.lot(index, 0, client)), 1),
            losses,
            raw,
        )

    monkeypatch.setattr(Parties, "_party", realised)


def take_both_sums_of_one_half(monkeypatch):
    places = SearchSteps.places
    first = make_config().own_sums()[0]
    monkeypatch.setattr(
        SearchSteps, "places", lambda self, sum_, **given: places(self, first, **given)
    )


@pytest.mark.parametrize(
    "mutant", [clip_the_batch, divide_by_the_realised_lot, take_both_sums_of_one_half]
)
def test_mutants_are_not_algorithm_1(silos, tmp_path, monkeypatch, mutant):
    monkeypatch.setattr(PrivateSum, "_noised", lambda self, total, generator: total)
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check_algorithm_1(silos, tmp_path)


def test_both_sums_are_in_the_ledger_and_the_history(silos, tmp_path):
    run = make_config()
    train(run, silos, tmp_path)
    ledger = read_ledger(tmp_path / "ledger.jsonl")
    assert [(e.round, e.name, e.part) for e in ledger] == [
        (index, name, half)
        for index in range(4)
        for name, half in (
            (WEIGHTS, "training half"),
            (ARCHITECTURE, "validation half"),
        )
    ]
    for event, z, threshold in zip(
        ledger, [1.0, 1.5] * 4, [0.1, 0.01] * 4, strict=True
    ):
        assert (event.noise_multiplier, event.threshold, event.adds) == (
            z,
            [threshold] * 4,
            4,
        )
        assert event.noise_std == [z * threshold] * 4 and event.denominator == 8
        assert event.sampler["records"] == 50 and event.sampler["rate"] == 8 / 50
    history = pd.read_csv(tmp_path / "history.csv")
    entropies = history[["entropy_normal", "entropy_reduction"]]
    assert ((entropies > 0) & (entropies <= math.log(3) + 1e-6)).all().all()
    # What is not a release is not written: no loss, and no norm before clipping.
    assert history["loss"].isna().all() and "architecture-sum_mean_norm" not in history


def test_the_noise_of_sums_parties_and_rounds_is_independent(
    silos, tmp_path, monkeypatch
):
    from dpsum import randomness

    streams, named_stream = [], randomness.stream
    monkeypatch.setattr(
        randomness, "stream", lambda *name: streams.append(name) or named_stream(*name)
    )
    train(make_config(), silos, tmp_path)
    assert len(streams) == len(set(streams)) == 4 * 2 * 4


@pytest.mark.parametrize("make", [make_config, cells])
def test_it_goes_on_from_a_checkpoint_with_the_same_bits(
    silos, tmp_path, monkeypatch, make
):
    run = make()
    whole = train(run, silos, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(conftest.stop_before(patch, 2)):
        train(run, silos, tmp_path / "resumed", checkpoint_seconds=0)
    assert train(run, silos, tmp_path / "resumed", threads=2) == whole


def job(run, silos, run_dir):
    """A training process, with a checkpoint after every round and rounds long enough to
    be killed in.
    """
    step = engine._Training._round
    engine._Training._round = lambda self, index: (time.sleep(0.03), step(self, index))[
        1
    ]
    train(run, silos, run_dir, checkpoint_seconds=0.01)


@pytest.mark.parametrize("make", [make_config, cells])
def test_killed_it_ends_with_the_same_bits(silos, tmp_path, make):
    """Kill -9 while a search, or the training after it, runs."""
    run = (
        make(None, {"participation": {"rounds": 12}})
        if make is cells
        else make({"participation": {"rounds": 12}})
    )
    whole, rng = train(run, silos, tmp_path / "whole"), np.random.default_rng(0)
    spawn, killed = multiprocessing.get_context("fork"), 0
    for _ in range(20):
        process = spawn.Process(target=job, args=(run, silos, tmp_path / "killed"))
        process.start()
        process.join(0.15 + 0.2 * rng.random())
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            killed += 1
        else:
            break
    assert killed and train(run, silos, tmp_path / "killed") == whole


def test_the_search_without_privacy_has_no_releases_and_tells_its_loss(silos, tmp_path):
    run = open_config()
    train(run, silos, tmp_path)
    assert read_ledger(tmp_path / "ledger.jsonl") == []
    history = pd.read_csv(tmp_path / "history.csv")
    assert (
        history["loss"].notna().all()
        and history["architecture-sum_mean_norm"].gt(0).all()
    )


def test_clipping_alone_is_the_private_search_without_its_noise(
    silos, tmp_path, monkeypatch
):
    """`cut` cuts as the clipping rule does, and claims nothing."""
    update = {"weights": {"cut": 0.1}, "architecture": {"cut": 0.01}}
    cut = rounds_of(open_config({"client_update": update}), silos, tmp_path / "cut")
    monkeypatch.setattr(PrivateSum, "_noised", lambda self, total, generator: total)
    clipped = rounds_of(make_config(), silos, tmp_path / "clipped")
    for index in range(2):
        cut.round(index)
        clipped.round(index)
    torch.testing.assert_close(cut.theta, clipped.theta, rtol=0, atol=0)
    with pytest.raises(
        BenchError,
        match=r"cut is 0\.1 for weights-sum, which is for runs that claim no privacy",
    ):
        make_config({"client_update": {"weights": {"cut": 0.1}}})


def open_config(*overlays):
    values = {
        key: value
        for key, value in SEARCH.items()
        if "clipping" not in key and "noise" not in key
    }
    values.pop("budget")
    return conftest.make_config(values, {"method": "fnas"}, *overlays, general=LOTS)


def test_found_cells_go_from_the_search_to_the_network_and_its_account(silos, tmp_path):
    search = make_config()
    train(search, silos, tmp_path / "search")
    data, clients = silos
    files = {
        name: tmp_path / "search" / name for name in ("genotype.json", "ledger.jsonl")
    }
    write_cells(
        search,
        data_dir=data,
        model_path=tmp_path / "search" / "model.safetensors",
        genotype_path=files["genotype.json"],
        picture_path=tmp_path / "cells.png",
    )
    assert (tmp_path / "cells.png").stat().st_size > 1000
    run = cells(search)
    assert run.references == {"genotype.json": search, "ledger.jsonl": search}
    folder = tmp_path / "cells"
    with pytest.raises(BenchError, match=r"give its genotype\.json as a reference"):
        engine.train(
            run, data_dir=data, clients_dir=clients, run_dir=tmp_path / "without"
        )
    engine.train(
        run, data_dir=data, clients_dir=clients, run_dir=folder, references=files
    )
    evaluate(
        run,
        data_dir=data,
        model_path=folder / "model.safetensors",
        out_path=folder / "metrics.json",
        references=files,
    )
    account_run(run, folder, folder / "privacy.json", references=files)
    both = json.loads((folder / "privacy.json").read_text())["profiles"]["holds"][
        "epsilon_high"
    ]
    alone = (
        account(read_ledger(folder / "ledger.jsonl"), delta=run.delta, claims={})
        .profiles["holds"]
        .epsilon_high
    )
    before = (
        account(read_ledger(files["ledger.jsonl"]), delta=run.delta, claims={})
        .profiles["holds"]
        .epsilon_high
    )
    assert max(alone, before) < both < alone + before
    with pytest.raises(
        BenchError,
        match=(
            r"rests on the releases of dp-fnas/.*: give its ledger\.jsonl as a"
            r" reference"
        ),
    ):
        account_run(run, folder, folder / "privacy.json")
    # Less of the search's ledger would be less epsilon: whatever was done to it, there
    # is no account.
    ledger, training = files["ledger.jsonl"], tmp_path / "search" / "training.json"
    lines, said = (
        ledger.read_text().splitlines(keepends=True),
        json.loads(training.read_text()),
    )
    other = make_config({"participation": {"rounds": search.participation.rounds - 1}})
    train(other, silos, tmp_path / "other")

    def forged(text, **changes):
        ledger.write_text(text)
        training.write_text(json.dumps(said | changes))
        with pytest.raises(BenchError) as caught:
            account_run(run, folder, folder / "privacy.json", references=files)
        return str(caught.value)

    assert "lines were cut off or changed" in forged("".join(lines[:2]))
    assert "lines were cut off or changed" in forged("")
    assert "is private" in forged("", ledger=chain_of(()), rounds_run=0)
    assert "the run's configuration makes that" in forged(
        "".join(lines[:2]), ledger=chain_of(lines[:2]), rounds_run=1
    )
    whole = (tmp_path / "other" / "ledger.jsonl").read_text()
    told = json.loads((tmp_path / "other" / "training.json").read_text())
    assert "the run's configuration makes that" in forged(whole, **told)
    training.unlink()
    with pytest.raises(BenchError, match=r"search/training\.json is missing"):
        account_run(run, folder, folder / "privacy.json", references=files)


def test_cells_of_an_open_search_have_no_finite_account(silos, tmp_path):
    """The search read the data without privacy, so that nothing finite holds of what is
    made of its cells.
    """
    run = cells(open_config())
    assert set(run.references) == {"genotype.json"}
    found = rounds_of(
        run, silos, tmp_path, references={"genotype.json": genotype_file(tmp_path, run)}
    )
    found.round(0)
    event, *_ = read_ledger(tmp_path / "ledger.jsonl")
    assert event.data_dependent_threshold and "found without privacy" in event.reason
    assert (
        account([event], delta=1e-5, claims={}).profiles["holds"].epsilon_high
        == math.inf
    )


def genotype_file(folder, run):
    path = folder / "genotype.json"
    path.write_text(json.dumps(run.model.space.same("skip_connect").to_json()))
    return path


def test_a_genotype_of_another_space_is_refused(silos, tmp_path):
    run = cells(make_config())
    other = cells(None, {"model": {"nodes": 2}})
    with pytest.raises(BenchError, match="another search space"):
        rounds_of(
            run,
            silos,
            tmp_path,
            references={"genotype.json": genotype_file(tmp_path, other)},
        )


class Batch(torch.nn.Sequential):
    """DARTS' own normalisation: over the lot, without weights, which Opacus takes
    without a word.
    """

    def __init__(self):
        norm = torch.nn.BatchNorm2d(2, affine=False, track_running_stats=False)
        layers = (
            torch.nn.Conv2d(1, 2, 3),
            norm,
            torch.nn.Flatten(),
            torch.nn.Linear(2 * 26 * 26, 10),
        )
        super().__init__(*layers)


def test_batch_norm_under_a_claim_is_refused_before_anything_is_released(
    silos, tmp_path
):
    values = {key: value for key, value in cells().plain().items() if key != "model"}
    run = read_run(values | {"model": {"module": f"{__name__}:Batch"}})
    with pytest.raises(
        BenchError,
        match=r"model Batch mixes records in layer 1 \(BatchNorm2d\): .*GroupNorm",
    ):
        rounds_of(run, silos, tmp_path)
    assert read_ledger(tmp_path / "ledger.jsonl") == []


def test_a_lot_larger_than_a_half_is_refused(silos, tmp_path):
    run = make_config({"participation": {"cohort": 51}})
    with pytest.raises(
        BenchError,
        match="cohort is 51, but the training half of a client holds 50 records",
    ):
        rounds_of(run, silos, tmp_path)


@pytest.mark.parametrize(
    ("overlay", "message"),
    [
        (
            {"model": {"kind": "cnn"}},
            "model.kind is cnn, which has no architecture to search",
        ),
        (
            {"model": {"groups": 2}},
            (
                "model.groups is 2, but model.filters 2: groups are of equal size, of"
                " two channels"
            ),
        ),
        (
            {"model": {"filters": 4, "groups": 3}},
            "model.groups is 3, but model.filters 4",
        ),
        ({"participation": {"kind": "one-pass"}}, "participation.kind"),
        (
            {"clients": {"count": 8, "fragments": 4}},
            "clients.count is 8, more than the 4 fragments",
        ),
        (
            {"noise": {"multiplier": None}},
            "noise.multiplier and budget.epsilon are both null",
        ),
        (
            {"architecture_noise": {"multiplier": None}},
            "noise.multiplier and budget.epsilon are both null",
        ),
    ],
)
def test_what_does_not_fit_is_refused(overlay, message):
    values = make_config().plain()
    for key, more in overlay.items():
        values[key] = ({} if "kind" in more and key == "model" else values[key]) | more
    with pytest.raises(BenchError, match=message):
        read_run(values)


def test_a_budget_calibrates_both_halves(silos, tmp_path):
    run = make_config(
        {
            "noise": {"multiplier": None},
            "architecture_noise": {"multiplier": None},
            "budget": {"epsilon": 2.0},
        }
    )
    train(run, silos, tmp_path)
    found = account(
        read_ledger(tmp_path / "ledger.jsonl"), delta=run.delta, claims=run.claims
    )
    assert 1.9 < found.profiles["holds"].epsilon_high <= 2.0


def test_no_budget_is_kept_over_a_search_and_the_training_that_follows():
    """What holds is of both together (`accounting.account`), and a budget of the
    training alone would be exceeded.
    """
    limit = {"budget": {"epsilon": 2.0}}
    with pytest.raises(
        BenchError,
        match=(
            r"^budget\.epsilon is 2, but this run uses a private run on the same"
            r" records"
        ),
    ):
        cells(make_config(), limit)
    assert cells(None, limit).budget.epsilon == 2.0  # of cells that are stated

"""The rounds of DP-FNAS: two sums of each party, over halves, by Algorithm 1; and of
networks of known cells.
"""

import json
import math
from typing import ClassVar

import numpy as np
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
from dpfedbench.papers.dp_fnas.methods import DpFnas
from dpfedbench.papers.dp_fnas.search_steps import (
    ARCHITECTURE,
    WEIGHTS,
    SearchSteps,
)
from dpfedbench.parts.client_updates.summed_steps import Parties
from dpsum.accounting.account import account
from dpsum.clipping import NormOfRelease
from dpsum.ledger import chain_of
from dpsum.private_sum import PrivateSum
from dpsum.randomness import stream

from . import conftest
from .conftest import (
    LOTS,
    history_in,
    ledger_in,
    remove_noise,
    rounds_of,
    train,
    watch_streams,
)

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


def open_config(*overlays):
    """Return the search without privacy."""
    values = {
        key: value
        for key, value in SEARCH.items()
        if "clipping" not in key and "noise" not in key and key != "budget"
    }
    return conftest.make_config(values, {"method": "fnas"}, *overlays, general=LOTS)


def cells(search=None, *overlays):
    """Return a training of known cells, or of those that a search found."""
    common = (
        "participation",
        "clipping",
        "noise",
        "budget",
        "validation",
        "evaluation",
    )
    values = {key: SEARCH[key] for key in common}
    genotype = {}
    if search is not None:
        genotype = {"model": {"genotype": {"kind": "found", "search": named(search)}}}
    return conftest.make_config(values, CELLS, genotype, *overlays, general=LOTS)


def test_halves_are_disjoint_and_of_one_size():
    run = make_config()
    for client in range(4):
        halves = [
            run.client_update.places(sum_, seed=run.seed, client=client, records=100)
            for sum_ in run.client_sums
        ]
        assert [len(half) for half in halves] == [50, 50]
        assert not set(halves[0]) & set(halves[1])


def check_algorithm_1(silos, folder):
    """Steps of W along clipped gradients of training lots, then of A, at the new W, of
    validation lots. Without noise; each record's gradient is taken by torch, of the
    records that each half should have.
    """
    sgd = {"rate": 2.0, "optimizer": {"kind": "sgd", "momentum": 0.0}, "decay": 0.01}
    run = make_config({"client_update": {"architecture": sgd}})
    rounds = rounds_of(run, silos, folder)
    dataset = load_records(silos[0])
    partition = RecordPartition.load(silos[1])
    net = run.net(dataset.image_shape, 10)
    theta = torch.from_numpy(net.initial(stream(0, "initial-weights")))
    phases = (
        ("weights", "training half", 0.1),
        ("architecture", "validation half", 0.01),
    )
    for index in range(2):
        for block, half, limit in phases:
            place = net.blocks[block]
            total = 0.0
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
                scale = (limit / rows.norm(dim=1, keepdim=True)).clamp(max=1)
                total = total + (rows * scale).sum(dim=0)
            mean = total / (4 * 8)  # of four expected lots, not of those that came
            if block == "weights":
                theta[place] -= 0.5 * mean
            else:  # A decay is added to the mean, as torch's optimisers have it.
                theta[place] -= 2.0 * (mean + 0.01 * theta[place])
        rounds.round(index)
        for place in net.blocks.values():
            torch.testing.assert_close(
                rounds.theta[place], theta[place], rtol=1e-4, atol=1e-6
            )


def test_a_round_without_noise_is_algorithm_1_by_autograd(silos, tmp_path, monkeypatch):
    remove_noise(monkeypatch)
    check_algorithm_1(silos, tmp_path)


def clip_the_batch(monkeypatch):
    def clipped(self, total, _):
        return total * min(1.0, self.threshold / (np.linalg.norm(total) + 1e-30))

    monkeypatch.setattr(PrivateSum, "_limit", math.inf)
    monkeypatch.setattr(PrivateSum, "_noised", clipped)


def divide_by_the_realised_lot(monkeypatch):
    party = Parties._party

    def realised(self, phase, theta, index, client):
        released, losses, raw = party(self, phase, theta, index, client)
        size = max(len(phase.lots.lot(index, 0, client)), 1)
        return released * phase.lots.size / size, losses, raw

    monkeypatch.setattr(Parties, "_party", realised)


def take_both_sums_of_one_half(monkeypatch):
    places = SearchSteps.places
    first = make_config().client_sums[0]

    def one_half(self, sum_, **named):
        return places(self, first, **named)

    monkeypatch.setattr(SearchSteps, "places", one_half)


@pytest.mark.parametrize(
    "mutant", [clip_the_batch, divide_by_the_realised_lot, take_both_sums_of_one_half]
)
def test_mutants_are_not_algorithm_1(silos, tmp_path, monkeypatch, mutant):
    remove_noise(monkeypatch)
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check_algorithm_1(silos, tmp_path)


@pytest.mark.parametrize("apart", [0.0, 7.0])
def test_the_history_has_norms_of_the_sum_over_parties_alone(
    silos, tmp_path, monkeypatch, apart
):
    """Two of the four release what the other two take back: everyone sees their sum, 3
    in each of d coordinates, whose norm is 3 sqrt(d).
    """
    party = Parties._party

    def shifted(self, phase, theta, index, client):
        released, losses, raw = party(self, phase, theta, index, client)
        return torch.full_like(released, 0.75 + apart * (-1) ** client), losses, raw

    monkeypatch.setattr(Parties, "_party", shifted)
    rounds = rounds_of(make_config(), silos, tmp_path)
    row, _ = rounds.round(0)
    for column, block in (
        ("released_norm", "weights"),
        (f"{ARCHITECTURE}_released_norm", "architecture"),
    ):
        place = rounds.net.blocks[block]
        expected = 3 * math.sqrt(place.stop - place.start)
        assert row[column] == pytest.approx(expected, rel=1e-12)


class FollowsReleases(DpFnas):
    """DP-FNAS whose weights' thresholds follow each party's own releases."""

    name: ClassVar[str] = "follows-releases"
    clipping: NormOfRelease = NormOfRelease(threshold=1.0)


def test_a_threshold_that_follows_a_partys_own_releases_is_refused(monkeypatch):
    """The ledger shows each party's threshold to everyone, whose account is of the sum
    over parties.
    """
    monkeypatch.setitem(METHODS, FollowsReleases.name, FollowsReleases)
    rule = {"kind": "norm-of-release", "threshold": 1.0}
    values = make_config().plain() | {"method": FollowsReleases.name, "clipping": rule}
    with pytest.raises(BenchError, match="the ledger would show it to everyone"):
        FollowsReleases.read(values)


def test_both_sums_are_in_the_ledger_and_the_history(silos, tmp_path, monkeypatch):
    """z = 1 and 1.5 of thresholds 0.1 and 0.01, lots of 8 of 50 records; the noise of
    each sum, party and round has a stream of its own.
    """
    streams = watch_streams(monkeypatch)
    train(make_config(), silos, tmp_path)
    assert len(streams) == len(set(streams)) == 4 * 2 * 4
    sums = (
        (WEIGHTS, "training half", 1.0, 0.1),
        (ARCHITECTURE, "validation half", 1.5, 0.01),
    )
    found = [
        (line.round, line.name, line.part, line.noise_multiplier, line.threshold)
        for line in ledger_in(tmp_path)
    ]
    assert found == [
        (index, name, half, z, [threshold] * 4)
        for index in range(4)
        for name, half, z, threshold in sums
    ]
    for line in ledger_in(tmp_path):
        assert line.noise_std == [line.noise_multiplier * line.threshold[0]] * 4
        assert (line.denominator, line.adds) == (8, 4)
        assert (line.sampler["records"], line.sampler["rate"]) == (50, 8 / 50)
    history = history_in(tmp_path)
    entropies = history[["entropy_normal", "entropy_reduction"]]
    assert ((entropies > 0) & (entropies <= math.log(3) + 1e-6)).all().all()
    assert "architecture-sum_mean_norm" not in history


def test_the_search_without_privacy_has_no_releases_and_tells_its_norms(
    silos, tmp_path
):
    train(open_config(), silos, tmp_path)
    assert ledger_in(tmp_path) == []
    assert history_in(tmp_path)["architecture-sum_mean_norm"].gt(0).all()


def test_clipping_alone_is_the_private_search_without_its_noise(
    silos, tmp_path, monkeypatch
):
    """`cut` cuts as the clipping rule does, and claims nothing."""
    update = {"weights": {"cut": 0.1}, "architecture": {"cut": 0.01}}
    cut = rounds_of(open_config({"client_update": update}), silos, tmp_path / "cut")
    remove_noise(monkeypatch)
    clipped = rounds_of(make_config(), silos, tmp_path / "clipped")
    for index in range(2):
        cut.round(index)
        clipped.round(index)
    assert torch.equal(cut.theta, clipped.theta)
    with pytest.raises(BenchError, match="which is for runs that claim no privacy"):
        make_config({"client_update": {"weights": {"cut": 0.1}}})


def proven_epsilon(path, run):
    lines = ledger_in(path)
    found = account(lines, delta=run.delta, claims={})
    return found.profiles["holds"].epsilon_high


@pytest.fixture
def found_cells(silos, tmp_path):
    """A search, and the training and account of the cells that it found: (search, run,
    the search's files).
    """
    search = make_config()
    train(search, silos, tmp_path / "search")
    names = ("genotype.json", "ledger.jsonl")
    files = {name: tmp_path / "search" / name for name in names}
    model = tmp_path / "search" / "model.safetensors"
    picture = tmp_path / "cells.png"
    write_cells(
        search,
        data_dir=silos[0],
        model_path=model,
        genotype_path=files["genotype.json"],
        picture_path=picture,
    )
    assert picture.stat().st_size > 1000
    run = cells(search)
    folder = tmp_path / "cells"
    folders = {"data_dir": silos[0], "clients_dir": silos[1]}
    engine.train(run, run_dir=folder, references=files, **folders)
    evaluate(
        run,
        data_dir=silos[0],
        model_path=folder / "model.safetensors",
        out_path=folder / "metrics.json",
        references=files,
    )
    account_run(run, folder, folder / "privacy.json", references=files)
    return search, run, files


def test_found_cells_are_accounted_for_together_with_the_search(
    found_cells, silos, tmp_path
):
    search, run, _ = found_cells
    assert run.references == {"genotype.json": search, "ledger.jsonl": search}
    folder = tmp_path / "cells"
    privacy = json.loads((folder / "privacy.json").read_text())
    both = privacy["profiles"]["holds"]["epsilon_high"]
    alone = proven_epsilon(folder, run)
    before = proven_epsilon(tmp_path / "search", run)
    assert max(alone, before) < both < alone + before
    with pytest.raises(BenchError, match=r"give its genotype\.json as a reference"):
        train(run, silos, tmp_path / "without")
    with pytest.raises(BenchError, match=r"give its ledger\.jsonl as a reference"):
        account_run(run, folder, folder / "privacy.json")


def test_less_of_the_searchs_ledger_is_no_account(found_cells, silos, tmp_path):
    """Lines cut off, a consistent shorter ledger, another run's ledger: all refused."""
    _, run, files = found_cells
    folder = tmp_path / "cells"
    ledger = files["ledger.jsonl"]
    training = tmp_path / "search" / "training.json"
    lines = ledger.read_text().splitlines(keepends=True)
    values = json.loads(training.read_text())
    train(make_config({"participation": {"rounds": 3}}), silos, tmp_path / "other")

    def refusal(text, **changes):
        ledger.write_text(text)
        training.write_text(json.dumps(values | changes))
        with pytest.raises(BenchError) as caught:
            account_run(run, folder, folder / "privacy.json", references=files)
        return str(caught.value)

    first = "".join(lines[:2])
    assert "lines were cut off or changed" in refusal(first)
    assert "lines were cut off or changed" in refusal("")
    assert "is private" in refusal("", ledger=chain_of(()), rounds_run=0)
    shorter = {"ledger": chain_of(lines[:2]), "rounds_run": 1}
    assert "the run's configuration makes that" in refusal(first, **shorter)
    other = (tmp_path / "other" / "ledger.jsonl").read_text()
    of_other = json.loads((tmp_path / "other" / "training.json").read_text())
    assert "the run's configuration makes that" in refusal(other, **of_other)
    training.unlink()
    with pytest.raises(BenchError, match=r"search/training\.json is missing"):
        account_run(run, folder, folder / "privacy.json", references=files)


def genotype_file(folder, run):
    path = folder / "genotype.json"
    path.write_text(json.dumps(run.model.space.same("skip_connect").to_json()))
    return {"genotype.json": path}


def test_cells_of_an_open_search_have_no_finite_account(silos, tmp_path):
    """The search read the data without privacy."""
    run = cells(open_config())
    assert set(run.references) == {"genotype.json"}
    files = genotype_file(tmp_path, run)
    rounds_of(run, silos, tmp_path, references=files).round(0)
    line, *_ = ledger_in(tmp_path)
    assert line.data_dependent_threshold and "found without privacy" in line.reason
    assert proven_epsilon(tmp_path, run) == math.inf


def test_a_genotype_of_another_space_is_refused(silos, tmp_path):
    files = genotype_file(tmp_path, cells(None, {"model": {"nodes": 2}}))
    with pytest.raises(BenchError, match="another search space"):
        rounds_of(cells(make_config()), silos, tmp_path, references=files)


class Batch(torch.nn.Sequential):
    """DARTS' own normalisation: over the lot, without weights, which Opacus takes
    without a word.
    """

    def __init__(self):
        norm = torch.nn.BatchNorm2d(2, affine=False, track_running_stats=False)
        head = torch.nn.Linear(2 * 26 * 26, 10)
        super().__init__(torch.nn.Conv2d(1, 2, 3), norm, torch.nn.Flatten(), head)


def test_batch_norm_under_a_claim_is_refused_before_anything_is_released(
    silos, tmp_path
):
    run = read_run(cells().plain() | {"model": {"module": f"{__name__}:Batch"}})
    with pytest.raises(BenchError, match=r"Batch mixes records in layer 1"):
        rounds_of(run, silos, tmp_path)
    assert ledger_in(tmp_path) == []


def test_a_lot_larger_than_a_half_is_refused(silos, tmp_path):
    run = make_config({"participation": {"cohort": 51}})
    with pytest.raises(BenchError, match="half of a client holds 50 records"):
        rounds_of(run, silos, tmp_path)


@pytest.mark.parametrize("key", ["noise", "architecture_noise"])
def test_noise_without_multiplier_and_budget_is_refused(key):
    with pytest.raises(BenchError, match=r"multiplier and budget\.epsilon are both"):
        make_config({key: {"multiplier": None}})


def test_a_budget_calibrates_both_halves(silos, tmp_path):
    noise = {"noise": {"multiplier": None}, "architecture_noise": {"multiplier": None}}
    run = make_config(noise, {"budget": {"epsilon": 2.0}})
    train(run, silos, tmp_path)
    assert 1.9 < proven_epsilon(tmp_path, run) <= 2.0


def test_no_budget_is_kept_over_a_search_and_the_training_that_follows():
    """The proven epsilon is of both together, so a budget of the training alone would
    be exceeded.
    """
    limit = {"budget": {"epsilon": 2.0}}
    with pytest.raises(BenchError, match=r"^budget\.epsilon is 2, but this run uses a"):
        cells(make_config(), limit)
    assert cells(None, limit).budget.epsilon == 2.0  # of cells that are stated

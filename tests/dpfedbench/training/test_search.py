"""The rounds of DP-FNAS: two sums of each party, over halves, by Algorithm 1; and the
training of the cells that a search found.
"""

import dataclasses
import json
import math
from typing import ClassVar

import numpy as np
import pytest
import torch

from dpfedbench.data.partition import RecordPartition
from dpfedbench.data.records import load_records
from dpfedbench.errors import BenchError
from dpfedbench.evaluation.found_cells import write_cells
from dpfedbench.experiments.cells import named
from dpfedbench.papers import METHODS
from dpfedbench.papers.dp_fnas.methods import DpFnas
from dpfedbench.papers.dp_fnas.search_steps import ARCHITECTURE, SearchSteps
from dpfedbench.training.accounts import account_run
from dpfedbench.training.client_updates.summed_steps import Parties
from dpsum.accounting.account import account
from dpsum.clipping import NormOfRelease
from dpsum.ledger import chain_of
from dpsum.private_sum import PrivateSum
from dpsum.randomness import stream

from .conftest import (
    clipped_gradient_sum,
    examples,
    ledger_in,
    lots_config,
    remove_noise,
    rounds_of,
    train,
    train_model,
)

PRIVACY = {
    "clipping": {"threshold": 0.1},
    "noise": {"multiplier": 1.0},
    "budget": {"profile": "proven"},
}
COMMON = {
    "participation": {"rounds": 4},
    "validation": {"every": 0},
    "evaluation": {"every": 0},
}
MODEL = {
    "kind": "darts-search",
    "operations": ["none", "skip_connect", "sep_conv_3x3"],
    "nodes": 1,
    "cells": 2,
    "filters": 2,
    "pooling": 7,
    "reductions": [1],
}
WEIGHT_STEPS = {"rate": 0.5, "optimizer": "sgd"}
OPEN_SEARCH = {
    "method": "fnas",
    "model": MODEL,
    "client_update": {
        "kind": "search-steps",
        "weights": WEIGHT_STEPS,
        "architecture": {"rate": 0.01},
    },
    **COMMON,
}
SEARCH = {
    **OPEN_SEARCH,
    **PRIVACY,
    "method": "dp-fnas",
    "architecture_clipping": {"threshold": 0.01},
    "architecture_noise": {"multiplier": 1.5},
}
CELLS = {
    **COMMON,
    **PRIVACY,
    "method": "dp-cells",
    "model": {**MODEL, "kind": "darts-cells"},
    "client_update": {"kind": "summed-steps", "weights": WEIGHT_STEPS},
}


def search_config(*overlays):
    return lots_config(SEARCH, *overlays)


def open_search(*overlays):
    """Return the search without privacy."""
    return lots_config(OPEN_SEARCH, *overlays)


def cells_config(*overlays, search=None):
    """Return a training of known cells, or of the cells of a search."""
    if search is not None:
        genotype = {"kind": "found", "search": named(search)}
        overlays = ({"model": {"genotype": genotype}}, *overlays)
    return lots_config(CELLS, *overlays)


def check_algorithm_1(silos, folder):
    """Check two rounds without noise against torch's gradients of single records.

    W steps along clipped gradients of training lots, then A, at the new W, along those
    of validation lots. Each half has its own records.
    """
    sgd = {"rate": 2.0, "optimizer": {"kind": "sgd", "momentum": 0.0}, "decay": 0.01}
    run = search_config({"client_update": {"architecture": sgd}})
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
            coordinates = net.blocks[block]
            total = 0.0
            for party in range(4):
                order = stream(0, "halves", party).permutation(100)
                half_order = order[:50] if block == "weights" else order[50:]
                records = np.sort(half_order)
                draws = stream(0, f"lot/{half}", index, 0, party).random(50)
                lot = np.sort(partition.records[party])[records][draws < 8 / 50]
                if not len(lot):
                    continue
                total = total + clipped_gradient_sum(
                    net, theta, *examples(dataset, lot), limit, coordinates
                )
            mean = total / (4 * 8)  # of four expected lots, not of the realised ones
            if block == "weights":
                theta[coordinates] -= 0.5 * mean
            else:  # The decay is added to the mean, as in torch's optimisers.
                theta[coordinates] -= 2.0 * (mean + 0.01 * theta[coordinates])
        rounds.round(index)
        for coordinates in net.blocks.values():
            torch.testing.assert_close(
                rounds.theta[coordinates], theta[coordinates], rtol=1e-4, atol=1e-6
            )


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
    select = SearchSteps.record_subset
    first = search_config().client_sums[0]

    def one_half(self, sum_, **options):
        return select(self, first, **options)

    monkeypatch.setattr(SearchSteps, "record_subset", one_half)


@pytest.mark.parametrize(
    "mutant",
    [None, clip_the_batch, divide_by_the_realised_lot, take_both_sums_of_one_half],
)
def test_search_without_noise_is_algorithm_1_by_autograd(
    silos, tmp_path, monkeypatch, mutant
):
    remove_noise(monkeypatch)
    if mutant is None:
        check_algorithm_1(silos, tmp_path)
        return
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check_algorithm_1(silos, tmp_path)


def test_search_history_has_norms_of_the_sum_over_parties_alone(
    silos, tmp_path, monkeypatch
):
    """Two of four parties release the negative of the other two. Everyone sees the sum,
    3 in each of d coordinates, whose norm is 3 sqrt(d).
    """
    party = Parties._party

    def shifted(self, phase, theta, index, client):
        released, losses, raw = party(self, phase, theta, index, client)
        value = 0.75 + 7.0 * (-1) ** client
        return torch.full_like(released, value), losses, raw

    monkeypatch.setattr(Parties, "_party", shifted)
    rounds = rounds_of(search_config(), silos, tmp_path)
    row, _ = rounds.round(0)
    assert "architecture-sum_mean_norm" not in row
    for column, block in (
        ("released_norm", "weights"),
        (f"{ARCHITECTURE}_released_norm", "architecture"),
    ):
        coordinates = rounds.net.blocks[block]
        expected = 3 * math.sqrt(coordinates.stop - coordinates.start)
        assert row[column] == pytest.approx(expected, rel=1e-12)


class FollowsReleases(DpFnas):
    """DP-FNAS whose weights' thresholds follow each party's own releases."""

    name: ClassVar[str] = "follows-releases"
    clipping: NormOfRelease = NormOfRelease(threshold=1.0)


def test_search_threshold_that_follows_a_partys_releases_is_refused(monkeypatch):
    """The ledger shows each party's threshold to everyone, but the account of everyone
    is that of the sum over parties.
    """
    monkeypatch.setitem(METHODS, FollowsReleases.name, FollowsReleases)
    rule = {"kind": "norm-of-release", "threshold": 1.0}
    values = search_config().plain() | {"method": FollowsReleases.name}
    with pytest.raises(BenchError, match="the ledger would show it to everyone"):
        FollowsReleases.read(values | {"clipping": rule})


def test_open_search_with_cut_is_the_private_search_without_noise(
    silos, tmp_path, monkeypatch
):
    update = {"weights": {"cut": 0.1}, "architecture": {"cut": 0.01}}
    cut = rounds_of(open_search({"client_update": update}), silos, tmp_path / "cut")
    remove_noise(monkeypatch)
    clipped = rounds_of(search_config(), silos, tmp_path / "clipped")
    for index in range(2):
        cut.round(index)
        clipped.round(index)
    assert torch.equal(cut.theta, clipped.theta)


def test_two_sums_over_separate_lots_of_the_same_records_are_refused(
    silos, tmp_path, monkeypatch
):
    """A record is in one of two releases that reveal it with probability 2 q - q^2,
    which is delta. With one lot it would be q.
    """
    party_sums = DpFnas.party_sums

    def sums_of_one_half(self):
        return [
            dataclasses.replace(sum_, part="training half") for sum_ in party_sums(self)
        ]

    def lots(self, run, sum_, *, clients, records):
        return run.participation.lots(
            clients=clients, seed=run.seed, steps=1, records=records, purpose=sum_.name
        )

    monkeypatch.setattr(DpFnas, "party_sums", sums_of_one_half)
    monkeypatch.setattr(SearchSteps, "lots", lots)
    with pytest.raises(
        BenchError, match=r"read the same records .* draw their own lots"
    ):
        rounds_of(search_config(), silos, tmp_path)


def proven_epsilon(run_dir, run):
    profiles = account(ledger_in(run_dir), delta=run.delta, claims={}).profiles
    return profiles["proven"].epsilon_high


# Cells that a search found


@pytest.fixture
def found_cells(silos, tmp_path):
    """Make a search, and a training and account of its cells: (search, run, the
    search's files).
    """
    search = search_config()
    train(search, silos, tmp_path / "search")
    names = ("genotype.json", "ledger.jsonl")
    files = {name: tmp_path / "search" / name for name in names}
    write_cells(
        search,
        data_dir=silos[0],
        model_path=tmp_path / "search" / "model.safetensors",
        genotype_path=files["genotype.json"],
        text_path=tmp_path / "cells.txt",
    )
    run = cells_config(search=search)
    folder = tmp_path / "cells"
    train_model(run, silos, folder, references=files)
    account_run(run, folder, folder / "privacy.json", references=files)
    return search, run, files


def test_found_cells_are_accounted_for_together_with_the_search(found_cells, tmp_path):
    search, run, _ = found_cells
    assert run.references == {"genotype.json": search, "ledger.jsonl": search}
    folder = tmp_path / "cells"
    privacy = json.loads((folder / "privacy.json").read_text())
    together = privacy["profiles"]["proven"]["epsilon_high"]
    alone = proven_epsilon(folder, run)
    before = proven_epsilon(tmp_path / "search", run)
    assert max(alone, before) < together < alone + before
    with pytest.raises(BenchError, match=r"give its ledger\.jsonl as a reference"):
        account_run(run, folder, folder / "privacy.json")


def test_found_cells_have_no_account_with_less_of_the_searchs_ledger(
    found_cells, silos, tmp_path
):
    """A cut ledger, a consistent shorter one and another run's ledger are refused."""
    _, run, files = found_cells
    ledger = files["ledger.jsonl"]
    training = tmp_path / "search" / "training.json"
    lines = ledger.read_text().splitlines(keepends=True)
    values = json.loads(training.read_text())
    other = tmp_path / "other"
    train(search_config({"participation": {"rounds": 3}}), silos, other)
    other_ledger = (other / "ledger.jsonl").read_text()
    other_training = json.loads((other / "training.json").read_text())
    first = "".join(lines[:2])
    shorter = {"ledger": chain_of(lines[:2]), "rounds_run": 1}
    for text, changes, message in (
        (first, {}, "lines were removed or changed"),
        ("", {}, "lines were removed or changed"),
        ("", {"ledger": chain_of(()), "rounds_run": 0}, "is private"),
        (first, shorter, "the run's configuration gives"),
        (other_ledger, other_training, "the run's configuration gives"),
    ):
        ledger.write_text(text)
        training.write_text(json.dumps(values | changes))
        with pytest.raises(BenchError, match=message):
            account_run(run, tmp_path / "cells", tmp_path / "new", references=files)


def test_found_cells_of_an_open_search_have_no_finite_account(silos, tmp_path):
    """The search read the data without privacy."""
    run = cells_config(search=open_search())
    assert set(run.references) == {"genotype.json"}
    genotype = tmp_path / "genotype.json"
    genotype.write_text(json.dumps(run.model.space.same("skip_connect").to_json()))
    files = {genotype.name: genotype}
    rounds_of(run, silos, tmp_path, references=files).round(0)
    line, *_ = ledger_in(tmp_path)
    assert line.data_dependent_threshold
    assert "found without privacy" in line.reason
    assert proven_epsilon(tmp_path, run) == math.inf


def test_found_cells_have_no_budget_of_the_training_alone():
    """The proven epsilon covers search and training, and would exceed the budget."""
    with pytest.raises(BenchError, match=r"^budget\.epsilon is 2, but this run uses a"):
        cells_config({"budget": {"epsilon": 2.0}}, search=search_config())

"""DP-FNAS's rounds by Algorithm 1, and the training of cells that a search found."""

import contextlib
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
from dpfedbench.training.client_updates.summed_steps import Phase
from dpsum.accounting.account import account
from dpsum.clipping import NormOfRelease
from dpsum.ledger import chain_of
from dpsum.private_sum import PrivateSum
from dpsum.randomness import stream

from . import conftest
from .conftest import examples, lots_config, remove_noise, rounds_of, train, training_in

PRIVACY = {"clipping": {"threshold": 0.1}, "noise": {"multiplier": 1.0}}
NEVER = {"every": 0}
COMMON = {"participation": {"rounds": 4}, "validation": NEVER, "evaluation": NEVER}
MODEL = {
    "operations": ["none", "skip_connect", "sep_conv_3x3"],
    "nodes": 1,
    "cells": 2,
    "filters": 2,
    "pooling": 7,
    "reductions": [1],
}
WEIGHT_STEPS = {"rate": 0.5, "optimizer": "sgd"}
OPEN_SEARCH = COMMON | {
    "method": "fnas",
    "model": MODEL,
    "client_update": {"weights": WEIGHT_STEPS, "architecture": {"rate": 0.01}},
}
SEARCH = {
    **OPEN_SEARCH,
    **PRIVACY,
    "method": "dp-fnas",
    "architecture_clipping": {"threshold": 0.01},
    "architecture_noise": {"multiplier": 1.5},
}
CELLS = COMMON | PRIVACY | {"method": "dp-cells", "model": MODEL}
CELLS["client_update"] = {"weights": WEIGHT_STEPS}


def search_config(*overlays):
    return lots_config(SEARCH, *overlays)


def cells_config(*overlays, search=None):
    """Return a training of known cells, or of the cells of a search."""
    if search is not None:
        genotype = {"kind": "found", "search": named(search)}
        overlays = ({"model": {"genotype": genotype}}, *overlays)
    return lots_config(CELLS, *overlays)


def check_algorithm_1(silos, folder, limits=(0.1, 0.01)):
    """Check two rounds without noise against torch's gradients of single records.

    W steps along clipped gradients of training lots, then A along other records'. The
    limits are the thresholds of W and of A.
    """
    sgd = {"rate": 2.0, "optimizer": {"kind": "sgd", "momentum": 0.0}, "decay": 0.01}
    weight_limit, architecture_limit = limits
    run = search_config(
        {
            "client_update": {"architecture": sgd},
            "clipping": {"threshold": weight_limit},
            "architecture_clipping": {"threshold": architecture_limit},
        }
    )
    rounds = rounds_of(run, silos, folder)
    dataset = load_records(silos[0])
    partition = RecordPartition.load(silos[1])
    net = run.trained_net(dataset.image_shape, 10)
    theta = torch.from_numpy(net.initial(stream(0, "initial-weights")))
    # The decay is added to the mean, as in torch's optimisers.
    phases = (
        ("weights", "training half", weight_limit, 0.5, 0.0),
        ("architecture", "validation half", architecture_limit, 2.0, 0.01),
    )
    for index in range(2):
        for block, half, limit, rate, decay in phases:
            coordinates = net.blocks[block]
            total = 0.0
            for party in range(4):
                order = stream(0, "halves", party).permutation(100)
                records = np.sort(order[:50] if block == "weights" else order[50:])
                draws = stream(0, f"lot/{half}", index, 0, party).random(50)
                lot = np.sort(partition.records[party])[records][draws < 8 / 50]
                if len(lot):
                    total = total + conftest.clipped_gradient_sum(
                        net, theta, *examples(dataset, lot), limit, coordinates
                    )
            mean = total / (4 * 8)  # of four expected lots, not of the realised ones
            theta[coordinates] -= rate * (mean + decay * theta[coordinates])
        rounds.round(index)
        torch.testing.assert_close(rounds.theta, theta, rtol=1e-4, atol=1e-6)


def clip_the_batch(monkeypatch):
    def clipped(self, total, _):
        return total * min(1.0, self.threshold / (np.linalg.norm(total) + 1e-30))

    monkeypatch.setattr(PrivateSum, "_limit", math.inf)
    monkeypatch.setattr(PrivateSum, "_noised", clipped)


def divide_by_the_realised_lot(monkeypatch):
    take = Phase.take

    def realised(self, gradients, theta, index, client):
        released, losses, raw = take(self, gradients, theta, index, client)
        size = max(len(self.lots.lot(index, 0, client)), 1)
        return released * self.lots.size / size, losses, raw

    monkeypatch.setattr(Phase, "take", realised)


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
    if mutant is not None:
        mutant(monkeypatch)
    with pytest.raises(AssertionError) if mutant else contextlib.nullcontext():
        check_algorithm_1(silos, tmp_path)


def test_search_without_noise_and_clipping_is_algorithm_1_by_autograd(
    silos, tmp_path, monkeypatch
):
    remove_noise(monkeypatch)
    check_algorithm_1(silos, tmp_path, limits=(1e4, 1e4))


def test_search_history_has_norms_of_the_sum_over_parties_alone(
    silos, tmp_path, monkeypatch
):
    """Everyone sees the sum of four parties, 3 in each coordinate."""
    take = Phase.take

    def shifted(self, gradients, theta, index, client):
        released, losses, raw = take(self, gradients, theta, index, client)
        value = 0.75 + 7.0 * (-1) ** client
        return torch.full_like(released, value), losses, raw

    monkeypatch.setattr(Phase, "take", shifted)
    rounds = rounds_of(search_config(), silos, tmp_path)
    row, _ = rounds.round(0)
    assert "architecture-sum_mean_norm" not in row
    for prefix, block in (("", "weights"), (f"{ARCHITECTURE}_", "architecture")):
        expected = 3 * math.sqrt(len(rounds.theta[rounds.net.blocks[block]]))
        assert row[f"{prefix}released_norm"] == pytest.approx(expected, rel=1e-12)


def test_search_threshold_that_follows_a_partys_releases_is_refused(monkeypatch):
    """Everyone's account is of the sum over parties, a threshold of one party."""

    class FollowsReleases(DpFnas):
        name: ClassVar[str] = "follows-releases"
        clipping: NormOfRelease = NormOfRelease(threshold=1.0)

    monkeypatch.setitem(METHODS, FollowsReleases.name, FollowsReleases)
    rule = {"kind": "norm-of-release", "threshold": 1.0}
    values = search_config().plain() | {"method": FollowsReleases.name}
    with pytest.raises(BenchError, match="the ledger would show it to everyone"):
        FollowsReleases.read(values | {"clipping": rule})


def test_open_search_with_cut_is_the_private_search_without_noise(
    silos, tmp_path, monkeypatch
):
    update = {"weights": {"cut": 0.1}, "architecture": {"cut": 0.01}}
    cut = rounds_of(
        lots_config(OPEN_SEARCH, {"client_update": update}), silos, tmp_path / "cut"
    )
    remove_noise(monkeypatch)
    clipped = rounds_of(search_config(), silos, tmp_path / "clipped")
    for index in range(2):
        cut.round(index)
        clipped.round(index)
    assert torch.equal(cut.theta, clipped.theta)


def test_two_sums_over_separate_lots_of_the_same_records_are_refused(
    silos, tmp_path, monkeypatch
):
    """One of two releases has a record with probability 2 q - q^2, not q."""
    party_sums = DpFnas.party_sums
    half = {"part": "training half"}
    monkeypatch.setattr(
        DpFnas,
        "party_sums",
        lambda self: [dataclasses.replace(sum_, **half) for sum_ in party_sums(self)],
    )
    monkeypatch.setattr(
        SearchSteps,
        "lots",
        lambda self, run, sum_, **sizes: run.participation.lots(
            seed=run.seed, steps=1, purpose=sum_.name, **sizes
        ),
    )
    message = r"read the same records .* draw their own lots"
    with pytest.raises(BenchError, match=message):
        rounds_of(search_config(), silos, tmp_path)


def proven_epsilon(run_dir, run):
    profiles = account(conftest.ledger_in(run_dir), delta=run.delta, claims={}).profiles
    return profiles["proven"].epsilon_high


def test_found_cells_are_accounted_for_together_with_the_whole_search(silos, tmp_path):
    """A cut ledger, a consistent shorter one and another run's ledger are refused."""
    search = search_config()
    folder = tmp_path / "search"
    train(search, silos, folder)
    files = {name: folder / name for name in ("genotype.json", "ledger.jsonl")}
    write_cells(
        search,
        data_dir=silos[0],
        model_path=folder / "model.safetensors",
        genotype_path=files["genotype.json"],
        text_path=tmp_path / "cells.txt",
    )
    run = cells_config(search=search)
    assert run.references == {"genotype.json": search, "ledger.jsonl": search}
    cells = tmp_path / "cells"
    conftest.train_model(run, silos, cells, references=files)
    account_run(run, cells, cells / "privacy.json", references=files)
    privacy = json.loads((cells / "privacy.json").read_text())
    together = privacy["profiles"]["proven"]["epsilon_high"]
    alone = proven_epsilon(cells, run)
    before = proven_epsilon(folder, run)
    assert max(alone, before) < together < alone + before
    with pytest.raises(BenchError, match=r"give its ledger\.jsonl as a reference"):
        account_run(run, cells, tmp_path / "new")

    lines = files["ledger.jsonl"].read_text().splitlines(keepends=True)
    values = training_in(folder)
    shorter_run = tmp_path / "other"
    train(search_config({"participation": {"rounds": 3}}), silos, shorter_run)
    other_ledger = (shorter_run / "ledger.jsonl").read_text()
    first = "".join(lines[:2])
    shorter = {"ledger": chain_of(lines[:2]), "rounds_run": 1}
    nothing = {"ledger": chain_of(()), "rounds_run": 0}
    for text, changes, message in (
        (first, {}, "lines were removed or changed"),
        ("", nothing, "is private"),
        (first, shorter, "the run's configuration gives"),
        (other_ledger, training_in(shorter_run), "the run's configuration gives"),
    ):
        files["ledger.jsonl"].write_text(text)
        (folder / "training.json").write_text(json.dumps(values | changes))
        with pytest.raises(BenchError, match=message):
            account_run(run, cells, tmp_path / "new", references=files)


def test_found_cells_of_an_open_search_have_no_finite_account(silos, tmp_path):
    """The search read the data without privacy."""
    run = cells_config(search=lots_config(OPEN_SEARCH))
    assert set(run.references) == {"genotype.json"}
    genotype = tmp_path / "genotype.json"
    genotype.write_text(json.dumps(run.model.space.same("skip_connect").to_json()))
    files = {genotype.name: genotype}
    rounds_of(run, silos, tmp_path, references=files).round(0)
    line, *_ = conftest.ledger_in(tmp_path)
    assert line.data_dependent_threshold
    assert "found without privacy" in line.reason
    assert proven_epsilon(tmp_path, run) == math.inf


def test_found_cells_have_no_budget_of_the_training_alone():
    """The proven epsilon covers search and training, and would exceed the budget."""
    with pytest.raises(BenchError, match=r"^budget\.epsilon is 2, but this run uses a"):
        cells_config({"budget": {"epsilon": 2.0}}, search=search_config())

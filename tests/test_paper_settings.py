"""Settings of the `paper` preset that the papers' texts state."""

import math
from collections.abc import Sequence

from scipy.special import logsumexp

from dpfedbench.experiments.plan import PlannedCell
from dpfedbench.method import Method
from tests.dpfedbench.test_experiments import planned


def cells_of(paper: str, item: str) -> Sequence[PlannedCell]:
    """Return the cells of a table or figure of the paper preset."""
    return planned("paper").items[paper, item].cells


def runs_of(paper: str, item: str) -> dict[str, Method]:
    """Return the first seed's run of each series of a table or figure."""
    return {cell.series: cell.runs[0] for cell in cells_of(paper, item)}


def rounds_of_theorem_1(sigma: float) -> int:
    """Return the rounds within epsilon = 2 by Theorem 1 of Adap DP-FL.

    q = 78 / 6000, delta = 1e-5, orders a from 2 to 64. Eq. 14 is
    A_a = sum_k binom(a, k) (1 - q)^(a - k) q^k exp((k^2 - k) / 2 sigma^2). A round costs
    log(A_a) / (a - 1).
    """
    rate = 78 / 6000
    rounds = 0.0
    for order in range(2, 65):
        terms = [
            math.log(math.comb(order, k))
            + (order - k) * math.log1p(-rate)
            + k * math.log(rate)
            + (k * k - k) / (2 * sigma**2)
            for k in range(order + 1)
        ]
        budget = 2.0 - math.log(1e5) / (order - 1)
        rounds = max(rounds, budget * (order - 1) / float(logsumexp(terms)))
    return math.floor(rounds)


def test_adap_dp_fl_trains_until_its_budget_is_spent():
    """docs/privacy.md has 451, 7,921 and 33,495 rounds at sigma = 1.1, 3 and 6."""
    assert rounds_of_theorem_1(1.1) == 451
    assert rounds_of_theorem_1(3.0) == 7921
    assert rounds_of_theorem_1(6.0) == 33495
    needed = {}
    for item in ("accuracy-a", "accuracy-b", "figure3b", "figure3d", "figure4b"):
        for series, run in runs_of("adap-dp-fl", item).items():
            if run.private:
                sigma = run.noise.multiplier
                needed[item, series] = rounds_of_theorem_1(sigma)
                assert run.participation.rounds > needed[item, series]
                assert run.budget.epsilon == 2.0
                assert run.budget.delta == 1e-5
    assert max(needed.values()) == 33495
    assert len(needed) > 15


def test_adap_dp_fl_has_the_papers_values():
    """Section V-A and V-B, and the caption of Figure 5."""
    mnist = runs_of("adap-dp-fl", "accuracy-a")
    fashion = runs_of("adap-dp-fl", "accuracy-b")
    for run in (*mnist.values(), *fashion.values()):
        assert run.clients.count == 10
        assert run.clients.fragments == 400
        assert run.participation.cohort == 78
        assert run.client_update.inner_steps == 1
        assert run.client_update.optimizer.kind == "adam"
    assert {run.client_update.inner_rate for run in mnist.values()} == {0.002}
    assert {run.client_update.inner_rate for run in fashion.values()} == {0.001}
    assert {mnist[f"constant-{z}"].noise.multiplier for z in (3, 4, 6)} == {3, 4, 6}
    assert {fashion[f"constant-{z}"].noise.multiplier for z in (2, 3, 4)} == {2, 3, 4}
    for runs, factor, first, decay in (
        (mnist, 1.0, 6.0, 0.9999),
        (fashion, 0.01, 4.0, 0.9998),
    ):
        adaptive = runs["adap-vector"]
        assert adaptive.clipping.factor == factor
        assert runs["adap-noise"].clipping.threshold == 1.0
        for run in (adaptive, runs["adap-noise"]):
            noise = run.noise
            assert noise.multiplier == first
            assert noise.decay == decay
            assert noise.falls == 3
            assert run.validation.every == 1


def test_gbml_on_omniglot_is_trained_and_tested_as_nichol_et_al():
    """Nichol et al. 2018, Section 6.1 and Table 3: 50 steps of Adam at 0.001 with
    beta1 = 0 on 5 examples; an outer rate of 1 that falls to 0; batches of m, five.
    Li et al. 2020, Section 4: 10^6 tasks, 10^5 tests, three repetitions.
    """
    cells = cells_of("dp-meta-learning-gbml", "figure3")
    assert {cell.x for cell in cells} == {None, 10.0, 20.0}
    for cell in cells:
        run = cell.runs[0]
        test = cell.runs[0].evaluation
        assert test.steps == 50
        assert test.rate == 0.001
        assert test.optimizer == "adam"
        assert test.beta1 == 0.0
        assert test.batch == 5
        assert test.tasks == 100_000
        assert test.query_per_class == 1
        assert len(cell.runs) == 3
        if not run.trained:
            continue
        update = run.client_update
        plan = run.participation
        assert plan.cohort * plan.rounds == run.clients.count == 10**6
        assert run.clients.support_per_class + run.clients.query_per_class == cell.x
        assert update.inner_steps == 5
        assert update.optimizer.beta1 == 0.0
        assert run.server.rate == 1.0
        last = run.server.schedule.rate(1.0, plan.rounds, plan.rounds)
        assert last == 0.0
        if run.method == "reptile":
            assert update.batches == "disjoint"
            assert update.inner_rate == 0.001
            assert plan.cohort == 5


def test_gbml_searches_are_in_the_spaces_of_appendix_c():
    """Tables 2 to 4 by their columns, and Omniglot's grid."""
    paper = "dp-meta-learning-gbml"
    wiki = {
        number: [cell.runs[0] for cell in cells_of(paper, number)]
        for number in ("table2-wiki", "table3-wiki", "table4-wiki")
    }
    clipped = {
        "table2-wiki": {run.client_update.largest for run in wiki["table2-wiki"]},
        "table3-wiki": {run.within_task.threshold for run in wiki["table3-wiki"]},
        "table4-wiki": {run.own_update.threshold for run in wiki["table4-wiki"]},
    }
    assert clipped["table2-wiki"] <= {0.3, 0.5, 0.7, 0.8, 1.0}
    assert clipped["table3-wiki"] <= {0.3, 0.4, 0.5, 0.7, 0.8, 0.9, 1.0}
    assert clipped["table4-wiki"] <= {0.005, 0.01, 0.025, 0.05, 0.1, 0.25}
    cohorts = {
        number: {run.participation.cohort for run in wiki[number]} for number in wiki
    }
    assert cohorts["table2-wiki"] == cohorts["table3-wiki"] == {5, 10}
    assert cohorts["table4-wiki"] <= {10, 20, 40, 80}
    for runs in wiki.values():
        assert {run.dataset for run in runs} == {"wiki-1600"}
    for cell in cells_of(paper, "figure3-search"):
        run = cell.runs[0]
        thresholds = (0.001, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
        assert run.within_task.threshold in thresholds
        assert run.client_update.inner_rate in (1e-4, 5e-4, 1e-3, 5e-3)
        assert run.participation.cohort in (5, 15, 25, 50)
        assert run.participation.cohort * run.participation.rounds == 999_900


def test_dp_fnas_trains_the_found_cells_as_darts():
    """Sections 4 and 4.1, and the released configuration: 600 epochs of lots of 96 of
    50,000 images, cutout 16, drop path 0.2, second classifier 0.4. Private runs
    normalise within records.
    """
    table = runs_of("dp-fnas", "table1")
    trained = [run for series, run in table.items() if series.startswith("of-")]
    assert len(trained) >= 8
    for run in trained:
        update = run.client_update
        model = run.model
        assert not run.private
        assert not run.client_sums
        assert model.batch_normalisation
        assert model.auxiliary
        assert model.cells == 20
        assert model.filters == 36
        assert update.drop_path == 0.2
        assert update.auxiliary == 0.4
        augmentation = update.augmentation
        assert augmentation.crop == 4
        assert augmentation.flip
        assert augmentation.cutout == 16
        plan = run.participation
        assert plan.rounds * plan.cohort == 600 * 50_000
        assert update.weights.rate == 0.025
        assert update.weights.decay == 3e-4
    for run in runs_of("dp-fnas", "cells").values():
        if run.method == "dp-cells":
            assert run.private
            assert not run.model.batch_normalisation
            assert not run.model.auxiliary

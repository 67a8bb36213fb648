"""Settings of the `paper` preset that follow from the papers' texts.

docs/fidelity.md has the settings that the texts state (tests/test_fidelity.py).
"""

import math

import yaml
from scipy.special import logsumexp

from dpfedbench.method import Method
from tests.dpfedbench.test_experiments import planned
from tests.shipped import ROOT


def runs_of(paper: str, item: str) -> dict[str, Method]:
    """Return the first seed's run of each series of a table or figure."""
    cells = planned("paper").items[paper, item].cells
    return {cell.series: cell.runs[0] for cell in cells}


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
        assert not run.private
        assert run.model.batch_normalisation
        assert run.model.auxiliary
        assert (update.drop_path, update.auxiliary) == (0.2, 0.4)
        assert (update.augmentation.crop, update.augmentation.cutout) == (4, 16)
        assert run.participation.rounds * run.participation.cohort == 600 * 50_000
        assert (update.weights.rate, update.weights.decay) == (0.025, 3e-4)
    for run in runs_of("dp-fnas", "cells").values():
        if run.method == "dp-cells":
            assert run.private
            assert not run.model.batch_normalisation
            assert not run.model.auxiliary


VALUES = {"run", "small", "methods", "variants", "tasks", "published_at"}
VALUES |= {"published_at_methods"}


def lines_of_values() -> int:
    """Return the number of lines with values in config/presets/paper.yaml.

    Those are the lines of the sections `VALUES` of the configuration and of its
    experiments, with their headings, without comments and empty lines. All other lines
    are tables and figures.
    """
    text = (ROOT / "config" / "presets" / "paper.yaml").read_text(encoding="utf-8")
    whole = yaml.compose(text)
    (experiments,) = (value for key, value in whole.value if key.value == "experiments")
    groups = [whole, *(value for _, value in experiments.value)]
    lines = text.splitlines()
    count = 0
    for group in groups:
        if not isinstance(group, yaml.MappingNode):
            continue
        for key, value in group.value:
            if key.value in VALUES:
                section = lines[key.start_mark.line : value.end_mark.line + 1]
                if value.end_mark.column == 0 or not value.flow_style:
                    section = section[:-1]
                count += sum(not _is_comment(line) for line in section)
    return count


def _is_comment(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def test_paper_preset_has_few_lines_of_values():
    """The classes of the methods and the papers' files state the values.

    They were 153 lines when the experiment files had the small sizes.
    """
    assert lines_of_values() <= 60

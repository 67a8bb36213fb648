"""A class of a paper's method states the paper's values: built without arguments, it is
the published run.

The expected values are those of docs/fidelity/settings.csv, which was written from the
papers' texts.
"""

import csv
import math
from pathlib import Path

import pytest
import yaml

from dpfedbench.config.merge import leaves
from dpfedbench.method import Method
from dpfedbench.papers.adap_dp_fl import AdapDpFl, DpFl
from dpsum.clipping import NoisedMeanNorm
from dpsum.noise import Decaying, Gaussian

ROOT = Path(__file__).resolve().parents[3]

NOT_OF_THE_CLASS = {
    AdapDpFl: {
        "learning rate, Fashion-MNIST",
        "σ at the start, Fashion-MNIST",
        "β, Fashion-MNIST",
        "α, Fashion-MNIST",
        "constant threshold C",  # of the baseline
        "Figure 3: σ",  # a figure at another noise
    },
    DpFl: {
        "learning rate, Fashion-MNIST",
        "σ at the start, MNIST",
        "σ at the start, Fashion-MNIST",
        "β, MNIST",
        "β, Fashion-MNIST",
        "falls of the validation loss before σ falls",
        "validation",
        "α, MNIST",
        "α, Fashion-MNIST",
        "threshold of the first round",
        "Figure 3: σ",
    },
}
"""Rows of the paper that are settings of other data sets, methods or figures."""

STATED = {AdapDpFl: 17, DpFl: 12}
"""Number of rows that are compared for each class."""


def rows_of(method: type[Method]) -> list[dict[str, str]]:
    """Return the rows of the paper's settings that the method's class has to state."""
    path = ROOT / "docs" / "fidelity" / "settings.csv"
    with open(path, encoding="utf-8", newline="") as file:
        return [
            row
            for row in csv.DictReader(file)
            if row["paper"] == method.paper
            and row["value"]
            and "." in row["key"]
            and not row["key"].startswith(("search.", "test."))
            and row["setting"] not in NOT_OF_THE_CLASS[method]
        ]


@pytest.mark.parametrize("method", NOT_OF_THE_CLASS)
def test_class_without_arguments_has_the_values_of_the_paper(
    method: type[Method],
) -> None:
    values = leaves(method().plain())
    rows = rows_of(method)
    assert len(rows) == STATED[method]
    for row in rows:
        value = values[row["key"]]
        if row["value"].startswith(">= "):
            assert value >= float(row["value"].removeprefix(">= ")), row
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            assert math.isclose(value, float(row["value"])), row
        else:
            assert value == yaml.safe_load(row["value"]), row


def test_adap_dp_fl_takes_other_values_as_arguments() -> None:
    run = AdapDpFl(seed=3, noise={"multiplier": 4.0}, clipping="noised-mean-norm")
    assert run.seed == 3
    assert run.noise == Decaying(multiplier=4.0, decay=0.9999, falls=3)
    assert run.clipping == NoisedMeanNorm(threshold=None, factor=1.0)
    whole = AdapDpFl(noise=Gaussian(multiplier=2.0))
    assert whole.noise == Gaussian(multiplier=2.0)


def test_key_of_the_published_run_is_that_of_its_values() -> None:
    """The same values, all of them given."""
    published = AdapDpFl()
    assert AdapDpFl.read(published.plain()).key == published.key
    assert AdapDpFl.of_identity(published.identity()) == published

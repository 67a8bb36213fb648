"""Every combination of the table is built on a toy: its epsilon is that of brute force,
or it is refused. A new clipping rule, noise or participation enters by existing.
"""

import itertools
import math
import warnings
from pathlib import Path

import numpy as np
import pytest

import dpsum
from dpsum.accounting.account import account
from dpsum.accounting.context import AccountContext
from dpsum.accounting.tuning import Search
from tests.dpsum.combinations import (
    BOUND,
    CLIPPING,
    DELTA,
    MOVING,
    NOISE,
    PARTICIPATION,
    ROUNDS,
    VALUE,
    VOID_OUTCOME,
    ceiling_loss,
    cells,
    distances,
    expected_loss,
    make_noise,
    make_participation,
    make_rule,
    page,
    rule_of,
    unit_of,
)
from tests.dpsum.helpers import make_mechanism, make_mechanisms
from tests.dpsum.privacy_losses import sampled

kinds = pytest.importorskip("dpfedbench.config.kinds")

FAMILIES = [
    (dpsum.ClippingRule, CLIPPING),
    (dpsum.Noise, NOISE),
    (dpsum.Participation, PARTICIPATION),
]

PRECISION = 4e-3
"""Error of the brute force: it rounds each loss to 0.001 and cuts the tails."""

BINS_EXCESS = 0.015
"""Share by which the bracket of secret rounds may be above the truth here."""

SKELLAM_EXCESS = 0.05
"""Share by which Skellam noise may cost more than Gaussian noise here."""


@pytest.fixture(scope="module")
def classes():
    """All classes by kind, with those of dpfedbench and of plugins."""
    found = {}
    for base, _ in FAMILIES:
        found[base] = kinds.kinds_of(base)
    return found


def missing_rows(found, expected):
    """Return what to add to the table for classes that it does not know."""
    return [
        f"{cls.__module__}.{cls.__name__} has no rule: add the kind {kind!r} to"
        " tests/dpsum/combinations.py and run tools/generate_combinations.py"
        for kind, cls in found.items()
        if kind not in expected
    ]


@pytest.mark.parametrize(("base", "expected"), FAMILIES)
def test_table_of_combinations_has_every_class(classes, base, expected):
    assert missing_rows(classes[base], expected) == []


def test_class_without_a_rule_is_named():
    (line,) = missing_rows({"laplace": dpsum.Gaussian}, NOISE)
    assert line.startswith("dpsum.noise.Gaussian has no rule: add the kind 'laplace'")


def mechanisms_of(cell, classes, ledger):
    """Return the mechanisms of a cell, which share a ledger."""
    holders = 0 if cell.taken_by == "server" else 2
    seeds = {"one": [1], "two of one draw": [1, 1], "two of two draws": [1, 2]}
    plans = [
        make_participation(
            cell.participation, classes[dpsum.Participation], seed, holders or 1
        )
        for seed in seeds[cell.sums]
    ]
    parts = {
        "disjoint parts": ("a", "b"),
        "a part and all records": ("a", ""),
        "of clients": ("a", "a"),
    }.get(cell.part, ("", ""))
    unit = unit_of(cell)
    if cell.part == "of clients":
        unit = "client"
    sums = []
    for number, plan in enumerate(plans):
        clipping = "constant" if number else cell.clipping
        noise = "fixed" if number and cell.noise == "decaying" else cell.noise
        sums.append(
            dict(
                name=f"sum-{number}",
                stream=f"noise-{number}",
                unit=unit,
                observer="server" if holders else "everyone",
                taken_by="client" if holders else "server",
                adjacency=cell.adjacency,
                added=cell.taken_by == "clients, added",
                part=parts[number],
                clipping=make_rule(clipping, classes[dpsum.ClippingRule]),
                noise=make_noise(noise, classes[dpsum.Noise], cell.participation),
                participation=plan,
                dimension=2,
                ledger=ledger,
                holders=holders,
                seed=number,
            )
        )
    if cell.composed:
        return make_mechanisms(sums)
    return [make_mechanism(**values) for values in sums]


def run_rounds(mechanisms):
    for index, mechanism in itertools.product(range(ROUNDS), mechanisms):
        for holder in range(mechanism.holders or 1):
            total = mechanism.begin_round(index, holder=holder)
            total.add(np.ones((int(mechanism.sampler["cohort"]), 2)))
            if mechanism.holders:
                mechanism.finish(total)
            else:
                mechanism.release(total)
        if mechanism.holders:
            mechanism.write(index)


def earlier_run(cell, classes):
    """Return the releases of a run that this one rests on."""
    if cell.other == "alone":
        return ()
    kind = "one-pass" if "known" in cell.other else "poisson"
    ledger = []
    plan = make_participation(kind, classes[dpsum.Participation], 3)
    mechanism = make_mechanism(
        clipping=dpsum.Constant(1.0),
        noise=dpsum.Gaussian(1.0),
        participation=plan,
        dimension=2,
        ledger=ledger,
    )
    run_rounds([mechanism])
    return tuple(ledger)


def build(cell, classes):
    """Return a cell's ledger and account; raises DpsumError where it is refused."""
    ledger = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpsum.NoAccountWarning)
        run_rounds(mechanisms_of(cell, classes, ledger))
    search = None
    if cell.search != "no search":
        search = Search(runs=2, data="private", number="fixed")
    context = AccountContext(
        before=earlier_run(cell, classes),
        search=search,
        own_streams=cell.search == "two runs of own streams",
    )
    return ledger, account(ledger, delta=DELTA, context=context)


def fault_of(cell, classes):
    """Return what is wrong with a cell; "" if its outcome is that of its rule."""
    rule = rule_of(cell)
    try:
        ledger, computed = build(cell, classes)
    except dpsum.DpsumError as error:
        is_right = rule.is_refusal and rule.matches(str(error))
        return "" if is_right else f"{rule.text}: refused with {error}"
    if rule.is_refusal:
        return f"{rule.text}: not refused, {computed.profiles['proven'].epsilon_high}"
    profile = "proven" if cell.search == "no search" else "tuning"
    entry = computed.profiles.get(profile)
    if entry is None:
        is_claimed = rule.outcome == VALUE
        return f"no entry: {computed.reasons[profile]}" if is_claimed else ""
    fault = fault_of_status(cell, entry)
    if not fault and rule.outcome != VOID_OUTCOME:
        fault = fault_of_noise(cell, ledger) or fault_of_value(cell, entry)
        fault = fault or fault_of_others(cell, ledger, computed)
    return fault


def fault_of_status(cell, entry):
    expected = "proved"
    if rule_of(cell).outcome == VOID_OUTCOME:
        expected = "void"
    elif cell.noise == "decaying":
        expected = "as run"
    is_void = entry.epsilon_high == math.inf
    if entry.status != expected or is_void != (expected == "void"):
        return f"printed {entry.epsilon_high}, {entry.status}; should be {expected}"
    return ""


def fault_of_noise(cell, ledger):
    """Return what is wrong with the noise that was drawn, if it is Gaussian.

    A unit that is zeroed out moves a sum by C and a count of indicators by 1/2, one
    that is replaced by twice as much.
    """
    reach = 2.0 if cell.adjacency == "replace-one" else 1.0
    most = math.fsum(distance**2 for distance in distances(cell))
    for index in range(ROUNDS):
        squares = 0.0
        for line in ledger:
            if line.round == index and line.name != "sum-1":
                moved = reach * np.atleast_1d(line.threshold)
                if line.name == "below-threshold-count":
                    moved = np.array([reach * 0.5])
                squares += np.max((moved / np.atleast_1d(line.noise_std)) ** 2)
        if squares > most * (1 + 1e-9):
            return f"noise of round {index} protects by {squares}, not {most}"
    return ""


def fault_of_value(cell, entry):
    truth = expected_loss(cell).epsilon(DELTA)
    most = truth + PRECISION
    if rule_of(cell).outcome == BOUND:
        most = 1.25 * ceiling_loss(cell).epsilon(DELTA) + PRECISION
    if cell.participation == "balls-and-bins":
        most *= 1 + BINS_EXCESS
    if cell.noise == "skellam":
        most *= 1 + SKELLAM_EXCESS
    printed = f"printed [{entry.epsilon_low:.4f}, {entry.epsilon_high:.4f}]"
    if not entry.epsilon_low <= most:
        return f"low end above the truth: {printed}, truth {truth:.4f}"
    if not truth - PRECISION <= entry.epsilon_high <= most:
        return f"{printed}, truth {truth:.4f}, at most {most:.4f}"
    return ""


def epsilon_for_others(ledger, observer):
    """Return epsilon of a record of the worst client, for those who see sums alone.

    Another client subtracts its own release, everyone else sees all noise.
    """
    holders = len(ledger[0].noise_std)
    epsilons = []
    for holder in range(holders):
        losses = []
        for index in range(ROUNDS):
            distances = []
            for line in ledger:
                if line.round == index:
                    squares = np.square(line.noise_std)
                    hiding = squares.sum()
                    if observer == "another client":
                        hiding -= np.delete(squares, holder).max()
                    distances.append(line.sensitivity[holder] / math.sqrt(hiding))
            losses.append(sampled(math.hypot(*distances), 0.5))
        first, second = losses
        epsilons.append((first + second).epsilon(DELTA))
    return max(epsilons)


def fault_of_others(cell, ledger, computed):
    """Return what is wrong with the accounts of further observers of added sums.

    Where a rule moves the thresholds of clients apart, the noise of the others depends
    on their releases, so that what hides a record is not fixed beforehand.
    """
    for other in computed.also:
        entry = other.profiles["proven"]
        is_fixed = cell.clipping not in MOVING and cell.noise != "decaying"
        hides_others = entry.observer == "everyone"
        if hides_others and entry.status != ("proved" if is_fixed else "as run"):
            return f"{entry.observer}: {entry.status}"
        least = epsilon_for_others(ledger, entry.observer) - PRECISION
        if entry.epsilon_high < least:
            return f"{entry.observer}: {entry.epsilon_high:.4f}, truth {least:.4f}"
    return ""


def test_every_combination_has_the_epsilon_of_brute_force_or_is_refused(classes):
    faults = []
    for cell in cells():
        fault = fault_of(cell, classes)
        if fault:
            faults.append(f"{cell}: {fault}")
    assert not faults, "\n".join(faults[:40])


def test_page_of_combinations_is_that_of_the_table():
    """`tools/generate_combinations.py` writes it."""
    path = Path(__file__).parents[2] / "docs" / "combinations.md"
    assert path.read_text(encoding="utf-8") == page()

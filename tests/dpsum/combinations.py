"""The table of combinations: what is combined, and the rule that accounts for it.

`cells` lists all combinations. `rule_of` names the rule of each: a refusal, no finite
epsilon, or a value by brute force. `test_combinations` builds each cell through the
public interface. `page` is docs/combinations.md.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable

from dpsum.participation import local, within_task
from tests.dpsum.privacy_losses import (
    fixed_size_data_set,
    gaussian,
    in_one_of_two_rounds,
    sampled,
)

DELTA = 1e-2
ROUNDS = 2
UNITS = 6
COHORT = 3
MULTIPLIER = 1.0

# What is expected of each class. A class that is missing here fails the test.

FREE = "follows releases alone: the sum's noise multiplier z"
WITHIN = "its noised count is paid by the sum: both together cost z"
BESIDE = "its own release costs z again: both together cost z / sqrt(2)"
VOID = "reads raw norms: no finite epsilon"
SCALED = "noise of another size: the multiplier that it amounts to"

CLIPPING = {
    "constant": FREE,
    "percentile-of-releases": FREE,
    "norm-of-release": FREE,
    "private-quantile": WITHIN,
    "noised-mean-norm": BESIDE,
    "mean-of-raw-norms": VOID,
    "percentile-of-raw-norms": VOID,
    "median-of-run": VOID,
    "by-kernel": SCALED,
}
"""Cost of each clipping rule, by its kind."""

MOVING = {
    "percentile-of-releases",
    "norm-of-release",
    "private-quantile",
    "noised-mean-norm",
    "mean-of-raw-norms",
    "percentile-of-raw-norms",
}
"""Rules whose threshold moves after the first round."""

RULE_VALUES = {
    "private-quantile": {"count_noise": 2.0},
    "by-kernel": {"kernel_norm": 1.0},
}
"""Further values of the rules' classes."""

INDEPENDENT = "independent Gaussian noise of each round"
FOLLOWING = "Gaussian noise that may fall with a public loss: as run, or by a filter"
CORRELATED = "cancels noise of earlier rounds: one Gaussian of the encoder's columns"
WHOLE = "whole numbers under secure aggregation: a little above the Gaussian"

NOISE = {
    "fixed": INDEPENDENT,
    "decaying": FOLLOWING,
    "correlated": CORRELATED,
    "skellam": WHOLE,
}
"""Analysis of each noise, by its kind."""

ONCE = "each unit is in one known release: one Gaussian"
ALWAYS = "each unit is in all releases: one Gaussian"
POISSON = "each unit in each round by chance: sampled Gaussians, composed"
ONE_SECRET = "each unit in one secret round: a mixture over the rounds"
REPLACING = "a drawn unit takes another's place: between one data set and known cohorts"
NONE = "no analysis"

PARTICIPATION = {
    "one-pass": ONCE,
    "min-separation": ONCE,
    "shuffled-epochs": ONCE,
    "local": ONCE,
    "within-task": ONCE,
    "everyone": ALWAYS,
    "poisson": POISSON,
    "poisson-lots": POISSON,
    "within-task-poisson": POISSON,
    "balls-and-bins": ONE_SECRET,
    "fixed-size": REPLACING,
    "passes": NONE,
}
"""Analysis of each participation, by its kind, in two rounds of half of the units."""

WITH_CORRELATED = {"one-pass", "min-separation", "everyone", "balls-and-bins"}
WITH_SKELLAM = {"one-pass"}
OWN_SUMS = {"within-task", "within-task-poisson"}

SUMS = ("one", "two of one draw", "two of two draws")
TAKERS = ("server", "clients", "clients, added")
PARTS = ("all records", "disjoint parts", "a part and all records", "of clients")
OTHERS = ("alone", "rests on a run of known cohorts", "rests on a run of Poisson")
SEARCHES = ("no search", "two runs of own streams", "two runs of shared streams")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One combination."""

    adjacency: str = "zero-out"
    clipping: str = "constant"
    noise: str = "fixed"
    participation: str = "poisson"
    sums: str = "one"
    composed: bool = True
    taken_by: str = "server"
    part: str = "all records"
    other: str = "alone"
    search: str = "no search"

    def __str__(self):
        return ", ".join(f"{name} {value}" for name, value in vars(self).items())


def cells():
    """Yield all combinations.

    The first block has every class with every other; the blocks after it have what is
    for some units only, or takes another run.
    """
    classes = itertools.product(CLIPPING, NOISE, PARTICIPATION)
    for clipping, noise, participation in classes:
        for adjacency in ("zero-out", "replace-one"):
            yield Cell(adjacency, clipping, noise, participation)
        for sums, composed in itertools.product(SUMS[1:], (True, False)):
            adjacency = "replace-one" if participation == "local" else "zero-out"
            yield Cell(adjacency, clipping, noise, participation, sums, composed)
    for clipping, noise, taken_by in itertools.product(CLIPPING, NOISE, TAKERS[1:]):
        yield Cell(
            clipping=clipping,
            noise=noise,
            participation="poisson-lots",
            taken_by=taken_by,
        )
    for participation, sums, part in itertools.product(PARTICIPATION, SUMS, PARTS[1:]):
        adjacency = "replace-one" if participation == "local" else "zero-out"
        if sums != "one" or part == "of clients":
            yield Cell(adjacency, participation=participation, sums=sums, part=part)
    for participation, sums, other in itertools.product(
        PARTICIPATION, SUMS[:2], OTHERS[1:]
    ):
        yield Cell(participation=participation, sums=sums, other=other)
    for participation, sums, search in itertools.product(
        PARTICIPATION, SUMS, SEARCHES[1:]
    ):
        adjacency = "replace-one" if participation == "local" else "zero-out"
        yield Cell(adjacency, participation=participation, sums=sums, search=search)


# The rules, the first that applies


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule of the table.

    Attributes:
        text: the rule, for people.
        applies: whether it is for a cell.
        outcome: pattern of the refusal; `VOID_OUTCOME`, `VALUE` or `BOUND`.
    """

    text: str
    applies: Callable[[Cell], bool]
    outcome: str

    @property
    def is_refusal(self):
        """Whether a cell of this rule is refused."""
        return self.outcome not in (VALUE, BOUND, VOID_OUTCOME)

    def matches(self, message):
        """Return whether a message is that of the refusal."""
        return re.search(self.outcome, message) is not None


VALUE = "value"
BOUND = "bound"
VOID_OUTCOME = "void"


def _mechanism(cell):
    return {"correlated": "correlated-gaussian", "skellam": "skellam"}.get(
        cell.noise, "gaussian"
    )


def _has_analysis(cell):
    supported = {
        "gaussian": set(PARTICIPATION) - {"passes"},
        "correlated-gaussian": WITH_CORRELATED,
        "skellam": WITH_SKELLAM,
    }
    return cell.participation in supported[_mechanism(cell)]


def _makes_release(cell):
    return CLIPPING[cell.clipping] in (WITHIN, BESIDE)


def _several(cell):
    return cell.sums != "one"


RULES = (
    Rule(
        "parts are of records: a part of a sum over clients is refused",
        lambda cell: cell.part == "of clients",
        "parts are of records",
    ),
    Rule(
        "correlated noise needs a constant threshold",
        lambda cell: cell.noise == "correlated" and cell.clipping in MOVING,
        "changes the threshold",
    ),
    Rule(
        "a sum under secure aggregation has no further release",
        lambda cell: cell.noise == "skellam" and _makes_release(cell),
        "makes a further release|secure aggregation",
    ),
    Rule(
        "a sum under secure aggregation is for zero-out adjacency",
        lambda cell: cell.noise == "skellam" and cell.adjacency == "replace-one",
        "secure aggregation|have .* noise",
    ),
    Rule(
        "noise and participation have no analysis together",
        lambda cell: not _has_analysis(cell),
        "no analysis|whose number of rounds",
    ),
    Rule(
        "a part and all records are not composed",
        lambda cell: cell.part == "a part and all records",
        "subset of the records",
    ),
    Rule(
        "clients' own sums over the same examples are not composed",
        lambda cell: (
            cell.participation in OWN_SUMS
            and cell.part != "disjoint parts"
            and (_several(cell) or _makes_release(cell))
        ),
        "read the same records",
    ),
    Rule(
        "a client's own update is for replace-one, all others for zero-out",
        lambda cell: (
            (cell.participation == "local") != (cell.adjacency == "replace-one")
        ),
        "adjacency",
    ),
    Rule(
        "sums of other noise than independent Gaussian are not composed",
        lambda cell: _several(cell) and _mechanism(cell) != "gaussian",
        "noise",
    ),
    Rule(
        "a run that rests on another has no clients' own sums",
        lambda cell: (
            cell.other != "alone"
            and cell.participation in (*OWN_SUMS, "poisson-lots", "local")
        ),
        "uses another run's releases|adjacency",
    ),
    Rule(
        "a rule that reads raw norms has no finite epsilon",
        lambda cell: CLIPPING[cell.clipping] == VOID,
        VOID_OUTCOME,
    ),
    Rule(
        "runs of a search on shared streams have no finite epsilon",
        lambda cell: cell.search == "two runs of shared streams",
        VOID_OUTCOME,
    ),
    Rule(
        "fixed-size cohorts: from one data set's epsilon to that of known cohorts",
        lambda cell: cell.participation == "fixed-size",
        BOUND,
    ),
    Rule(
        "draws of secret cohorts that are one of T rounds, composed with others, and "
        "runs of a search: a bound by Renyi divergences",
        lambda cell: (
            (cell.sums == "two of two draws" and cell.participation == "balls-and-bins")
            or cell.search != "no search"
            or (cell.other != "alone")
        ),
        BOUND,
    ),
    Rule("the value of the composed privacy losses", lambda cell: True, VALUE),
)


def rule_of(cell):
    """Return the first rule that applies to a cell."""
    return next(rule for rule in RULES if rule.applies(cell))


# Brute force


def distances(cell):
    """Return the distance of each release of a round, in deviations of its noise."""
    first = {
        FREE: [1 / MULTIPLIER],
        WITHIN: [1 / MULTIPLIER],
        BESIDE: [1 / MULTIPLIER] * 2,
        SCALED: [1 / MULTIPLIER],
    }[CLIPPING[cell.clipping]]
    if cell.clipping == "by-kernel" and cell.adjacency == "replace-one":
        first = [2 / MULTIPLIER]
    return first


def expected_loss(cell):
    """Return the privacy losses of a cell (a lower bound where its rule is `BOUND`)."""
    first = distances(cell)
    second = [1 / MULTIPLIER]
    if cell.sums == "one" or cell.part == "disjoint parts":
        loss = _of_rounds(cell, first)
    elif cell.sums == "two of one draw":
        loss = _of_rounds(cell, first + second)
    else:
        loss = _of_rounds(cell, first) + _of_rounds(cell, second)
    if cell.search != "no search":
        loss = loss + loss
    if cell.other == "rests on a run of known cohorts":
        loss = loss + gaussian(1 / MULTIPLIER)
    if cell.other == "rests on a run of Poisson":
        loss = loss + sampled(1 / MULTIPLIER, 0.5) + sampled(1 / MULTIPLIER, 0.5)
    return loss


def ceiling_loss(cell):
    """Return the losses of a cell if all units were in all rounds, as in known ones."""
    whole = dataclasses.replace(cell, participation="everyone", noise="fixed")
    return expected_loss(whole)


def _of_rounds(cell, releases):
    """Return the losses of both rounds of one draw, each with these releases."""
    mu = math.hypot(*releases)
    analysis = PARTICIPATION[cell.participation]
    if cell.noise == "correlated":
        return _of_encoder(cell, mu)
    if analysis == ONCE:
        return gaussian(mu)
    if analysis == ALWAYS:
        return gaussian(mu, mu)
    if analysis == POISSON:
        return sampled(mu, 0.5) + sampled(mu, 0.5)
    if analysis == ONE_SECRET:
        return in_one_of_two_rounds((mu, 0.0), (0.0, mu))
    one_round = fixed_size_data_set(mu, 0.5)
    return one_round + one_round


def _of_encoder(cell, mu):
    """Return the losses of the square root's encoder of two rounds.

    Its columns are (1, 1/2) and (0, 1), over the norm of the first; for everyone, over
    the norm of their sum, which a unit of both rounds moves.
    """
    if PARTICIPATION[cell.participation] in (ONCE, ALWAYS):
        return gaussian(mu)
    norm = math.hypot(1.0, 0.5)
    return in_one_of_two_rounds((mu / norm, mu / 2 / norm), (0.0, mu / norm))


# Construction


def make_participation(kind, classes, seed, holders=1):
    """Return the participation of a kind: two rounds of half of the units."""
    if kind == "local":
        return local(clients=UNITS, cohort=COHORT, rounds=ROUNDS)
    if kind == "within-task":
        return within_task(
            clients=UNITS, rounds=ROUNDS, records=4, steps=1, batches="full"
        )
    if kind == "within-task-poisson":
        return within_task(
            clients=UNITS, rounds=ROUNDS, records=4, steps=2, batches="poisson"
        )
    if kind == "poisson-lots":
        lots = classes[kind](lot=COHORT, rounds=ROUNDS)
        return lots.lots(clients=holders, seed=seed, steps=1, records=UNITS)
    cohort = UNITS if kind == "everyone" else COHORT
    return classes[kind](units=UNITS, cohort=cohort, rounds=ROUNDS, seed=seed)


def make_noise(kind, classes, participation):
    noise = classes[kind](multiplier=MULTIPLIER)
    if kind == "correlated":
        times = ROUNDS if participation == "everyone" else 1
        noise = noise.planned(ROUNDS, step=None, apart=(1, times))
    return noise


def make_rule(kind, classes):
    return classes[kind](threshold=1.0, **RULE_VALUES.get(kind, {}))


def unit_of(cell):
    by_record = cell.participation in (*OWN_SUMS, "poisson-lots")
    if by_record or cell.part in PARTS[1:3]:
        return "record"
    return "client"


# The page


def page():
    """Return the text of docs/combinations.md."""
    counts = dict.fromkeys((rule.text for rule in RULES), 0)
    for cell in cells():
        counts[rule_of(cell).text] += 1
    lines = [
        "# Combinations of sums, and the rule that accounts for each",
        "",
        f"A test builds all {sum(counts.values()):,} combinations on two rounds of six"
        " units, and compares the printed ε with privacy losses by brute force, or sees"
        " the refusal: `tests/dpsum/test_combinations.py`. A new clipping rule, noise or"
        " participation, a plugin's too, needs a row in `tests/dpsum/combinations.py`."
        " `tools/generate_combinations.py` writes this page.",
        "",
        "## What is combined",
        "",
        "| | values |",
        "|---|---|",
        "| adjacency | zero-out, replace-one |",
        f"| clipping rule | {', '.join(CLIPPING)} |",
        f"| noise | {', '.join(NOISE)} |",
        f"| participation | {', '.join(PARTICIPATION)} |",
        f"| sums of a round | {', '.join(SUMS)}; with one `Composition`, or one ledger alone |",
        f"| who adds up | {', '.join(TAKERS)} |",
        f"| part of the records | {', '.join(PARTS)} |",
        f"| rests on another run | {', '.join(OTHERS)} |",
        f"| searched | {', '.join(SEARCHES)} |",
        "",
        "The first five are combined with one another. The others are combined with"
        " each participation and number of sums, and sums that clients take with each"
        " clipping rule and noise.",
        "",
        "## The rules",
        "",
        "The first rule that applies to a combination is its own.",
        "",
        "| | combination | outcome | cells |",
        "|---|---|---|---|",
    ]
    outcomes = {VALUE: "ε", BOUND: "a bound on ε", VOID_OUTCOME: "ε is infinite, void"}
    for number, rule in enumerate(RULES, start=1):
        outcome = outcomes.get(rule.outcome, "refused")
        lines.append(f"| {number} | {rule.text} | {outcome} | {counts[rule.text]:,} |")
    tables = (
        ("clipping rule", "cost", CLIPPING),
        ("noise", "analysis", NOISE),
        ("participation", "analysis of two rounds", PARTICIPATION),
    )
    lines += [
        "",
        "The value composes the privacy losses of the parts: releases of one draw of"
        " cohorts are one Gaussian release of multiplier (sum of z^-2)^-1/2 in each"
        " round; draws that are independent, an earlier run, and the runs of a search add"
        " their losses. Of disjoint parts of the records the largest ε counts.",
    ]
    for first, second, rows in tables:
        lines += ["", f"| {first} | {second} |", "|---|---|"]
        lines += [f"| `{kind}` | {text} |" for kind, text in rows.items()]
    return "\n".join(lines) + "\n"

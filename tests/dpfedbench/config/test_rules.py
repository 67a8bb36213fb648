"""Rules between a part and the rest of its run."""

import types

import pytest

from dpfedbench.config.rules import Rule, rules_of
from dpfedbench.errors import BenchError
from dpfedbench.run import check_rules

RUN = types.SimpleNamespace(cohort=20)
SIZE = Rule(
    lambda part, run: part.size > run.cohort and part.size - run.cohort,
    "size is {part.size}, {fault} above the cohort ({run.cohort}): write {{size: 1}}",
)


class Sized:
    rules = (SIZE,)

    def __init__(self, size: int) -> None:
        self.size = size


class Even(Sized):
    rules = (Rule(lambda part, run: part.size % 2, "size {part.size} is odd"),)


def check_parts(*parts: object) -> None:
    rows = [(part, rule) for part in parts for rule in rules_of(type(part))]
    check_rules(rows, RUN)


def test_rule_that_holds_accepts_the_run() -> None:
    check_parts(Sized(20), Even(20))


def test_broken_rule_refuses_with_values_of_part_run_and_fault() -> None:
    message = r"^size is 23, 3 above the cohort \(20\): write \{size: 1\}$"
    with pytest.raises(BenchError, match=message):
        check_parts(Sized(23))


def test_class_keeps_the_rules_of_its_bases_and_they_come_first() -> None:
    with pytest.raises(BenchError, match=r"^size is 23"):
        check_parts(Even(23))
    with pytest.raises(BenchError, match=r"^size 19 is odd$"):
        check_parts(Even(19))


def test_class_with_a_check_that_nothing_calls_is_refused() -> None:
    class Checked(Sized):
        def check(self, run: object) -> None:
            raise AssertionError

    with pytest.raises(BenchError, match="Checked defines check, which nothing calls"):
        check_parts(Checked(1))

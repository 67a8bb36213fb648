"""A method refuses what would make it another: each against the parts of each other."""

import itertools
from typing import Any

import pytest

from dpfedbench.errors import BenchError
from dpfedbench.method import Method
from dpfedbench.papers import METHODS
from dpfedbench.settings.kinds import root_of
from dpfedbench.settings.merge import merge
from dpfedbench.settings.part import kinds_of, plain
from dpfedbench.settings.schema import keys_of
from tests.dpfedbench.federation.conftest import DIFFERENCE, LOTS, RUN, make_config

GENERAL = {
    **dict.fromkeys(
        ("adap-dp-fl", "dp-fl", "fedavg", "fnas", "dp-fnas", "cells", "dp-cells"), LOTS
    ),
    "dp-fedavg": DIFFERENCE,
    "dp-scaffold": DIFFERENCE,
}
SIZES = {"transfer", "dp-transfer"}
FILE = {
    "kind": "file",
    "path": "model.safetensors",
    "sha256": "0" * 64,
    "source": "drawings",
    "public": True,
}


def run_of(method: str, *overlays: Any) -> Any:
    sizes = {"participation": {"cohort": 8, "rounds": 6}} if method in SIZES else {}
    start = {"initial": FILE} if method == "public-alone" else {}
    general = merge(GENERAL.get(method, RUN), start)
    return make_config({"method": method}, sizes, *overlays, general=general)


def own(run: Any) -> dict[str, Any]:
    """The sections that the method has beside those of every run, by key."""
    return {
        key: getattr(run, key)
        for key in type(run).model_fields
        if key not in Method.model_fields
    }


def kinds(run: Any) -> dict[str, Any]:
    """What a run's parts are, as a series would say it: a kind where there is one, else
    the section's own values.
    """
    return {
        key: {"kind": part.kind} if hasattr(part, "kind") else plain(part)
        for key, part in own(run).items()
    }


def promises(run: Any) -> Any:
    """What the method's name says of a run: what is protected, whose it is, from whom;
    and what clients hold.
    """
    private = [
        (sum_.unit, sum_.observer, sum_.within_task is None)
        for sum_ in run.sums()
        if sum_.private
    ]
    server = run.trained and run.server_sum.private
    return (
        private,
        run.private,
        server,
        run.client_data,
        run.pretrains,
        run.delta is None,
        run.own_delta is None,
    )


RUNS = {name: run_of(name) for name in METHODS}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_refuses_the_parts_of_another_or_stays_what_it_is(name: str) -> None:
    """All parts of another method at once, and one by one."""
    run = RUNS[name]
    overlays = []
    for other in RUNS.values():
        parts = kinds(other)
        overlays += [parts, *({key: value} for key, value in parts.items())]
    for overlay in overlays:
        try:
            changed = run_of(name, overlay)
        except BenchError as error:
            assert "\n" not in str(error)
            continue
        assert type(changed) is METHODS[name]
        assert promises(changed) == promises(run)
        # Each part is one that the method's own composition names.
        for key, part in own(changed).items():
            assert type(part) in keys_of(METHODS[name])[key].classes


@pytest.mark.parametrize("name", METHODS)
def test_no_part_of_a_method_can_be_left_out(name: str) -> None:
    """Not by null, and a part that it does not have cannot be put in."""
    run = RUNS[name]
    for key in own(run):
        with pytest.raises(BenchError, match=rf"^{key} is null"):
            run_of(name, {key: None})
    for key, parts in itertools.chain.from_iterable(
        kinds(each).items() for each in RUNS.values()
    ):
        if key not in own(run):
            with pytest.raises(BenchError, match=rf"^unknown key {key}\b"):
                run_of(name, {key: parts})


@pytest.mark.parametrize("name", METHODS)
def test_every_kind_that_a_method_does_not_name_is_refused(name: str) -> None:
    """By the family of each of its parts, and in the words of the method."""
    for key, part in own(RUNS[name]).items():
        if not hasattr(part, "kind"):
            continue
        family = set(kinds_of(root_of(type(part))))
        accepted = set(keys_of(METHODS[name])[key].parts)
        assert accepted <= family
        for kind in family - accepted:
            with pytest.raises(BenchError) as caught:
                run_of(name, {key: {"kind": kind}})
            assert str(caught.value).startswith(
                f'{key}.kind is "{kind}": expected one of '
            )
            assert "\n" not in str(caught.value)
        with pytest.raises(
            BenchError, match=rf'^{key}\.kind is "nothing-such": expected one of '
        ):
            run_of(name, {key: {"kind": "nothing-such"}})


def test_privacy_is_read_off_the_sums() -> None:
    """What each method protects: units, and who sees the release (docs/privacy.md)."""
    clients = ("client", "everyone", True)
    server = ("record", "server", True)
    within = ("record", "server", False)
    within_everyone = ("record", "everyone", False)
    expected = {
        "random": [],
        "public-alone": [],
        "maml": [],
        "reptile": [],
        "transfer": [],
        "fedavg": [],
        "dp-agr": [clients],
        "dp-agr-ftrl": [clients],
        "dp-maml": [clients],
        "dp-fedavg": [clients],
        "dp-scaffold": [clients, clients],
        "dp-agrlr": [within, within, clients],
        "dp-maml-sample": [within_everyone, ("record", "everyone", True)],
        "dp-reptile": [within],
        "dp-fl": [server],
        "adap-dp-fl": [server],
        "dp-transfer": [("record", "everyone", True)],
        "local-reptile": [("client", "server", False)],
        "dp-agr-secagg": [("client", "server", True)],
        "fnas": [],
        "dp-fnas": [server, server],
        "cells": [],
        "dp-cells": [server],
    }
    assert {name: promises(run)[0] for name, run in RUNS.items()} == expected
    assert {name for name, run in RUNS.items() if run.private} == {
        name for name in expected if expected[name]
    }

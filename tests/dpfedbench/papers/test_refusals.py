"""A method refuses parts that would make it another method: all pairs of methods."""

from typing import Any

import pytest

from dpfedbench.config.part import plain
from dpfedbench.config.schema import keys_of
from dpfedbench.errors import BenchError
from dpfedbench.method import Method
from dpfedbench.papers import METHODS
from tests.dpfedbench.training.conftest import DIFFERENCE, LOTS, RUN, make_config

OF_LOTS = ("adap-dp-fl", "dp-fl", "fedavg", "fnas", "dp-fnas", "cells", "dp-cells")
OF_DIFFERENCES = ("dp-fedavg", "dp-scaffold", "dp-fedrep", "fedrep", "local-training")
GENERAL = dict.fromkeys(OF_LOTS, LOTS) | dict.fromkeys(OF_DIFFERENCES, DIFFERENCE)
FILE = {
    "kind": "file",
    "path": "model.safetensors",
    "sha256": "0" * 64,
    "source": "drawings",
    "public": True,
}


def run_of(method: str, *overlays: Any) -> Any:
    general = GENERAL.get(method, RUN)
    values: dict[str, Any] = {"method": method}
    if method == "public-alone":
        general = general | {"initial": FILE}
    if method in ("transfer", "dp-transfer"):
        values["participation"] = {"lot": 8, "rounds": 6}
    return make_config(values, *overlays, general=general)


def own(run: Any) -> dict[str, Any]:
    """Return the method's sections that not every run has, by key."""
    return {
        key: getattr(run, key)
        for key in type(run).model_fields
        if key not in Method.model_fields
    }


def kinds(run: Any) -> dict[str, Any]:
    """Return an overlay that selects the run's parts: a kind, or a section's values."""
    return {
        key: {"kind": part.kind} if hasattr(part, "kind") else plain(part)
        for key, part in own(run).items()
    }


def releases(run: Any) -> list[tuple[str, str, bool]]:
    """Return the protected units and observers of the run's private sums, and whether
    each is a sum over clients.
    """
    private = [sum_ for sum_ in run.sums() if sum_.private]
    return [(sum_.unit, sum_.observer, sum_.within_task is None) for sum_ in private]


def promises(run: Any) -> Any:
    """Return the run's properties that its method's name stands for."""
    server = run.trained and run.server_sum.private
    properties = (
        run.client_data,
        run.pretrains,
        run.delta is None,
        run.own_delta is None,
    )
    return releases(run), run.private, server, *properties


RUNS = {name: run_of(name) for name in METHODS}


@pytest.mark.parametrize("name", METHODS)
def test_method_with_the_parts_of_another_is_refused_or_keeps_its_promises(
    name: str,
) -> None:
    """All parts of another method at once, and one by one."""
    run = RUNS[name]
    overlays = list(map(kinds, RUNS.values()))
    overlays += [{key: parts[key]} for parts in overlays for key in parts]
    for overlay in overlays:
        try:
            changed = run_of(name, overlay)
        except BenchError as error:
            assert "\n" not in str(error)
            continue
        assert type(changed) is METHODS[name]
        assert promises(changed) == promises(run)
        # The method's composition names each part.
        for key, part in own(changed).items():
            assert type(part) in keys_of(METHODS[name])[key].classes


def test_privacy_of_methods_follows_from_their_sums() -> None:
    """Protected units and observers of each method's releases (docs/privacy.md)."""
    clients = ("client", "everyone", True)
    server = ("record", "server", True)
    within = ("record", "server", False)
    within_everyone = ("record", "everyone", False)
    public = ("random", "public-alone", "maml", "reptile", "transfer", "fedavg", "fnas")
    public += ("cells", "fedrep", "local-training")
    expected = {name: [] for name in public} | {
        "dp-agr": [clients],
        "dp-agr-ftrl": [clients],
        "dp-maml": [clients],
        "dp-fedavg": [clients],
        "dp-fedrep": [clients],
        "dp-scaffold": [clients, clients],
        "dp-agrlr": [within, within, clients],
        "dp-maml-sample": [within_everyone, ("record", "everyone", True)],
        "dp-reptile": [within],
        "dp-fl": [server],
        "adap-dp-fl": [server],
        "dp-transfer": [("record", "everyone", True)],
        "local-reptile": [("client", "server", False)],
        "dp-agr-secagg": [("client", "server", True)],
        "dp-fnas": [server, server],
        "dp-cells": [server],
    }
    assert {name: releases(run) for name, run in RUNS.items()} == expected
    is_private = {name: bool(sums) for name, sums in expected.items()}
    assert {name: run.private for name, run in RUNS.items()} == is_private

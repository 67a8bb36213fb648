"""Identity of runs: each key of each part makes another run, and nothing else does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpfedbench.config.kinds import is_part, is_section, root_of, tag_of
from dpfedbench.config.merge import set_key
from dpfedbench.config.part import kinds_of, plain
from dpfedbench.config.schema import fields_of
from dpfedbench.errors import BenchError
from dpfedbench.experiments.cells import named
from dpfedbench.method import Method
from dpfedbench.papers import read_run
from tests.dpfedbench.training.conftest import DIFFERENCE, LOTS, make_config
from tests.dpfedbench.training.test_text import RUN as TEXT

from .test_refusals import FILE, RUNS


def kind(name: str, **values: Any) -> dict[str, Any]:
    return {"kind": name} | values


def few_shot(method: str = "dp-agr", **sections: Any) -> Method:
    return make_config({"method": method} | sections)


def lots(method: str = "adap-dp-fl", **sections: Any) -> Method:
    return make_config({"method": method} | sections, general=LOTS)


def text(**sections: Any) -> Method:
    return read_run(TEXT | {"method": "reptile"} | sections)


def cells(name: str, **values: Any) -> Method:
    return lots("dp-cells", model={"genotype": kind(name, **values)})


PAIR = [[["skip_connect", 0], ["skip_connect", 1]]] * 4
OTHER_DATA = named(make_config({"method": "maml", "dataset": "other"}))
MODULE = {"kind": "module", "module": "own.net:Net", "arguments": {"width": 3}}
DIRICHLET = {"partition": "dirichlet", "concentration": 0.5}
BASES: dict[str, Method] = {
    **RUNS,
    "quantile": few_shot(clipping=kind("private-quantile", count_noise=3.0)),
    "median": few_shot(clipping=kind("median-of-run", threshold=None)),
    "own module": few_shot(model=MODULE),
    "started": few_shot(initial=kind("run", run=OTHER_DATA)),
    "file": few_shot(initial=FILE),
    "random": lots("dp-fl", model=kind("linear", features="random")),
    "dirichlet": make_config({"clients": DIRICHLET}, general=DIFFERENCE),
    "text": text(),
    "private words": text(
        task={"ways": 1, "shots": 6, "text": {"vocabulary": "private"}}
    ),
    "cells, found": cells("found", search=named(RUNS["dp-fnas"])),
    "cells, stated": cells("stated", normal=PAIR, reduction=PAIR),
    "dp-agrlr as released": few_shot(
        "dp-agrlr",
        reading="as-released",
        client_update={"order": 2},
        within_task={"query_gradient": "exact"},
    ),
    "dp-fnas as released": lots(
        "dp-fnas",
        reading="as-released",
        clients={"count": 1},
        client_update=kind("released-search-steps"),
        clipping=kind("by-kernel", threshold=None),
    ),
}
WORDS = ["batch", "record", "mean", "sum", "full", "disjoint", "quarter-turns", "exact"]
WORDS += ["prefix", "proven", "claimed", "leaky-relu", "glorot", "private", "layers"]
WORDS += ["equal-shares", "own.net:Other", "1" * 64]
"""Values of keys that take one of a few words, a checksum or a class."""


def alternatives(value: Any) -> list[Any]:
    """Return other values that a key might take."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [value + 1, value * 0.5, value - 1, 1, 4, 0.5, 0.001, None]
    if value is None:
        return [1, 3.5, 20, [1]]
    if isinstance(value, (list, tuple)):
        return [[2], list(value)[:-1], PAIR]
    if isinstance(value, dict):
        return [value | {"width": 4}, value | {"evaluation": {"tasks": 7}}]
    return [f"{value}-other", *WORDS]


def other_kinds(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the part as each other kind of its family, with the values of shared keys."""
    values = plain(part)
    for name, cls in kinds_of(root_of(type(part))).items():
        if cls is not type(part):
            shared = {key: values[key] for key in values if key in fields_of(cls)}
            yield shared | {tag_of([cls]): name}


def sections(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a section and its subsections, by dotted key with a final dot."""
    yield prefix, value
    for key in fields_of(type(value)):
        if is_section(type(getattr(value, key))):
            yield from sections(getattr(value, key), f"{prefix}{key}.")


def first_accepted(run: Method, key: str, candidates: list[Any]) -> Method | None:
    """Return the run with the first of these values at a dotted key that is accepted."""
    for candidate in candidates:
        try:
            changed = read_run(set_key(run.plain(), key, candidate))
        except BenchError:
            continue
        if changed != run:
            return changed
    return None


def neighbours(run: Method) -> Iterator[Method]:
    """Yield the runs that differ in one key, or in the kind of one part."""
    for prefix, section in sections(run):
        changes = []
        if is_part(type(section)):
            part_key = prefix.removesuffix(".")
            changes += [(part_key, [part]) for part in other_kinds(section)]
        for key in fields_of(type(section)):
            value = getattr(section, key)
            is_kind = is_part(type(section)) and key == tag_of([type(section)])
            if not is_section(type(value)) and prefix + key != "method" and not is_kind:
                changes.append((prefix + key, alternatives(value)))
        for key, candidates in changes:
            changed = first_accepted(run, key, candidates)
            if changed is not None:
                yield changed


@pytest.mark.parametrize("name", BASES)
def test_run_key_changes_with_any_single_setting(name: str) -> None:
    run = BASES[name]
    assert read_run(run.plain()) == run
    assert read_run(run.plain()).key == run.key
    keys = {run.key}
    for changed in neighbours(run):
        if changed.seed != run.seed:
            assert changed.key == run.key
            assert changed.folder != run.folder
        else:
            assert changed.key not in keys, changed
            keys.add(changed.key)
    assert len(keys) > 30


def test_results_version_includes_the_text_of_a_users_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert all(run.made_by == run.version for run in BASES.values())
    module = tmp_path / "own" / "net.py"
    module.parent.mkdir()
    module.write_text("one")
    run = BASES["own module"]
    first = run.made_by
    folder = run.folder
    assert first.startswith(f"{run.version} ")
    module.write_text("two")
    assert run.made_by != first
    assert run.folder == folder

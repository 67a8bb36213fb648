"""Identity of runs: each key of each part makes another run, and nothing else does."""

import contextlib
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
from dpfedbench.plugins import is_ours
from tests.dpfedbench.training.test_text import RUN as TEXT

from .test_refusals import FILE, RUNS, run_of


def kind(name: str, **values: Any) -> dict[str, Any]:
    return {"kind": name} | values


def text(**sections: Any) -> Method:
    return read_run(TEXT | {"method": "reptile"} | sections)


def cells(genotype: dict[str, Any]) -> Method:
    return run_of("dp-cells", {"model": {"genotype": genotype}})


PAIR = [[["skip_connect", 0], ["skip_connect", 1]]] * 4
OTHER_DATA = named(run_of("maml", {"dataset": "other"}))
MODULE = {"kind": "module", "module": "own.net:Net", "arguments": {"width": 3}}
DIRICHLET = {"partition": "dirichlet", "concentration": 0.5}
QUANTILE = kind("private-quantile", count_noise=3.0)
PRIVATE_WORDS = {"ways": 1, "shots": 6, "text": {"vocabulary": "private"}}
EXACT_AGRLR = {
    "reading": "as-released",
    "client_update": {"order": 2},
    "within_task": {"query_gradient": "exact"},
}
RELEASED_FNAS = {
    "reading": "as-released",
    "clients": {"count": 1},
    "client_update": kind("released-search-steps"),
    "clipping": kind("by-kernel", threshold=None),
}
BASES: dict[str, Method] = {
    **RUNS,
    "quantile": run_of("dp-agr", {"clipping": QUANTILE}),
    "median": run_of("dp-agr", {"clipping": kind("median-of-run", threshold=None)}),
    "own module": run_of("dp-agr", {"model": MODULE}),
    "started": run_of("dp-agr", {"initial": kind("run", run=OTHER_DATA)}),
    "file": run_of("dp-agr", {"initial": FILE}),
    "random": run_of("dp-fl", {"model": kind("linear", features="random")}),
    "dirichlet": run_of("dp-fedavg", {"clients": DIRICHLET}),
    "text": text(),
    "private words": text(task=PRIVATE_WORDS),
    "cells, found": cells(kind("found", search=named(RUNS["dp-fnas"]))),
    "cells, stated": cells(kind("stated", normal=PAIR, reduction=PAIR)),
    "dp-agrlr as released": run_of("dp-agrlr", EXACT_AGRLR),
    "dp-fnas as released": run_of("dp-fnas", RELEASED_FNAS),
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


def changes_of(section: Any, prefix: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yield each dotted key of a section and of its subsections with other values.

    A part has each other kind of its family, with the values of the keys they share.
    """
    cls = type(section)
    tag = ""
    if is_part(cls):
        tag = tag_of([cls])
        values = plain(section)
        for name, kind in kinds_of(root_of(cls)).items():
            if kind is not cls:
                shared = {key: values[key] for key in values if key in fields_of(kind)}
                yield prefix.removesuffix("."), [shared | {tag_of([kind]): name}]
    for key in fields_of(cls):
        value = getattr(section, key)
        if is_section(type(value)):
            yield from changes_of(value, f"{prefix}{key}.")
        elif prefix + key != "method" and key != tag:
            yield prefix + key, alternatives(value)


def first_accepted(run: Method, key: str, candidates: list[Any]) -> Method | None:
    """Return the run with the first of these values at a dotted key that is accepted."""
    for candidate in candidates:
        with contextlib.suppress(BenchError):
            changed = read_run(set_key(run.plain(), key, candidate))
            if changed != run:
                return changed
    return None


@pytest.mark.parametrize("name", BASES)
def test_run_key_changes_with_any_single_setting(name: str) -> None:
    run = BASES[name]
    assert read_run(run.plain()) == run
    assert read_run(run.plain()).key == run.key
    keys = {run.key}
    neighbours = (first_accepted(run, *change) for change in changes_of(run))
    for changed in filter(None, neighbours):
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
    ours = [run for run in BASES.values() if is_ours(type(run))]
    assert all(run.made_by == run.version for run in ours)
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


@pytest.mark.parametrize("name", BASES)
def test_with_seed_returns_the_run_that_is_read_with_the_seed(name: str) -> None:
    run = BASES[name]
    assert run.seed != 5
    assert run.folder.endswith(f"/seed{run.seed}")  # computed before, and not kept
    seeded = run.with_seed(5)
    expected = run.replace(seed=5)
    assert seeded == expected
    assert seeded.folder == expected.folder
    assert seeded.stream_seed == expected.stream_seed
    assert seeded.references == expected.references
    assert seeded.to_yaml() == expected.to_yaml()


def test_with_seed_refuses_a_seed_out_of_bounds() -> None:
    with pytest.raises(BenchError, match=r"^seed is -1: "):
        BASES["file"].with_seed(-1)

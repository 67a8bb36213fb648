"""What makes two runs: any key of any part, and nothing else."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpfedbench.errors import BenchError
from dpfedbench.experiments.expand import named
from dpfedbench.method import Method
from dpfedbench.papers import read_run
from dpfedbench.settings.families import is_part, is_section, root_of, tag_of
from dpfedbench.settings.layers import set_key
from dpfedbench.settings.library import fields_of
from dpfedbench.settings.part import kinds_of, plain, shapes
from tests.dpfedbench.federation.conftest import DIFFERENCE, LOTS, make_config
from tests.dpfedbench.federation.test_text import RUN as TEXT

from .test_refusals import FILE, RUNS, own

SGD = {"kind": "sgd", "momentum": 0.9}
BASES: dict[str, Any] = {
    **RUNS,
    **{
        f"dp-agr {kind}": make_config({"clipping": {"kind": kind} | more})
        for kind, more in {
            "constant": {},
            "percentile-of-raw-norms": {},
            "private-quantile": {"count_noise": 3.0},
            "median-of-run": {"threshold": None},
        }.items()
    },
    **{
        f"dp-agr {kind} by layer": make_config(
            {"clipping": {"kind": kind, "groups": "layers"} | more}
        )
        for kind, more in {
            "constant": {},
            "percentile-of-releases": {},
            "percentile-of-raw-norms": {},
            "private-quantile": {"count_noise": 30.0},
        }.items()
    },
    "reptile three steps": make_config(
        {"method": "reptile", "client_update": {"inner_steps": 3}}
    ),
    "dp-agr own module": make_config(
        {"model": {"module": "own.net:Net", "arguments": {"width": 3}}}
    ),
    "dp-agr-ftrl banded": make_config(
        {"method": "dp-agr-ftrl", "noise": {"factorisation": {"kind": "banded"}}}
    ),
    "dp-agr-ftrl square-root": make_config(
        {
            "method": "dp-agr-ftrl",
            "noise": {"factorisation": {"kind": "square-root", "band": 4}},
        }
    ),
    "dp-agr-secagg dropping": make_config(
        {"method": "dp-agr-secagg", "noise": {"dropped_at_most": 0.5}}
    ),
    "dp-agr bins": make_config({"participation": {"kind": "balls-and-bins"}}),
    "dp-agr poisson": make_config({"participation": {"kind": "poisson"}}),
    "dp-agr fixed-size": make_config({"participation": {"kind": "fixed-size"}}),
    "dp-agr min-separation": make_config({"participation": {"kind": "min-separation"}}),
    "dp-agr shuffled-epochs": make_config(
        {"participation": {"kind": "shuffled-epochs"}}
    ),
    "dp-agr server": make_config(
        {
            "server": {
                "optimizer": SGD,
                "schedule": {"kind": "cosine", "final_rate": 0.001},
            }
        }
    ),
    **{
        f"adap-dp-fl {kind}": make_config(
            {"clipping": {"kind": kind} | more}, general=LOTS
        )
        for kind, more in {
            "noised-mean-norm": {},
            "norm-of-release": {},
            "mean-of-raw-norms": {},
            "private-quantile": {"count_noise": 3.0},
        }.items()
    },
    "adap-dp-fl decaying": make_config({"noise": {"kind": "decaying"}}, general=LOTS),
    "adap-dp-fl sgd": make_config({"client_update": {"optimizer": SGD}}, general=LOTS),
    **{
        f"text {name}": read_run(TEXT | {"method": "reptile"} | more)
        for name, more in {
            "reptile": {},
            "passes": {"participation": {"kind": "passes", "cohort": 2, "rounds": 8}},
            "decay": {
                "server": TEXT["server"]
                | {"schedule": {"kind": "exponential", "decay": 0.1}}
            },
            "private": {
                "task": {"ways": 1, "shots": 6, "text": {"vocabulary": "private"}}
            },
        }.items()
    },
    **{
        f"dp-cells {kind}": make_config(
            {"method": "dp-cells", "model": {"genotype": {"kind": kind} | more}},
            general=LOTS,
        )
        for kind, more in {
            "same": {},
            "found": {"search": named(RUNS["dp-fnas"])},
            "stated": {
                kind: [[["skip_connect", 0], ["skip_connect", 1]]] * 4
                for kind in ("normal", "reduction")
            },
        }.items()
    },
    "dp-agr started": make_config(
        {
            "initial": {
                "kind": "run",
                "run": named(make_config({"method": "maml", "dataset": "other"})),
            }
        }
    ),
    "dp-agr variant": make_config({"model": {"kind": "conv4-variant"}}),
    "dp-agrlr as released": make_config(
        {
            "method": "dp-agrlr",
            "reading": "as-released",
            "client_update": {"order": 2},
            "within_task": {"query_gradient": "exact"},
        }
    ),
    "dp-fnas as released": make_config(
        {
            "method": "dp-fnas",
            "reading": "as-released",
            "clients": {"count": 1},
            "client_update": {"kind": "released-search-steps"},
            "clipping": {"kind": "by-kernel", "threshold": None},
        },
        general=LOTS,
    ),
    **{
        f"{method} by layer": make_config(
            {"method": method, "within_task": {"clipping_groups": "layers"}}
        )
        for method in ("dp-agrlr", "dp-maml-sample")
    },
    "dp-agr file": make_config({"initial": FILE}),
    "dp-agr adam-bc": make_config({"server": {"optimizer": "adam-bc"}}),
    "cells batch-steps": make_config(
        {"method": "cells", "client_update": {"kind": "batch-steps"}}, general=LOTS
    ),
    "dp-agr linear": make_config({"server": {"schedule": "linear"}}),
    "dp-agr automatic": make_config(
        {"transform": "automatic", "clipping": {"kind": "constant", "threshold": 1}}
    ),
    **{
        f"dp-fl {kind}": make_config(
            {
                "method": "dp-fl",
                "model": {"kind": "linear", "features": {"kind": kind} | more},
            },
            general=LOTS,
        )
        for kind, more in {"scattering": {}, "random": {}}.items()
    },
    "dp-fedavg adam": make_config(
        {"method": "dp-fedavg", "client_update": {"optimizer": "adam"}},
        general=DIFFERENCE,
    ),
    **{
        f"dp-agr {kind}": make_config({"clients": {"partition": kind}})
        for kind in ("disjoint", "alphabets")
    },
    "dp-fedavg dirichlet": make_config(
        {
            "method": "dp-fedavg",
            "clients": {"partition": "dirichlet", "concentration": 0.5},
        },
        general=DIFFERENCE,
    ),
    "dp-fedavg proximal": make_config(
        {"method": "dp-fedavg", "client_update": {"kind": "proximal"}},
        general=DIFFERENCE,
    ),
}

NODES = [[["sep_conv_3x3", 0], ["skip_connect", 1]]] * 4
"""Of a cell, other than those of the base."""

FIXED_BY_OTHERS = {
    # A run with another value is refused, or is another method's.
    ("MedianOfRun", "groups"),
    ("MedianOfRun", "noise_by_group"),
    ("MeanOfRawNorms", "groups"),
    ("MeanOfRawNorms", "noise_by_group"),
    ("NoisedMeanNorm", "groups"),
    ("NoisedMeanNorm", "noise_by_group"),
    ("NormOfRelease", "groups"),
    ("NormOfRelease", "noise_by_group"),
    ("MedianOfRun", "threshold"),
    ("MedianOfRun", "kind"),
    ("BallsAndBins", "cohort"),
    ("BallsAndBins", "rounds"),
    ("LstmModel", "kind"),
    ("LocalSteps", "kind"),
    ("ModelDifference", "kind"),
    ("Maml", "kind"),
    ("Reptile", "kind"),
    ("Average", "kind"),
    ("Step", "kind"),
    ("PoissonLots", "kind"),
    ("Factorised", "kind"),
    ("Skellam", "kind"),
    ("Scaffold", "kind"),
    ("SummedSteps", "kind"),
    ("SearchSteps", "kind"),
    ("ReleasedSearchSteps", "kind"),
    ("ByKernel", "kind"),
    ("ByKernel", "threshold"),
    ("ByKernel", "groups"),
    ("ByKernel", "noise_by_group"),
    ("DartsSearch", "kind"),
    # Another kind needs what the base has not: a file, a run, a threshold of 1.
    ("RandomInitial", "kind"),
    ("AsTheyAre", "kind"),
    ("Fragments", "partition"),
    ("Dirichlet", "partition"),
}


def others(value: Any) -> list[Any]:
    """Other values that a key might take."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [value + 1, value * 0.5, value * 2, value - 1, 1, 2, 4, 0.5, 0.001, None]
    if value is None:
        return [1, 3.5, 20, [1]]
    if isinstance(value, (list, tuple)):
        return [[2], list(value)[:-1], NODES]
    if isinstance(value, dict):
        return [
            {**value, "width": 4},
            {**value, "evaluation": {"tasks": 7}},
            {**value, "noise": {"kind": "fixed", "multiplier": 3.0}},
        ]
    return {
        "0" * 64: ["1" * 64],
        "own.net:Net": ["own.net:Other"],
        "none": ["quarter-turns"],
        "batch": ["record"],
        "record": ["batch"],
        "mean": ["sum"],
        "sum": ["mean"],
        "full": ["disjoint"],
        "server": ["prefix"],
        "sep_conv_3x3": ["skip_connect"],
        "holds": ["as_claimed"],
        "as_claimed": ["holds"],
        "shared": ["disjoint"],
        "relu": ["leaky-relu"],
        "zero": ["glorot"],
        "exact": ["private"],
        "all": ["layers"],
        "joint": ["equal-shares", "per-group"],
    }.get(
        value,
        [
            f"{value}-other",
            "adam",
            "sgd",
            "constant",
            "cosine",
            "poisson",
            "balls-and-bins",
        ],
    )


def other_kinds(part: Any) -> Iterator[dict[str, Any]]:
    """The part's values under the other kinds of its family, as far as these have
    them.
    """
    for kind, cls in kinds_of(root_of(type(part))).items():
        if cls is not type(part):
            yield {
                key: value
                for key, value in plain(part).items()
                if key in fields_of(cls)
            } | {tag_of([cls]): kind}


def sections(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A section and those within it, by dotted key."""
    yield prefix, value
    for key in fields_of(type(value)):
        if is_section(type(getattr(value, key))):
            yield from sections(getattr(value, key), f"{prefix}{key}.")


@functools.cache
def changes(name: str) -> dict[tuple[str, str], tuple[str, Method]]:
    """For each key of a run that can have another value alone, by section and key: its
    full name, and the run that has.

    Another kind keeps the keys that both have.
    """
    run, made = BASES[name], {}
    values = run.plain()
    top = [
        ("", run),
        *((f"{key}.", getattr(run, key)) for key in type(run).model_fields),
    ]
    every = [
        (prefix, part)
        for start, section in top
        if is_section(type(section))
        for prefix, part in sections(section, start)
    ]
    for prefix, section in [("", run), *every]:
        for key in fields_of(type(section)):
            value = getattr(section, key)
            if is_section(type(value)) or prefix + key == "method":
                continue
            for other in (
                other_kinds(section)
                if key == tag_of([type(section)])
                else others(value)
            ):
                if other == value:
                    continue
                where = (
                    prefix.removesuffix(".")
                    if key == tag_of([type(section)])
                    else prefix + key
                )
                try:
                    changed = read_run(set_key(values, where, other))
                except BenchError:
                    continue
                made[type(section).__name__, key] = where, changed
                break
    return made


@pytest.mark.parametrize("name", BASES)
def test_a_change_of_any_single_key_is_another_run(name: str) -> None:
    run = BASES[name]
    assert read_run(run.plain()) == run and read_run(run.plain()).key == run.key
    keys = {run.key}
    for where, changed in changes(name).values():
        if where == "seed":
            assert changed.key == run.key and changed.folder != run.folder
        else:
            assert changed.key not in keys, where
            keys.add(changed.key)


def test_results_are_of_the_methods_version_and_of_the_text_of_ones_own_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert all(run.made_by == run.version for run in BASES.values())
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "net.py").write_text("one")
    run = BASES["dp-agr own module"]
    first = run.made_by
    assert first.startswith(f"{run.version} ")
    (tmp_path / "own" / "net.py").write_text("two")
    assert run.made_by != first and run.folder == BASES["dp-agr own module"].folder


def test_every_key_of_every_part_was_changed() -> None:
    tried = {type(part) for run in BASES.values() for part in run.components}
    families = {root_of(part) for part in tried if is_part(part)}
    assert len(families) >= 10
    for base in families:
        assert set(kinds_of(base).values()) <= tried, base
    moved = {key for name in BASES for key in changes(name)}
    assert {
        (part.__name__, key)
        for part in tried
        for key in fields_of(part)
        if not shapes(part)[key].sections
    } - moved <= (FIXED_BY_OTHERS)


def test_two_schedules_that_differ_in_their_end_alone_are_two_runs() -> None:
    ends = [
        make_config({"server": {"schedule": {"kind": "cosine", "final_rate": rate}}})
        for rate in (0.0, 0.001, 0.002)
    ]
    assert len({run.key for run in ends} | {make_config().key}) == 4


def test_a_key_that_no_part_reads_makes_no_second_run() -> None:
    """There is none: a constant threshold has no percentile, and MAML has no
    optimiser.
    """
    assert (
        "percentile"
        not in own(BASES["dp-agr constant"])["clipping"].__dataclass_fields__
    )
    assert (
        make_config({"clipping": {"kind": "constant"}}).key
        == BASES["dp-agr constant"].key
    )
    for overlay in (
        {"clipping": {"kind": "constant", "percentile": 50}},
        {"client_update": {"optimizer": "sgd"}},
    ):
        with pytest.raises(BenchError, match=r"^unknown key "):
            make_config(overlay)

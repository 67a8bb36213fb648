"""Identity of runs: each key of each part makes another run, and nothing else does."""

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dpfedbench.config.kinds import is_part, is_section, root_of, tag_of
from dpfedbench.config.merge import set_key
from dpfedbench.config.part import kinds_of, plain
from dpfedbench.config.schema import fields_of, keys_of
from dpfedbench.errors import BenchError
from dpfedbench.experiments.cells import named
from dpfedbench.method import Method
from dpfedbench.papers import read_run
from dpsum.participation import Everyone
from tests.dpfedbench.training.conftest import DIFFERENCE, LOTS, make_config
from tests.dpfedbench.training.test_text import RUN as TEXT

from .test_refusals import FILE, RUNS, own

SGD = {"kind": "sgd", "momentum": 0.9}


def few_shot(method: str = "dp-agr", **sections: Any) -> Method:
    return make_config({"method": method} | sections)


def lots(method: str = "adap-dp-fl", **sections: Any) -> Method:
    return make_config({"method": method} | sections, general=LOTS)


def differences(**sections: Any) -> Method:
    return make_config({"method": "dp-fedavg"} | sections, general=DIFFERENCE)


def text(**sections: Any) -> Method:
    return read_run(TEXT | {"method": "reptile"} | sections)


def kind(name: str, **values: Any) -> dict[str, Any]:
    return {"kind": name} | values


def cells(name: str, **values: Any) -> Method:
    return lots("dp-cells", model={"genotype": kind(name, **values)})


PAIR = [[["skip_connect", 0], ["skip_connect", 1]]] * 4
QUANTILE = kind("private-quantile", count_noise=3.0)
BY_LAYER = {"groups": "layers"}
PRIVATE_WORDS = {"ways": 1, "shots": 6, "text": {"vocabulary": "private"}}
OTHER_DATA = named(make_config({"method": "maml", "dataset": "other"}))
MODULE = {"kind": "module", "module": "own.net:Net", "arguments": {"width": 3}}
PASSES = kind("passes", cohort=2, rounds=8)
EXPONENTIAL = TEXT["server"] | {"schedule": kind("exponential", decay=0.1)}
SQUARE_ROOT = {"factorisation": kind("square-root", band=4)}
BASES: dict[str, Any] = {
    **RUNS,
    "constant": few_shot(clipping=kind("constant")),
    "raw norms": few_shot(clipping=kind("percentile-of-raw-norms")),
    "quantile": few_shot(clipping=QUANTILE),
    "median": few_shot(clipping=kind("median-of-run", threshold=None)),
    **{
        f"{name} by layer": few_shot(clipping=kind(name, **BY_LAYER))
        for name in ("constant", "percentile-of-releases", "percentile-of-raw-norms")
    },
    "quantile by layer": few_shot(clipping=QUANTILE | BY_LAYER | {"count_noise": 30.0}),
    "three steps": few_shot("reptile", client_update={"inner_steps": 3}),
    "own module": few_shot(model=MODULE),
    "banded": few_shot("dp-agr-ftrl", noise={"factorisation": kind("banded")}),
    "square root": few_shot("dp-agr-ftrl", noise=SQUARE_ROOT),
    "dropping": few_shot("dp-agr-secagg", noise={"dropped_at_most": 0.5}),
    **{
        name: few_shot(participation=kind(name))
        for name in (
            "balls-and-bins",
            "poisson",
            "fixed-size",
            "min-separation",
            "shuffled-epochs",
        )
    },
    "server": few_shot(
        server={"optimizer": SGD, "schedule": kind("cosine", final_rate=0.001)}
    ),
    "linear schedule": few_shot(server={"schedule": "linear"}),
    "adam-bc": few_shot(server={"optimizer": "adam-bc"}),
    **{
        name: lots(clipping=kind(name))
        for name in ("noised-mean-norm", "norm-of-release", "mean-of-raw-norms")
    },
    "quantile of records": lots(clipping=QUANTILE),
    "decaying": lots(noise=kind("decaying")),
    "local sgd": lots(client_update={"optimizer": SGD}),
    "text": text(),
    "text, passes": text(participation=PASSES),
    "text, decay": text(server=EXPONENTIAL),
    "text, private words": text(task=PRIVATE_WORDS),
    "cells, same": cells("same"),
    "cells, found": cells("found", search=named(RUNS["dp-fnas"])),
    "cells, stated": cells("stated", normal=PAIR, reduction=PAIR),
    "batch steps": lots("cells", client_update=kind("batch-steps")),
    "started": few_shot(initial=kind("run", run=OTHER_DATA)),
    "file": few_shot(initial=FILE),
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
    **{
        f"{method} by layer": few_shot(
            method, within_task={"clipping_groups": "layers"}
        )
        for method in ("dp-agrlr", "dp-maml-sample")
    },
    "automatic": few_shot(
        transform="automatic", clipping=kind("constant", threshold=1)
    ),
    **{
        name: lots("dp-fl", model=kind("linear", features=kind(name)))
        for name in ("scattering", "random")
    },
    "local adam": differences(client_update={"optimizer": "adam"}),
    "proximal": differences(client_update=kind("proximal")),
    "dirichlet": differences(clients={"partition": "dirichlet", "concentration": 0.5}),
    **{
        name: few_shot(clients={"partition": name})
        for name in ("disjoint", "alphabets")
    },
}

NODES = [[["sep_conv_3x3", 0], ["skip_connect", 1]]] * 4

NO_GROUPS = ("MedianOfRun", "MeanOfRawNorms", "NoisedMeanNorm", "NormOfRelease")
# Another kind is refused, or needs a file, a run or a threshold that the base lacks.
ONE_KIND = (
    *("LstmModel", "LocalSteps", "ModelDifference", "Maml", "Reptile", "Average"),
    *("Step", "PoissonLots", "Factorised", "Skellam", "Scaffold", "SummedSteps"),
    *("SearchSteps", "ReleasedSearchSteps", "ByKernel", "DartsSearch"),
    *("MedianOfRun", "RandomInitial", "AsTheyAre"),
)


FIXED_BY_OTHERS = {
    # A run with another value is refused, or is another method's.
    *((name, "groups") for name in (*NO_GROUPS, "ByKernel")),
    *((name, "noise_by_group") for name in (*NO_GROUPS, "ByKernel")),
    *((name, "kind") for name in ONE_KIND),
    *((name, "threshold") for name in ("MedianOfRun", "ByKernel")),
    *(("BallsAndBins", key) for key in ("cohort", "rounds")),
    *((name, "partition") for name in ("Fragments", "Dirichlet")),
    *((name, "held_out_share") for name in ("Shared", "Disjoint", "Alphabets")),
}


NEIGHBOURS = {
    "0" * 64: "1" * 64,
    "own.net:Net": "own.net:Other",
    "none": "quarter-turns",
    "batch": "record",
    "record": "batch",
    "mean": "sum",
    "sum": "mean",
    "full": "disjoint",
    "server": "prefix",
    "sep_conv_3x3": "skip_connect",
    "proven": "claimed",
    "claimed": "proven",
    "shared": "disjoint",
    "relu": "leaky-relu",
    "zero": "glorot",
    "exact": "private",
    "all": "layers",
}
KINDS = ["adam", "sgd", "constant", "cosine", "poisson", "balls-and-bins"]


def alternatives(value: Any) -> list[Any]:
    """Return other values that a key might take."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [value + 1, value * 0.5, value * 2, value - 1, 1, 2, 4, 0.5, 0.001, None]
    if value is None:
        return [1, 3.5, 20, [1]]
    if isinstance(value, (list, tuple)):
        return [[2], list(value)[:-1], NODES]
    if isinstance(value, dict):
        noise = {"kind": "fixed", "multiplier": 3.0}
        changes = {"width": 4}, {"evaluation": {"tasks": 7}}, {"noise": noise}
        return [value | change for change in changes]
    if value == "joint":
        return ["equal-shares", "per-group"]
    if value in NEIGHBOURS:
        return [NEIGHBOURS[value]]
    return [f"{value}-other", *KINDS]


def other_kinds(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the part as each other kind of its family, with the values of shared keys."""
    values = plain(part)
    for kind, cls in kinds_of(root_of(type(part))).items():
        if cls is not type(part):
            shared = {key: values[key] for key in values if key in fields_of(cls)}
            yield shared | {tag_of([cls]): kind}


def sections(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a section and its subsections, by dotted key."""
    yield prefix, value
    for key in fields_of(type(value)):
        if is_section(type(getattr(value, key))):
            yield from sections(getattr(value, key), f"{prefix}{key}.")


@functools.cache
def changes(name: str) -> dict[tuple[str, str], tuple[str, Method]]:
    """Return the runs that differ from a base in one key, by section class and key.

    Each comes with the dotted key. Another kind keeps the keys that both kinds have.
    """
    run = BASES[name]
    neighbours = {}
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
            candidates: Iterable[Any]
            if key == tag_of([type(section)]):
                dotted = prefix.removesuffix(".")
                candidates = other_kinds(section)
            else:
                dotted = prefix + key
                candidates = alternatives(value)
            for candidate in candidates:
                if candidate == value:
                    continue
                try:
                    changed = read_run(set_key(values, dotted, candidate))
                except BenchError:
                    continue
                neighbours[type(section).__name__, key] = dotted, changed
                break
    return neighbours


@pytest.mark.parametrize("name", BASES)
def test_run_key_changes_with_any_single_setting(name: str) -> None:
    run = BASES[name]
    assert read_run(run.plain()) == run
    assert read_run(run.plain()).key == run.key
    keys = {run.key}
    for dotted, changed in changes(name).values():
        if dotted == "seed":
            assert changed.key == run.key
            assert changed.folder != run.folder
        else:
            assert changed.key not in keys, dotted
            keys.add(changed.key)


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


def test_keys_of_every_part_are_tried() -> None:
    """No method uses `Everyone`: it is for users of dpsum."""
    tried = {type(part) for run in BASES.values() for part in run.components}
    families = {root_of(part) for part in tried if is_part(part)}
    assert len(families) >= 10
    for base in families:
        chosen = set(kinds_of(base).values()) - {Everyone}
        assert chosen <= tried, base
    changed = {key for name in BASES for key in changes(name)}
    keys = {
        (part.__name__, key)
        for part in tried
        for key in fields_of(part)
        if not keys_of(part)[key].bases
    }
    assert keys - changed <= FIXED_BY_OTHERS


def test_run_key_changes_with_the_final_rate_of_a_schedule() -> None:
    ends = [
        make_config({"server": {"schedule": {"kind": "cosine", "final_rate": rate}}})
        for rate in (0.0, 0.001, 0.002)
    ]
    assert len({run.key for run in ends} | {make_config().key}) == 4


def test_run_refuses_a_key_that_no_part_reads() -> None:
    """A constant threshold has no percentile, and MAML has no optimiser."""
    assert "percentile" not in own(BASES["constant"])["clipping"].__dataclass_fields__
    for overlay in (
        {"clipping": {"kind": "constant", "percentile": 50}},
        {"client_update": {"optimizer": "sgd"}},
    ):
        with pytest.raises(BenchError, match=r"^unknown key "):
            make_config(overlay)

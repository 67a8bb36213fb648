"""Tiny runs of everything that can be configured, and hashes of their results.

cases.yaml has the runs, and values.yaml their values. `config_of` and `files_of` alone
call the library.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from safetensors.numpy import load_file

from dpfedbench.audit.report import audit
from dpfedbench.config.merge import merge
from dpfedbench.data.images import load_dataset
from dpfedbench.data.records import load_any_records
from dpfedbench.evaluation import evaluate
from dpfedbench.files import write_json
from dpfedbench.method import Method
from dpfedbench.papers import METHODS, read_run
from dpfedbench.training.accounts import account_run
from dpfedbench.training.engine import train
from dpkernels.compiled import processor
from dpsum.accounting.tuning import Search
from dpsum.ledger import read_ledger
from tests.base_values import fit
from tests.partitions import make_fragments, make_partition
from tests.small_data import draw_digits, draw_glyphs

HERE = Path(__file__).parent
PARTS = ("model", "ledger", "metrics", "account", "history", "audit")
VALUES = yaml.safe_load((HERE / "values.yaml").read_text(encoding="utf-8"))
FIELDS = VALUES["fields"]
TOLERANCES = {
    "weights_norm": 3e-6,
    "last_threshold": 1e-5,
    "epsilon_claimed": 1e-8,
    "epsilon_proven": 1e-8,
    "epsilon_audited": 1e-3,
    "noise_multiplier": 1e-8,
}
"""Relative errors that another processor may have.

Each is at least ten times the largest of all cases between a Zen 4 and a Zen 3
processor, with and without kernels (docs/measurements.md, R30).
"""
ONE_EXAMPLE = 2.0
"""Percent of accuracy of one query example: rounding may decide it."""


class Case(NamedTuple):
    """One run.

    Attributes:
        data: the folder of `make_data` that it trains on.
        overlays: what is laid over `base`, the method among it.
        search: a declared search for hyper-parameters, for the account.
    """

    data: str
    overlays: list[dict[str, Any]]
    search: dict[str, Any] | None


def _read_cases() -> Iterator[tuple[str, Case]]:
    text = (HERE / "cases.yaml").read_text(encoding="utf-8")
    for data, cases in yaml.safe_load(text).items():
        for name, entries in cases.items():
            overlays = []
            search = None
            for entry in entries:
                if "search" in entry:
                    search = entry["search"]
                else:
                    overlays.append(VALUES[entry] if isinstance(entry, str) else entry)
            yield name, Case(data, overlays, search)


CASES = dict(_read_cases())


def config_of(name: str) -> Method:
    """A case as a run. Its key, which names the audit's random numbers, is the case's
    name.

    The key follows from how a configuration is written down; the audit should not move
    with that. What stands above for all methods is left out where the case's method
    does not have it.
    """
    values = merge(VALUES["base"], *CASES[name].overlays)
    run = read_run(fit(METHODS[values["method"]], values))
    vars(run)["key"] = name.replace(" ", "-")
    return run


# Data


def make_data(root: Path) -> dict[str, tuple[Path, Path]]:
    """Draw the data and deal them out.

    Returns:
        (data folder, clients folder) by name, of 16x16 patterns, 26x26 patterns in
        colour, and 28x28 records.
    """

    rng = np.random.default_rng(0)
    draw_glyphs(rng).save(root / "images", {"name": "glyphs"})
    draw_glyphs(rng, (26, 26, 3)).save(root / "colour-images", {"name": "glyphs"})
    draw_digits(rng, train=20, test=6).save(root / "records", {"name": "digits"})
    shared = {"kind": "shared", "clients": 24, "ways": 3, "examples_per_class": 4}
    disjoint = shared | {"kind": "disjoint", "clients": 4}
    holder = {"clients": 1, "fragments": 1}
    dealt = {
        "few-shot": ("images", shared),
        "few-shot-disjoint": ("images", disjoint),
        "holder": ("images", holder),
        "colour": ("colour-images", shared),
        "colour-holder": ("colour-images", holder),
        "silos": ("records", {"clients": 4, "fragments": 20}),
    }
    folders = {}
    for name, (data, sizes) in dealt.items():
        if "fragments" in sizes:
            records = load_any_records(root / data)
            partition = make_fragments(records, **sizes, seed=0)
        else:
            partition = make_partition(load_dataset(root / data), **sizes, seed=0)
        partition.save(root / name)
        folders[name] = (root / data, root / name)
    return folders


# A case from its training to its audit


def files_of(name: str, data: Mapping[str, tuple[Path, Path]], folder: Path) -> None:
    """Train, account for, test and (if private) audit a case.

    Args:
        name: of the case.
        data: from `make_data`.
        folder: gets the files of a finished run.
    """
    case = CASES[name]
    config = config_of(name)
    images, clients = data[case.data]
    options: dict[str, Any] = {
        "data_dir": images,
        "clients_dir": clients,
        "threads": 1,
        "device": "cpu",
    }
    references = {}
    for file, reference in config.references.items():
        train(reference, run_dir=folder / "reference", **options)
        references[file] = folder / "reference" / file
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    train(config, run_dir=folder, references=references, **options)
    model = folder / "model.safetensors"
    metrics = folder / "metrics.json"
    evaluate(config, data_dir=images, model_path=model, out_path=metrics, threads=1)
    search = Search.of(case.search)
    out = folder / "privacy.json"
    account_run(config, folder, out, clients_dir=clients, search=search)
    if config.private:
        ledger = read_ledger(folder / "ledger.jsonl")
        report = audit(config, ledger, canaries=24, runs=16)
        write_json(folder / "audit.json", report)


def _picked(values: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the hashed fields of a result of this kind."""
    return {name: values[name] for name in FIELDS[kind] if name in values}


def _hash(value: Any) -> str:
    """Return the first 16 digits of the sha256 of the canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _weights(path: Path) -> list[list[tuple[list[int], str]]]:
    """Return the sorted (shape, sha256) of each member's arrays, without their names."""
    arrays: dict[str, list[tuple[list[int], str]]] = {}
    for name, array in load_file(path).items():
        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        member = arrays.setdefault(name.split("/")[0], [])
        member.append((list(array.shape), f"{array.dtype} {digest}"))
    return [sorted(arrays[member]) for member in sorted(arrays)]


def _ledger(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        line["round"] = line.pop("index")
    return [
        _picked(line, "release") | {"sampler": _picked(line["sampler"], "sampler")}
        for line in lines
    ]


def _account(values: Mapping[str, Any]) -> dict[str, Any]:
    profiles = {
        name: _picked(entry, "profile") for name, entry in values["profiles"].items()
    }
    return _picked(values, "account") | {
        "profiles": profiles,
        "also": [_account(account) for account in values.get("also", ())],
    }


def _history(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return [
            {name: cell for name, cell in _picked(row, "history").items() if cell}
            for row in csv.DictReader(file)
        ]


def _audit(values: Mapping[str, Any]) -> dict[str, Any]:
    bounds = [[bound["epsilon"], bound["found"]] for bound in values.get("bounds", ())]
    return _picked(values, "audit") | {
        "bounds": bounds,
        "also": [_audit(audited) for audited in values.get("also", ())],
    }


def _json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def found_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the hash of each of `PARTS` of a case's files, and numbers for people."""
    ledger = _ledger(folder / "ledger.jsonl")
    history = _history(folder / "history.csv")
    metrics = _json(folder / "metrics.json")
    privacy = _json(folder / "privacy.json")
    audited = _json(folder / "audit.json")
    hashed = {
        "model": _weights(folder / "model.safetensors"),
        "ledger": ledger,
        "metrics": _picked(metrics, "metrics"),
        "account": _account(privacy),
        "history": history,
        "audit": _audit(audited),
    }
    squares = [
        (array.astype(np.float64) ** 2).sum()
        for array in load_file(folder / "model.safetensors").values()
    ]
    profiles = privacy["profiles"]
    plain = {
        "weights_norm": math.sqrt(math.fsum(squares)),
        "accuracy": metrics["accuracy"],
        "epsilon_claimed": profiles.get("claimed", {}).get("epsilon_high"),
        "epsilon_proven": profiles.get("proven", {}).get("epsilon_high"),
        "epsilon_audited": audited.get("epsilon"),
        "noise_multiplier": privacy.get("noise_multiplier"),
        "last_threshold": history[-1].get("threshold") if history else None,
        "rounds": len(history),
        "ledger_lines": len(ledger),
    }
    return {
        "hashes": {part: _hash(hashed[part]) for part in PARTS},
        "plain": {name: _shown(value) for name, value in plain.items()},
    }


def _shown(value: Any) -> Any:
    """Return a number with twelve digits, and as text where JSON has no such number."""
    if value is None or isinstance(value, int):
        return value
    number = float(f"{float(value):.12g}")
    return number if math.isfinite(number) else str(number)


def machine() -> dict[str, str]:
    """Return the processor and the versions that the bits depend on."""
    versions = {
        name: importlib.metadata.version(name)
        for name in ("torch", "numpy", "numba", "scipy")
    }
    return {"processor": processor(), **versions}


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the parts whose hashes differ in one line, then a line for each number.

    The list is empty if all hashes are equal.
    """
    old_hashes = before["hashes"]
    changed = [part for part in PARTS if old_hashes.get(part) != after["hashes"][part]]
    if not changed:
        return []
    lines = [f"{', '.join(changed)}: other than in golden.json"]
    for name, value in after["plain"].items():
        old_value = before["plain"].get(name)
        change = "" if old_value == value else f" -> {value}"
        lines.append(f"  {name}: {old_value}{change}")
    return lines


def distances(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return a line for each number that differs by more than another processor's
    rounding explains.
    """
    return [
        f"{name}: {before['plain'].get(name)} -> {value}"
        for name, value in after["plain"].items()
        if not _is_close(name, before["plain"].get(name), value)
    ]


def _is_close(name: str, before: Any, after: Any) -> bool:
    if not isinstance(before, float) or not isinstance(after, float):
        return bool(before == after)
    if name == "accuracy":
        return abs(after - before) < ONE_EXAMPLE
    tolerance = TOLERANCES.get(name, 0.0)
    return math.isclose(before, after, rel_tol=tolerance, abs_tol=tolerance)

"""Tiny runs of everything that can be configured, and hashes of their results.

`CASES` has the runs; their values are in values.yaml. `config_of` and `files_of` alone
call the library.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import importlib.metadata
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from safetensors.numpy import load_file

from dpfedbench.audit.report import audit
from dpfedbench.config.merge import fit, merge
from dpfedbench.data.images import RawImages, load_dataset
from dpfedbench.data.records import RawRecords, load_any_records
from dpfedbench.evaluation import evaluate
from dpfedbench.files import write_json
from dpfedbench.method import Method
from dpfedbench.papers import METHODS, read_run
from dpfedbench.training.accounts import account_run
from dpfedbench.training.engine import train
from dpkernels.compiled import processor
from dpsum.accounting.tuning import Search
from dpsum.ledger import read_ledger
from tests.partitions import make_fragments, make_partition
from tests.small_data import noisy_images

PARTS = ("model", "ledger", "metrics", "account", "history", "audit")


class Case(NamedTuple):
    """One run.

    Attributes:
        data: the folder of `make_data` that it trains on.
        overlays: what is laid over `BASE`, the method among it.
        search: a declared search for hyper-parameters, for the account.
    """

    data: str
    overlays: list[dict[str, Any]]
    search: dict[str, Any] | None = None


VALUES = yaml.safe_load(
    Path(__file__).with_name("values.yaml").read_text(encoding="utf-8")
)
BASE = VALUES["base"]
RECORD = VALUES["record"]
AGRLR = VALUES["agrlr"]
SAMPLE = VALUES["sample"]
REPTILE = VALUES["reptile"]
DP_REPTILE = VALUES["dp-reptile"]
LOTS = VALUES["lots"]
COLOUR = VALUES["colour"]
TRANSFER = VALUES["transfer"]
FIELDS = VALUES["fields"]
MAML = {"method": "maml"}
FEDAVG = {"method": "fedavg"}


def _rule(name: str, **values: Any) -> dict[str, Any]:
    """The clipping rule of that name."""
    return {"clipping": {"kind": name} | values}


def _plan(kind: str, **values: Any) -> dict[str, Any]:
    """The participation of that kind."""
    return {"participation": {"kind": kind} | values}


def _update(**values: Any) -> dict[str, Any]:
    return {"client_update": values}


def _within(**values: Any) -> dict[str, Any]:
    return {"within_task": values}


MEDIAN = _rule("median-of-run", threshold=None)
QUANTILE = _rule(
    "private-quantile",
    percentile=75,
    quantile_rate=0.3,
    count_noise=1.5,
    never_rising=False,
)
WINDOW: dict[str, Any] = {"percentile": 90, "window": 3, "never_rising": False}
RELEASES = _rule("percentile-of-releases", form="mean", **WINDOW)
RAW = _rule("percentile-of-raw-norms", **WINDOW)
CONSTANT = _rule("constant")
VECTOR = _rule("norm-of-release", threshold=None, factor=0.5)
SCALAR = _rule("noised-mean-norm", threshold=None)
MEAN = _rule("mean-of-raw-norms", threshold=None)
CALIBRATED = {"noise": {"multiplier": None}, "budget": {"epsilon": 3.0}}
DECAY = {"noise": {"kind": "decaying", "decay": 0.9, "falls": 1}}
PLANS = {
    "one-pass": _plan("one-pass"),
    "bins": _plan("balls-and-bins"),
    "poisson": _plan("poisson"),
}
RULES = {
    "constant": CONSTANT,
    "releases": RELEASES,
    "raw": RAW,
    "quantile": QUANTILE,
    "median": MEDIAN,
}


def _few(*overlays: dict[str, Any], search: dict[str, Any] | None = None) -> Case:
    return Case("few-shot", list(overlays), search)


def _silos(*overlays: dict[str, Any], search: dict[str, Any] | None = None) -> Case:
    return Case("silos", [LOTS, *overlays], search)


def _difference(*overlays: dict[str, Any]) -> Case:
    return Case("silos", [LOTS, VALUES["difference"], *overlays])


def _colour(*overlays: dict[str, Any]) -> Case:
    return Case("colour", [COLOUR, *overlays])


def _holder(*overlays: dict[str, Any]) -> Case:
    return Case("holder", [TRANSFER, *overlays])


CASES: dict[str, Case] = {
    # Every rule of a server with every participation.
    **{
        f"dp-agr {rule} {plan}": _few(RULES[rule], PLANS[plan])
        for rule in RULES
        for plan in PLANS
    },
    "dp-agr releases sum": _few(_rule("percentile-of-releases", form="sum")),
    "dp-agr releases never rising": _few(
        _rule("percentile-of-releases", form="sum", window=1, never_rising=True)
    ),
    "dp-agr quantile never rising": _few(
        QUANTILE, _rule("private-quantile", percentile=30, never_rising=True)
    ),
    "dp-agr quantile count noise by cohort": _few(
        QUANTILE,
        {"clipping": {"count_noise": None}},
        _plan("one-pass", cohort=12, rounds=2),
    ),
    "dp-agr calibrated one-pass": _few(CALIBRATED),
    "dp-agr calibrated poisson as claimed": _few(
        CALIBRATED, PLANS["poisson"], {"budget": {"profile": "claimed"}}
    ),
    "dp-agr calibrated quantile": _few(
        CALIBRATED, _rule("private-quantile", count_noise=20.0)
    ),
    "dp-agr budget stops": _few(PLANS["poisson"], {"budget": {"epsilon": 2.0}}),
    "dp-agr budget claimed does not stop": _few(
        PLANS["poisson"],
        {"budget": {"epsilon": 2.0, "profile": "claimed", "stop": False}},
    ),
    "dp-agr first order cosine": _few(
        _update(order=1),
        {"server": {"schedule": {"kind": "cosine", "final_rate": 0.001}}},
    ),
    "dp-agr sgd momentum": _few(
        {"server": {"rate": 0.1, "optimizer": {"kind": "sgd", "momentum": 0.9}}}
    ),
    "dp-agr maml++": _few(
        _update(inner_steps=2, learnable_rates=True, multi_step_rounds=4), CONSTANT
    ),
    "dp-agr record normalisation": _few(RECORD, CONSTANT),
    "dp-agr search fixed": _few(
        CONSTANT, search={"runs": 3, "data": "private", "number": "fixed"}
    ),
    "dp-agr search geometric poisson": _few(
        CONSTANT,
        PLANS["poisson"],
        search={"runs": 3, "data": "private", "number": "geometric"},
    ),
    "dp-agr disjoint partition": Case(
        "few-shot-disjoint",
        [
            CONSTANT,
            {"clients": {"count": 4, "partition": "disjoint"}},
            _plan("one-pass", cohort=2, rounds=2),
        ],
    ),
    "dp-maml raw never rising": _few(
        {"method": "dp-maml"},
        _rule("percentile-of-raw-norms", window=2, never_rising=True),
    ),
    "dp-maml raw poisson": _few(
        {"method": "dp-maml"},
        _rule("percentile-of-raw-norms", window=2),
        PLANS["poisson"],
    ),
    "dp-maml quantile bins": _few({"method": "dp-maml"}, QUANTILE, PLANS["bins"]),
    "dp-maml median": _few({"method": "dp-maml"}, MEDIAN),
    "dp-maml releases poisson": _few({"method": "dp-maml"}, RELEASES, PLANS["poisson"]),
    "dp-agr poisson, nobody comes": _few(CONSTANT, _plan("poisson", cohort=1)),
    "dp-agr another seed": _few(CONSTANT, {"seed": 3}),
    # A client's own sums.
    "dp-agrlr releases": _few(AGRLR, RELEASES),
    "dp-agrlr raw": _few(AGRLR, RAW),
    "dp-agrlr quantile": _few(AGRLR, QUANTILE),
    "dp-agrlr constant bins": _few(AGRLR, CONSTANT, PLANS["bins"]),
    "dp-agrlr two steps holds": _few(AGRLR, CONSTANT, _update(inner_steps=2)),
    "dp-agrlr two steps claimed": _few(
        AGRLR, CONSTANT, _update(inner_steps=2), _within(profile="claimed")
    ),
    "dp-maml-sample constant": _few(SAMPLE),
    "dp-maml-sample releases": _few(SAMPLE, RELEASES),
    "dp-maml-sample raw": _few(SAMPLE, RAW),
    "dp-maml-sample quantile": _few(SAMPLE, QUANTILE),
    "dp-reptile claimed": _few(DP_REPTILE),
    "dp-reptile holds bins sgd": _few(
        DP_REPTILE,
        _within(profile="proven"),
        PLANS["bins"],
        _update(optimizer="sgd", inner_rate=0.1),
    ),
    "dp-reptile disjoint": _few(DP_REPTILE, _update(batches="disjoint")),
    "dp-reptile multiplier": _few(DP_REPTILE, _within(multiplier=1.0, epsilon=None)),
    # No privacy.
    "maml one-pass ensemble": _few(
        MAML, _update(inner_steps=2), {"validation": {"every": 1, "ensemble": 3}}
    ),
    "maml bins no validation": _few(MAML, PLANS["bins"], {"validation": {"every": 0}}),
    "maml poisson first order": _few(
        MAML, PLANS["poisson"], _update(order=1, inner_steps=2)
    ),
    "maml learnable rates": _few(MAML, _update(inner_steps=2, learnable_rates=True)),
    "maml multi-step first order": _few(
        MAML, _update(inner_steps=2, multi_step_rounds=4, order=1)
    ),
    "maml record normalisation": _few(MAML, RECORD),
    "reptile one-pass": _few(REPTILE),
    "reptile poisson sgd": _few(
        REPTILE, PLANS["poisson"], _update(optimizer="sgd", inner_rate=0.1)
    ),
    "random": _few({"method": "random"}),
    # Clients that hold records.
    "fedavg": _silos(FEDAVG),
    "fedavg sgd several steps": _silos(
        FEDAVG, _update(optimizer="sgd", inner_steps=3, inner_rate=0.1)
    ),
    "fedavg forgets state": _silos(FEDAVG, _update(keep_state=False, inner_steps=2)),
    "dp-fl": _silos({"method": "dp-fl"}),
    "dp-fl several steps forgets state": _silos(
        {"method": "dp-fl"},
        _update(inner_steps=3, keep_state=False),
        _plan("poisson-lots", rounds=2),
    ),
    "dp-fl calibrated holds": _silos(
        {"method": "dp-fl"},
        {
            "noise": {"multiplier": None},
            "budget": {"epsilon": 1.0, "profile": "proven"},
        },
    ),
    "adap-dp-fl vector": _silos(VECTOR),
    "adap-dp-fl scalar": _silos(SCALAR),
    "adap-dp-fl raw": _silos(MEAN),
    "adap-dp-fl vector decay claimed budget": _silos(
        VECTOR, DECAY, {"budget": {"epsilon": 1.6}}
    ),
    "adap-dp-fl scalar decay proven budget": _silos(
        SCALAR, DECAY, {"budget": {"epsilon": 3.0, "profile": "proven"}}
    ),
    "adap-dp-fl decay without budget search": _silos(
        DECAY, search={"runs": 3, "data": "private", "number": "poisson"}
    ),
    "adap-dp-fl budget stops": _silos(
        {"budget": {"epsilon": 1.35}}, _update(inner_steps=2)
    ),
    # Model differences, which no method has by itself.
    "difference constant poisson": _difference(),
    "difference constant one-pass adam": _difference(
        _plan("one-pass", rounds=2), _update(optimizer="adam", inner_rate=0.001)
    ),
    "difference quantile bins": _difference(
        QUANTILE, _plan("balls-and-bins", rounds=2)
    ),
    "difference releases": _difference(RELEASES, {"clipping": {"window": 2}}),
    "difference raw": _difference(RAW, _plan("one-pass", cohort=1, rounds=4)),
    "difference without privacy": _difference(FEDAVG, _plan("one-pass", rounds=2)),
    # One holder of all images.
    "transfer": _holder({"method": "transfer"}),
    "transfer several steps": _holder(
        {"method": "transfer"},
        _update(inner_steps=3, keep_state=False, optimizer="sgd"),
    ),
    "dp-transfer": _holder(),
    "dp-transfer vector": _holder(VECTOR),
    "dp-transfer scalar": _holder(SCALAR),
    "dp-transfer raw": _holder(MEAN),
    # Three channels, sizes that do not halve evenly.
    "colour dp-agr": _colour(CONSTANT, _update(inner_steps=2)),
    "colour dp-agrlr": _colour(AGRLR, CONSTANT),
    "colour maml++ first order": _colour(MAML, _update(order=1, learnable_rates=True)),
    "colour dp-transfer": Case("colour-holder", [TRANSFER, COLOUR]),
}


def config_of(name: str) -> Method:
    """A case as a run. Its key, which names the audit's random numbers, is the case's
    name.

    The key follows from how a configuration is written down; the audit should not move
    with that. What stands above for all methods is left out where the case's method
    does not have it.
    """
    values = merge(BASE, *CASES[name].overlays)
    run = read_run(fit(METHODS[values["method"]], values))
    vars(run)["key"] = name.replace(" ", "-")
    return run


# Data


def make_data(root: Path) -> dict[str, tuple[Path, Path]]:
    """Draw the data and deal them out.

    Returns:
        (data folder, clients folder) by name: few-shot clients of noisy 16x16 patterns,
        which share images or do not, and one holder of all training images; the same of
        26x26 patterns in colour; four silos of 28x28 records.
    """

    def deal(data: str, clients_name: str, clients: int = 24, kind: str = "shared"):
        dataset = load_dataset(root / data)
        sizes = {"clients": clients, "ways": 3, "examples_per_class": 4}
        partition = make_partition(dataset, **sizes, kind=kind, seed=0)
        partition.save(root / clients_name)

    def deal_fragments(data: str, clients_name: str, clients: int = 1, fragments=1):
        records = load_any_records(root / data)
        partition = make_fragments(
            records, clients=clients, fragments=fragments, seed=0
        )
        partition.save(root / clients_name)

    rng = np.random.default_rng(0)
    patterns = rng.random((12, 1, 16, 16, 1)) > 0.6
    images = noisy_images(np.repeat(patterns, 10, axis=1), rng)
    drawn = RawImages(
        images=images,
        class_names=tuple(f"class{i}" for i in range(12)),
        versions={},
        splits=("train",) * 6 + ("validation",) * 3 + ("test",) * 3,
    )
    drawn.save(root / "images", {"name": "glyphs"})
    deal("images", "few-shot")
    deal("images", "few-shot-disjoint", clients=4, kind="disjoint")
    deal_fragments("images", "holder")

    patterns = rng.random((12, 1, 26, 26, 3)) > 0.6
    images = noisy_images(np.repeat(patterns, 10, axis=1), rng)
    dataclasses.replace(drawn, images=images).save(
        root / "colour-images", {"name": "glyphs"}
    )
    deal("colour-images", "colour")
    deal_fragments("colour-images", "colour-holder")

    patterns = rng.random((10, 28, 28, 1)) > 0.6
    train_labels = np.repeat(np.arange(10), 20)
    test_labels = np.repeat(np.arange(10), 6)
    digits = RawRecords(
        train_images=noisy_images(patterns[train_labels], rng),
        train_labels=train_labels.astype(np.int64),
        test_images=noisy_images(patterns[test_labels], rng),
        test_labels=test_labels.astype(np.int64),
        class_names=tuple(f"pattern{i}" for i in range(10)),
        versions={},
    )
    digits.save(root / "records", {"name": "digits"})
    deal_fragments("records", "silos", clients=4, fragments=20)
    return {
        "few-shot": (root / "images", root / "few-shot"),
        "few-shot-disjoint": (root / "images", root / "few-shot-disjoint"),
        "holder": (root / "images", root / "holder"),
        "colour": (root / "colour-images", root / "colour"),
        "colour-holder": (root / "colour-images", root / "colour-holder"),
        "silos": (root / "records", root / "silos"),
    }


# A case from its training to its audit


def files_of(
    name: str, data: Mapping[str, tuple[Path, Path]], folder: Path, *, threads: int = 1
) -> None:
    """Train, account for, test and (if private) audit a case.

    Args:
        name: of the case.
        data: from `make_data`.
        folder: gets model.safetensors, ledger.jsonl, history.csv, metrics.json,
            privacy.json and audit.json.
        threads: for training and test.
    """
    case = CASES[name]
    config = config_of(name)
    images, clients = data[case.data]
    options: dict[str, Any] = {
        "data_dir": images,
        "clients_dir": clients,
        "threads": threads,
    }
    references = {}
    for file, reference in config.references.items():
        train(reference, run_dir=folder / "reference", **options)
        references[file] = folder / "reference" / file
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    train(config, run_dir=folder, references=references, **options)
    model = folder / "model.safetensors"
    evaluate(
        config,
        data_dir=images,
        model_path=model,
        out_path=folder / "metrics.json",
        threads=threads,
    )
    account_run(
        config,
        folder,
        folder / "privacy.json",
        clients_dir=clients,
        search=Search.of(case.search),
    )
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
    """Return the processor, the device and the versions that the bits depend on."""
    versions = {
        name: importlib.metadata.version(name)
        for name in ("torch", "numpy", "numba", "scipy")
    }
    return {
        "processor": processor(),
        **versions,
        "device": "cuda" if torch.cuda.is_available() else "cpu",
    }


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

"""Checks a whole results folder against what its rules wrote, e.g. one that somebody
sent, or one on a doubtful disk.

The files must be as they were written, and must fit together. A missing file is no
fault: the folder may be a part of a larger one, or its workflow may still run.
"""

import functools
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from dpfedbench.errors import BenchError
from dpfedbench.evaluation import evaluate
from dpfedbench.evaluation.intervals import mean_interval
from dpfedbench.federation.accounts import account_of, ledger_before, ledger_of
from dpfedbench.files import read_group, reading
from dpfedbench.manifest import FOLDER, Sealed, checked, mend, sealed
from dpfedbench.method import Method
from dpfedbench.papers import read_run_file
from dpfedbench.reporting.results import read_account, read_history
from dpfedbench.results.format import NAME
from dpsum.accounting.account import Account
from dpsum.accounting.tuning import Search

_NOT_RESULTS = {FOLDER, "logs", "benchmark", "checkpoint", "download"}
"""Folders of what a rule writes on the way, or Snakemake: nothing reads it as a
result.
"""

_SOURCES = {
    "train": ("configure", "config.yaml"),
    "meta_test": ("train", "model.safetensors"),
    "account": ("train", "ledger.jsonl"),
    "audit": ("train", "ledger.jsonl"),
}
"""What a result of a run is made from above all, by its rule: a file of the same
folder, and the rule that wrote it.
"""

_CLOSE = 0.5
"""Percentage points by which a test on another processor may differ, where a task's
answer is a near thing.
"""


class Faults:
    """Checks a results folder: to iterate over it makes one check after another, and
    gives what each finds wrong.

    Args:
        results: the folder.
        deep: whether every account is computed again from its ledger, and every model
            whose data are there is tested again.
        searches: the searches for settings that runs are one of, by the runs' folders,
            for that.

    Attributes:
        former: files of a former version, which did not write down what it made them
            from; none is a fault.
    """

    def __init__(
        self,
        results: Path,
        *,
        deep: bool = False,
        searches: Mapping[str, Any] | None = None,
    ) -> None:
        self.results, self.deep, self.searches = results, deep, searches or {}
        self.former: list[Path] = []
        # Of each folder once: files elsewhere were made from what is in it.
        self.sealed = functools.cache(sealed)

    def __iter__(self) -> Iterator[str | None]:
        """Each file, each manifest and each trained run in turn: what does not hold of
        it, in a line; None: nothing.

        A file has to be there if its manifest is, and to have the SHA-256 that it says;
        a file that no manifest names is a fault too. What a file was made from has to
        be what is there. The configuration of a run has to be that of its folder. Its
        ledger has to be whole and to say what the configuration does; ledger, history
        and training.json have to tell of the same rounds. A test and an account have to
        be the run's, and a mean that of what it is of.
        """
        unread = list[OSError]()
        for place, folders, names in os.walk(
            self.results, followlinks=True, onerror=unread.append
        ):
            folder = Path(place)
            for name in list(folders):
                if name in _NOT_RESULTS or name.startswith("."):
                    folders.remove(name)
                elif os.path.realpath(folder / name) in _above(folder):
                    folders.remove(name)
                    yield (
                        f"{folder / name} is a link that leads back to where it lies:"
                        " remove it"
                    )
            folders.sort()
            yield from self._of_folder(folder, names)
        for error in unread:
            yield _fault(_raise, Path(error.filename), error)

    def _of_folder(self, folder: Path, names: list[str]) -> Iterator[str | None]:
        manifests = list[Sealed]()
        if unsound := _fault(
            lambda place: manifests.extend(self.sealed(place)), folder
        ):
            yield unsound
        there = {name for name in names if not name.startswith(".")} - (
            {NAME} if folder == self.results else set()
        )
        faults = {
            name: _fault(checked, folder / name)
            for name in sorted(there.union(*(manifest.files for manifest in manifests)))
        }
        yield from faults.values()
        sound = {name for name in faults if faults[name] is None}
        # What a former version trained is tested by this one, and not the other way
        # about.
        telling = {
            manifest.rule for manifest in manifests if manifest.made_from is not None
        }
        for manifest in manifests:
            own, (before, needed) = (
                sorted(sound.intersection(manifest.files)),
                _SOURCES.get(manifest.rule, ("", None)),
            )
            needed = needed if before in telling and "config.yaml" in there else None
            if own and manifest.made_from is None and needed is None:
                self.former += [folder / name for name in own]
            elif own:
                yield _fault(self._check_sources, folder / own[0], manifest, needed)
        if "config.yaml" in sound:
            trained = _fault(_check_trained, folder / "config.yaml", sound)
            yield trained
            if "metrics.json" in sound and trained is None:
                yield _fault(
                    self._check_metrics,
                    folder / "metrics.json",
                    "model.safetensors" in sound,
                )
            if {
                "privacy.json",
                "ledger.jsonl",
                "training.json",
            } <= sound and trained is None:
                yield _fault(self._check_account, folder / "privacy.json")

    def _check_sources(self, path: Path, manifest: Sealed, needed: str | None) -> None:
        """Raise where the files of a manifest, of which this is the first, were made
        from something else than is there.

        `needed` is a file beside that has to be among what they were made from.
        """
        sources = manifest.made_from or {}
        if (
            needed
            and (path.parent / needed).relative_to(self.results).as_posix()
            not in sources
        ):
            raise BenchError(
                f"{path} does not say that it was made from the {needed} beside it, as"
                f" the rule {manifest.rule} writes it: {mend(path, manifest.rule)}"
            )
        for name, digest in sources.items():
            source = self.results / name
            now = {
                name: sha
                for other in self.sealed(source.parent)
                for name, sha in other.files.items()
            }
            if source.exists() and now.get(source.name, digest) != digest:
                raise BenchError(
                    f"{path} was made from another {source} than the one that is there:"
                    f" {mend(path, manifest.rule)}"
                )

    def _check_metrics(self, path: Path, model: bool) -> None:
        """Raise where a test is not the run's, or its accuracy not that of its own
        tasks; if deep, not the model's.
        """
        run, metrics = read_run_file(path.parent / "config.yaml"), read_group(path)
        if "per_task" in metrics:
            made = mean_interval([float(value) for value in metrics["per_task"]])
        else:
            count = int(metrics["records"])
            right = round(count * float(metrics["accuracy"]) / 100)
            made = mean_interval([100.0] * right + [0.0] * (count - right))
        wanted = {"dataset": run.dataset, "method": run.method, "seed": run.seed}
        wanted |= {"accuracy": made.mean, "ci_low": made.low, "ci_high": made.high}
        if other := _difference(
            {key: metrics.get(key) for key in wanted}, wanted, 1e-4
        ):  # of rounded accuracies
            raise BenchError(
                f"{path}: {other} by its run and its own tasks:"
                f" {mend(path, 'meta_test')}"
            )
        data = self.results / "data" / run.dataset
        if not (self.deep and model and (data / "images.npy").exists()):
            return
        with tempfile.TemporaryDirectory() as room:
            again, model_path = Path(room, path.name), path.parent / "model.safetensors"
            evaluate(
                run,
                data_dir=data,
                model_path=model_path,
                out_path=again,
                references=self._references(run),
            )
            accuracy = read_group(again)["accuracy"]
        if abs(accuracy - metrics["accuracy"]) > _CLOSE:
            raise BenchError(
                f"{path}: its accuracy is {metrics['accuracy']}, but the model beside"
                f" it has {accuracy} in the same test: {mend(path, 'meta_test')}"
            )

    def _check_account(self, path: Path) -> None:
        """Raise where an account is not of its run; if deep, where it is not what its
        ledger comes to.
        """
        run, said = read_run_file(path.parent / "config.yaml"), read_account(path)
        if run.private != (said.unit is not None):
            raise BenchError(
                f"{path} is not the account of a run of {run.method}:"
                f" {mend(path, 'account')}"
            )
        if not self.deep:
            return
        clients = self.results / "clients" / run.clients_folder
        there = run.accounts_images and (clients / "summary.json").exists()
        made = account_of(
            run,
            ledger_of(run, path.parent),
            clients_dir=clients if there else None,
            search=Search.of(self.searches.get(run.folder)),
            before=ledger_before(run, self._references(run)),
        )
        # What somebody sent need not have the partition, nor its search stand in the
        # configuration here.
        left_out = (set() if there else {"image_level"}) | (
            set() if run.folder in self.searches else {"tuning"}
        )
        if other := _difference(_numbers(said, left_out), _numbers(made, left_out)):
            raise BenchError(
                f"{path}: {other}, computed again from its ledger:"
                f" {mend(path, 'account')}"
            )

    def _references(self, run: Method) -> dict[str, Path]:
        return {
            name: checked(self.results / "runs" / other.folder / name)
            for name, other in run.references.items()
        }


def _check_trained(path: Path, sound: set[str]) -> None:
    """Raise where configuration, ledger, training.json and history of a run do not fit
    one another.
    """
    folder, run = path.parent, read_run_file(path)
    if not {"ledger.jsonl", "training.json"} <= sound:
        return
    ledger_of(run, folder)
    rounds = read_group(folder / "training.json")["rounds_run"]
    if "history.csv" not in sound:
        return
    rows = read_history(folder / "history.csv")["round"].tolist()
    if rows != list(range(1, rounds + 1)):
        raise BenchError(
            f"{folder / 'history.csv'} has {len(rows)} rounds, but training.json beside"
            f" it says {rounds}: one of them was truncated or changed; train the run"
            " again"
        )


def _numbers(account: Account, left_out: set[str]) -> dict[str, Any]:
    """What an account says, by name, without its explanations, which are for people."""
    numbers: dict[str, Any] = {}
    for unit in (account, *account.also):
        whose = f"of {unit.unit}s" if unit is not account else ""
        told = {
            name: getattr(unit, name)
            for name in ("delta", "unit", "rounds", "noise_multiplier")
        }
        entries = {
            name: entry for name, entry in unit.profiles.items() if name not in left_out
        }
        entries |= {
            f"groups of {name}": entry
            for name, entry in unit.groups.items()
            if name not in left_out
        }
        for which, entry in entries.items():
            names = (
                "epsilon_low",
                "epsilon_high",
                "delta",
                "unit",
                "adjacency",
                "observer",
                "status",
            )
            told |= {f"{name} {which}": getattr(entry, name) for name in names}
        numbers |= {f"{name} {whose}".strip(): value for name, value in told.items()}
    return numbers


def _difference(
    said: Mapping[str, Any], made: Mapping[str, Any], close: float = 0.0
) -> str:
    """The first value that differs by more than another processor's rounding, or by
    more than `close`; "": none.
    """
    for name in dict.fromkeys(
        [*said, *made]
    ):  # NaN, which equals nothing, counts as None
        pair: list[Any] = [values.get(name) for values in (said, made)]
        then, now = cast(
            list[Any], [None if value != value else value for value in pair]
        )
        numbers = isinstance(then, (int, float)) and isinstance(now, (int, float))
        if not (
            math.isclose(then, now, rel_tol=1e-6, abs_tol=close)
            if numbers
            else then == now
        ):
            return f"its {name} is {then}, but it is {now}"
    return ""


def _above(folder: Path) -> set[str]:
    real = Path(os.path.realpath(folder))
    return {str(real), *map(str, real.parents)}


def _raise(path: Path, error: OSError) -> None:
    with reading(path):
        raise error


def _fault(check: Callable[..., object], path: Path, *more: Any) -> str | None:
    """What a check says of a file, in a line. Whatever else it meets in a file that
    nobody foresaw is a line too.
    """
    try:
        check(path, *more)
    except BenchError as error:
        said = str(error)
    except Exception as error:
        said = (
            f"{path} cannot be checked ({type(error).__name__}: {error}): it is not"
            " what its rule writes"
        )
    else:
        return None
    return " ".join(said.encode("utf-8", "backslashreplace").decode().split())

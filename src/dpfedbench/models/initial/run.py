"""Initial weights from another run's final model. The workflow runs that one first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.config.initial_weights import Initial, RandomInitial
from dpfedbench.config.part import setting
from dpfedbench.errors import BenchError
from dpfedbench.models.references import reference

if TYPE_CHECKING:
    import numpy as np

    from dpfedbench.run import Run


class RunInitial(Initial):
    """The first member of another run's model: the best on validation or the last.

    It is the best on validation where that run keeps several models. The settings name
    that run; it has this run's seed. There are three cases:

    - It trained on another data set that is declared `public`. It then costs no
      privacy, nor does a run that it started from, if that run trained on the same data
      set.
    - It trained on this run's clients, with privacy. Both runs read the same clients,
      so the account covers both. Their noise must be independent, so this run needs its
      own `streams`.
    - Otherwise it reveals private data without an account, and no finite epsilon is
      proven.

    A language model of another data set has another vocabulary. Words that both models
    know take its rows; the others start with this run's random rows.
    """

    kind: Literal["run"] = "run"
    file: ClassVar[str] = "model.safetensors"

    run: dict[str, Any] = setting(
        doc=(
            "settings of the run that training starts from, without its seed,"
            " which is this run's; a series' `start` fills it in"
        )
    )
    public: bool = setting(
        False,
        doc=(
            "whether that run's data set is public; not allowed for the run's own"
            " data set"
        ),
    )

    @property
    def label(self) -> str:
        return f"from {self.run.get('method')} on {self.run.get('dataset')}"

    def check(self, run: Run) -> None:
        first = self._other(run)
        same_outputs = first.task.outputs == run.task.outputs
        same_model = (first.model, first.pretrains) == (run.model, run.pretrains)
        if not same_model or not (same_outputs or self._other_words(run, first)):
            raise BenchError(
                f"initial.run is {first.folder}, but its model has other sizes or"
                " another last layer: start from a run of the same model and task"
            )
        for start, earlier in self._chain(run):
            if start.public and earlier.dataset == run.dataset:
                raise BenchError(
                    f"initial.public is true, but {earlier.folder} was trained on"
                    f" {run.dataset}, which this run's clients hold: start from another"
                    " data set, or set it to false"
                )
            declared = start.public or (
                self.public and earlier.dataset == first.dataset
            )
            if start is not self and not declared:
                raise BenchError(
                    f"initial.run is {first.folder}, which itself starts from"
                    f" {earlier.folder}, which is not public: no account composes"
                    f" three runs; start from {earlier.folder}, or from a public run"
                )
        if self._composed(run, first):
            self._check_composed(run, first)

    def _check_composed(self, run: Run, first: Run) -> None:
        if "ledger.jsonl" in first.references:
            raise BenchError(
                f"initial.run is {first.folder}, which itself uses a private run: no"
                " account composes three runs; start from another run"
            )
        sums = (*first.private_sums, *run.private_sums)
        kinds = {
            (
                sum_.unit,
                sum_.adjacency,
                sum_.private_noise.mechanism,
                sum_.within_task is None,
            )
            for sum_ in sums
        }
        if (
            run.private
            and len(kinds | {(sums[0].unit, "zero-out", "gaussian", True)}) > 1
        ):
            raise BenchError(
                f"initial.run is {first.folder}, a private run on the same clients,"
                " but no account composes the sums of both: both runs need"
                " independent Gaussian noise and the same unit, without clients' own"
                " sums"
            )
        if first.clients_folder != run.clients_folder:
            raise BenchError(
                f"initial.run is {first.folder}, but it has other clients than this"
                " run, and an account of both needs the same clients: give both runs"
                " the same clients"
            )
        if run.private and run.streams != "own":
            raise BenchError(
                f"initial.run is {first.folder}, a private run on the same clients,"
                " but with streams shared both runs draw the same cohorts and noise,"
                " which no account covers: set streams to own"
            )

    def references(self, run: Run) -> dict[str, Run]:
        first = self._other(run)
        return {self.file: first} | (
            {"ledger.jsonl": first} if self._composed(run, first) else {}
        )

    def without_account(self, run: Run) -> tuple[str, ...]:
        first = self._other(run)
        if self.public or self._composed(run, first):
            return ()
        training = "on other private data" if first.private else "without privacy"
        return (
            f"training starts from what {first.folder} learnt of {first.dataset}"
            f" {training}",
        )

    def public_for(self, run: Run) -> bool:
        return self.public

    def weights(self, run: Run, net: Any, files: Mapping[str, Path]) -> np.ndarray:
        from dpfedbench.models.members import load_by_word, load_members

        first = self._other(run)
        path = reference(files, self.file, first.folder)
        if self._other_words(run, first):
            return load_by_word(path, net, RandomInitial().weights(run, net, {}))
        return load_members(path, net)[0]

    def notices(self, run: Run) -> tuple[str, ...]:
        first = self._other(run)
        if not self.public:
            return ()
        return (f"training starts from a model of {first.dataset}, declared public",)

    @staticmethod
    def _other_words(run: Run, first: Run) -> bool:
        return (
            run.task.text is not None
            and first.task.text is not None
            and run.dataset != first.dataset
        )

    def _other(self, run: Run) -> Run:
        return run.another({**self.run, "seed": run.seed})

    def _composed(self, run: Run, other: Run) -> bool:
        """Return whether both runs read the same records, the other privately."""
        return bool(not self.public and other.private and other.dataset == run.dataset)

    def _chain(self, run: Run) -> Iterator[tuple[RunInitial, Run]]:
        """Yield the chain of runs that training starts from.

        Each run comes with the start that names it.
        """
        start: Initial = self
        while isinstance(start, RunInitial):
            run = start._other(run)
            yield start, run
            start = run.initial

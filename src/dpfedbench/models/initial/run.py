"""Initial weights from another run's final model. The workflow runs that one first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.config.initial_weights import Initial, RandomInitial
from dpfedbench.config.part import setting
from dpfedbench.config.rules import Rule
from dpfedbench.models.references import reference

if TYPE_CHECKING:
    import numpy as np

    from dpfedbench.run import Run


def _has_other_words(earlier: Run, run: Run) -> bool:
    """Return whether two language models of different data sets know other words."""
    texts = run.task.text is not None and earlier.task.text is not None
    return texts and run.dataset != earlier.dataset


def _chain(initial: RunInitial, run: Run) -> Iterator[tuple[RunInitial, Run]]:
    """Yield the runs that training starts from, each with the start that names it."""
    start: Initial = initial
    while isinstance(start, RunInitial):
        run = start.earlier_run(run)
        yield start, run
        start = run.initial


def _run_of_another_model(initial: RunInitial, run: Run) -> Run | None:
    earlier = initial.earlier_run(run)
    same_outputs = earlier.task.outputs == run.task.outputs
    same_model = (earlier.model, earlier.pretrains) == (run.model, run.pretrains)
    if same_model and (same_outputs or _has_other_words(earlier, run)):
        return None
    return earlier


def _public_run_on_the_same_data(initial: RunInitial, run: Run) -> Run | None:
    for start, earlier in _chain(initial, run):
        if start.public and earlier.dataset == run.dataset:
            return earlier
    return None


def _third_run(initial: RunInitial, run: Run) -> tuple[Run, Run] | None:
    first = initial.earlier_run(run)
    for start, earlier in _chain(initial, run):
        same_public_data = initial.public and earlier.dataset == first.dataset
        if start is not initial and not start.public and not same_public_data:
            return first, earlier
    return None


def _private_start(initial: RunInitial, run: Run) -> Run | None:
    """Return the earlier run if the account has to cover both runs."""
    earlier = initial.earlier_run(run)
    return earlier if initial.is_composed_with(earlier, run.dataset) else None


def _start_of_two_private_runs(initial: RunInitial, run: Run) -> Run | None:
    earlier = _private_start(initial, run)
    return earlier if earlier and "ledger.jsonl" in earlier.references else None


def _start_with_other_sums(initial: RunInitial, run: Run) -> Run | None:
    earlier = _private_start(initial, run)
    if earlier is None or not run.private:
        return None
    sums = (*earlier.private_sums, *run.private_sums)
    kinds = {
        (
            sum_.unit,
            sum_.adjacency,
            sum_.private_noise.mechanism,
            sum_.within_task is None,
        )
        for sum_ in sums
    }
    composed = {(sums[0].unit, "zero-out", "gaussian", True)}
    return earlier if kinds != composed else None


def _start_with_other_clients(initial: RunInitial, run: Run) -> Run | None:
    earlier = _private_start(initial, run)
    if earlier is None or earlier.clients_folder == run.clients_folder:
        return None
    return earlier


def _start_with_the_same_streams(initial: RunInitial, run: Run) -> Run | None:
    if not run.private or run.streams == "own":
        return None
    return _private_start(initial, run)


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
            "settings of the run that training starts from, with this run's seed;"
            " a series' `start` fills it in"
        )
    )
    public: bool = setting(
        False,
        doc=("whether that run's data set is public; the run's own never is"),
    )

    @property
    def label(self) -> str:
        return f"from {self.run.get('method')} on {self.run.get('dataset')}"

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            _run_of_another_model,
            "initial.run is {fault.folder}, but its model has other sizes or"
            " another last layer: start from a run of the same model and task",
        ),
        Rule(
            _public_run_on_the_same_data,
            "initial.public is true, but {fault.folder} was trained on"
            " {run.dataset}, which this run's clients hold: start from another"
            " data set, or set it to false",
        ),
        Rule(
            _third_run,
            "initial.run is {fault[0].folder}, which itself starts from"
            " {fault[1].folder}, which is not public: no account composes"
            " three runs; start from {fault[1].folder}, or from a public run",
        ),
        Rule(
            _start_of_two_private_runs,
            "initial.run is {fault.folder}, which itself uses a private run: no"
            " account composes three runs; start from another run",
        ),
        Rule(
            _start_with_other_sums,
            "initial.run is {fault.folder}, a private run on the same clients,"
            " but no account composes the sums of both: both runs need"
            " independent Gaussian noise and the same unit, without clients' own"
            " sums",
        ),
        Rule(
            _start_with_other_clients,
            "initial.run is {fault.folder}, but it has other clients than this"
            " run, and an account of both needs the same clients: give both runs"
            " the same clients",
        ),
        Rule(
            _start_with_the_same_streams,
            "initial.run is {fault.folder}, a private run on the same clients,"
            " but with streams shared both runs draw the same cohorts and noise,"
            " which no account covers: set streams to own",
        ),
    )

    def earlier_run(self, run: Run) -> Run:
        """Return the run that training starts from, with the seed of this run."""
        return run.references[self.file]

    def is_composed_with(self, earlier: Run, dataset: str) -> bool:
        """Return whether both runs read the same records, the earlier one privately."""
        return not self.public and earlier.private and earlier.dataset == dataset

    def references(self, run: Run) -> dict[str, Run]:
        earlier = run.another({**self.run, "seed": run.seed})
        references = {self.file: earlier}
        if self.is_composed_with(earlier, run.dataset):
            references["ledger.jsonl"] = earlier
        return references

    def without_account(
        self, dataset: str, references: Mapping[str, Run]
    ) -> tuple[str, ...]:
        first = references[self.file]
        if self.public or self.is_composed_with(first, dataset):
            return ()
        training = "on other private data" if first.private else "without privacy"
        return (
            f"training starts from what {first.folder} learnt of {first.dataset}"
            f" {training}",
        )

    def public_for(self, run: Run) -> bool:
        return self.public

    def weights(
        self,
        net: Any,
        *,
        seed: int,
        dataset: str,
        references: Mapping[str, Run],
        files: Mapping[str, Path],
    ) -> np.ndarray:
        from dpfedbench.models.members import load_by_word, load_members

        first = references[self.file]
        path = reference(files, self.file, first.folder)
        # Both runs have one model, so both are language models or neither is.
        if first.task.text is not None and first.dataset != dataset:
            return load_by_word(path, net, RandomInitial().weights(net, seed=seed))
        return load_members(path, net)[0]

    def notices(self, run: Run) -> tuple[str, ...]:
        if not self.public:
            return ()
        first = self.earlier_run(run)
        return (f"training starts from a model of {first.dataset}, declared public",)

"""Test on unseen texts: next-word accuracy after refinement on a task's first records.

Refinement is gradient descent on the task's first records, `task.text.refine_batch` at
a time, in order and cyclically (Li et al. 2020, Appendix C: 75 % of a task's words).
The model is tested on the task's other records. A word that the model does not know
always counts as wrong.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import ClassVar

import numpy as np

from dpfedbench.data.text_tasks import KnownText
from dpfedbench.data.tokens import load_texts
from dpfedbench.errors import BenchError
from dpfedbench.evaluation.few_shot import FewShotScores
from dpfedbench.evaluation.held_out import NoMeasures
from dpfedbench.evaluation.intervals import write_task_metrics
from dpfedbench.models.choose import Choice, choose
from dpfedbench.models.gradients import Gradients, Measured
from dpfedbench.models.members import load_members
from dpfedbench.models.threads import Workers
from dpfedbench.run import Run
from dpsum.progress import Progress


def refined(
    gradients: Gradients,
    theta: np.ndarray,
    records: np.ndarray,
    *,
    batch: int,
    steps: int,
    rate: float,
) -> np.ndarray:
    """Return the weights float32 [d] after gradient descent on records [n, L].

    Args:
        gradients: gradients of the network, for use by one thread.
        theta: initial weights [d].
        records: records that are refined on [n, L].
        batch: records per step.
        steps: number of steps.
        rate: step size.
    """
    weights = theta.copy()
    gradient = np.empty((1, len(theta)), theta.dtype)
    starts = itertools.cycle(range(0, len(records), batch))
    for start in itertools.islice(starts, steps):
        batch_records = records[None, start : start + batch]
        gradients.task_gradients(weights[None], batch_records, batch_records, gradient)
        weights -= np.asarray(rate, theta.dtype) * gradient[0]
    return weights


def text_scores(
    choice: Choice,
    theta: np.ndarray,
    known: KnownText,
    run: Run,
    *,
    split: str,
    tasks: int,
    threads: int = 1,
    progress: Progress | None = None,
) -> tuple[FewShotScores, FewShotScores]:
    """Return accuracy and loss on the first `tasks` tasks of a split.

    The first result is for the refined model, the second for the model as it is.

    Raises:
        BenchError: the split has fewer tasks, or a task fewer records.
    """
    text = run.task.text
    assert text is not None
    shots = run.task.shots
    test = run.evaluation
    pool = known.dataset.splits[split]
    if tasks > len(pool):
        key = "evaluation.tasks" if split == "test" else "validation.tasks"
        raise BenchError(
            f"{key} is {tasks}, but {known.name} has {len(pool)} {split} tasks: lower"
            " it to that"
        )
    if shots + test.query_per_class > known.records_per_task:
        raise BenchError(
            f"task.shots and evaluation.query_per_class are {shots} and"
            f" {test.query_per_class} records, but a task of {known.name} has"
            f" {known.records_per_task}: lower them"
        )
    workers = Workers(choice, lambda gradients: gradients, threads=threads)
    counter = itertools.count(1)

    def scored(index: int) -> tuple[Measured, Measured]:
        records = known.tasks(pool[index : index + 1])[0]
        support = records[:shots]
        query = records[shots : shots + test.query_per_class]
        with workers.worker() as gradients:
            weights = refined(
                gradients,
                theta,
                support,
                batch=text.refine_batch,
                steps=test.steps,
                rate=test.rate,
            )
            scores = (
                gradients.evaluate(weights, query, query),
                gradients.evaluate(theta, query, query),
            )
        if progress is not None:
            progress.step(next(counter), 1)
        return scores

    with workers.running() as running:
        scores = list(running.map(scored, range(tasks)))
    after, before = (
        FewShotScores(
            accuracies=np.array([measured.accuracy for measured in of]),
            losses=np.array([measured.loss for measured in of]),
        )
        for of in zip(*scores, strict=True)
    )
    return after, before


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextMeasures(NoMeasures):
    """Measures of a language model in training.

    They use public validation tasks, and the first `evaluation.while_training` test
    tasks.
    """

    run: Run
    known: KnownText
    choice: Choice
    threads: int
    columns: ClassVar[tuple[str, ...]] = (
        "validation_loss",
        "test_accuracy",
        "test_accuracy_before_refining",
    )

    def validate(self, theta: np.ndarray) -> dict[str, float]:
        """Return accuracy in percent and loss after refinement."""
        refined_scores, _ = self._scores(theta, "validation", self.run.validation.tasks)
        return refined_scores.of_validation()

    def test(self, theta: np.ndarray) -> dict[str, float]:
        """Return accuracies in percent."""
        tests = self.run.evaluation
        scores = self._scores(theta, "test", min(tests.while_training, tests.tasks))
        return {
            name: 100 * float(after_or_before.accuracies.mean())
            for name, after_or_before in zip(self.columns[1:], scores, strict=True)
        }

    def _scores(
        self, theta: np.ndarray, split: str, tasks: int
    ) -> tuple[FewShotScores, FewShotScores]:
        return text_scores(
            self.choice,
            theta,
            self.known,
            self.run,
            split=split,
            tasks=tasks,
            threads=self.threads,
        )


def text_test(
    run: Run,
    *,
    data_dir: Path,
    model_path: Path,
    out_path: Path,
    threads: int = 1,
    kernels: bool = True,
) -> None:
    """Test a trained language model and write metrics.json.

    The interval is over tasks, and accuracies are in percent.

    Raises:
        BenchError: data or model are missing or damaged, or the settings do not fit
            them.
    """
    dataset = load_texts(data_dir)
    assert run.task.text is not None
    known = KnownText(dataset, run.task.text)
    net = run.tested_net(known.image_shape)
    (theta,) = load_members(Path(model_path), net)
    tasks = run.evaluation.tasks
    progress = Progress(f"test {run.folder}", tasks, unit="tasks")
    after, before = text_scores(
        choose(net, enabled=kernels),
        theta,
        known,
        run,
        split="test",
        tasks=tasks,
        threads=threads,
        progress=progress,
    )
    write_task_metrics(
        out_path,
        run,
        100 * after.accuracies,
        members=1,
        loss=float(after.losses.mean()),
        accuracy_before_refining=float(100 * before.accuracies.mean()),
    )

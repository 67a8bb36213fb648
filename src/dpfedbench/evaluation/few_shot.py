"""Meta-test: accuracy of the meta-model after adaptation to each task's support set."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from scipy.special import softmax

from dpfedbench.data.images import ImageDataset, load_dataset
from dpfedbench.data.partition import TaskBatch, gather, sample_tasks
from dpfedbench.evaluation.fine_tuning import best_logits, fine_tune
from dpfedbench.evaluation.held_out import NoMeasures
from dpfedbench.evaluation.intervals import write_task_metrics
from dpfedbench.models.choose import Choice, choose
from dpfedbench.models.members import load_members
from dpfedbench.models.meta_gradient import Adaptation
from dpfedbench.models.net import Net
from dpfedbench.models.threads import Workers
from dpfedbench.run import Run
from dpsum.progress import Progress
from dpsum.randomness import stream


@dataclasses.dataclass(frozen=True, kw_only=True)
class FewShotScores:
    """Scores of a model on the query sets of tasks, float64 [n] each.

    Accuracies are from 0 to 1; losses are mean cross-entropies.
    """

    accuracies: np.ndarray
    losses: np.ndarray

    def of_validation(self) -> dict[str, float]:
        """Return mean accuracy in percent and mean loss, as columns of a history."""
        return {
            "validation_accuracy": 100 * float(self.accuracies.mean()),
            "validation_loss": float(self.losses.mean()),
        }


def draw_tasks(
    dataset: ImageDataset, run: Run, *, split: str, tasks: int, purpose: str
) -> Callable[[np.ndarray], TaskBatch]:
    """Draw new tasks of a split; return a function from their numbers to their data.

    The same seed and purpose give the same tasks, so methods are compared on equal
    tasks.

    Args:
        dataset: the data set of the tasks.
        run: settings of ways, shots and query size.
        split, tasks: the split ("validation" or "test"), and the number of tasks.
        purpose: name of the random stream that draws the tasks.
    """
    shots = run.task.shots
    query_per_class = run.evaluation.query_per_class
    sampled = sample_tasks(
        dataset,
        split,
        count=tasks,
        ways=run.task.ways,
        shots=shots,
        query_per_class=query_per_class,
        seed=run.seed,
        purpose=purpose,
    )
    return lambda numbers: gather(
        dataset,
        sampled,
        numbers,
        support_per_class=shots,
        query_per_class=query_per_class,
    )


def adapted_scores(
    choice: Choice,
    members: Sequence[np.ndarray],
    run: Run,
    gather_tasks: Callable[[np.ndarray], TaskBatch],
    numbers: np.ndarray,
    *,
    purpose: str,
    threads: int = 1,
    progress: Progress | None = None,
) -> FewShotScores:
    """Return accuracy and loss on the query sets of adapted tasks.

    With several members (an ensemble), each is adapted separately and their class
    probabilities are averaged.

    Args:
        choice: implementation of the model's gradients.
        members: flat weights [d] of each member.
        run: settings of ways, steps and rate.
        gather_tasks: function that returns the data of tasks, given their numbers.
        numbers: numbers of the tasks.
        purpose: name of the random stream that draws minibatches.
        threads: CPU threads; results do not depend on it.
        progress: called after every finished task.
    """
    ways = run.task.ways
    workers = Workers(
        choice,
        lambda gradients: Adaptation(
            gradients, adapted=run.adapted_tensors(gradients.net)
        ),
        threads=threads,
    )
    counter = itertools.count(1)

    def scored(block: slice) -> list[tuple[float, float]]:
        batch = gather_tasks(numbers[block])
        totals = np.zeros((*batch.query_y.shape, ways))
        rngs = [
            stream(run.seed, f"test-minibatches/{purpose}", int(number))
            for number in numbers[block]
        ]
        with workers.worker() as adaptation:
            for theta in members:
                totals += softmax(_logits(run, adaptation, theta, batch, rngs), axis=2)
        if progress is not None:
            for _ in rngs:
                progress.step(next(counter), 1)
        return [
            _score(total, labels, len(members))
            for total, labels in zip(totals, batch.query_y, strict=True)
        ]

    with workers.running() as pool:
        blocks = workers.split(len(numbers))
        scores = np.array(list(itertools.chain(*pool.map(scored, blocks))))
    return FewShotScores(accuracies=scores[:, 0], losses=scores[:, 1])


def _score(total: np.ndarray, labels: np.ndarray, members: int) -> tuple[float, float]:
    """Return accuracy and mean cross-entropy on a task's query set.

    Args:
        total: sum of the members' class probabilities [m, ways].
        labels: labels of the query set [m].
        members: number of members in the sum.
    """
    right = total[np.arange(len(total)), labels] / members
    loss = float(-np.log(np.maximum(right, np.finfo(float).tiny)).mean())
    return float((total.argmax(axis=1) == labels).mean()), loss


def _logits(
    run: Run,
    adaptation: Adaptation,
    theta: np.ndarray,
    batch: TaskBatch,
    rngs: Sequence[np.random.Generator],
) -> np.ndarray:
    """Return the logits [T, m, ways] of the query sets of T adapted tasks.

    Each task is adapted to its support set as the run's settings state. Gradient
    descent on whole support sets is computed for all tasks at once. `rngs` draw the
    minibatches of each task.
    """
    if run.evaluation.is_plain:
        return adaptation.logits(
            theta,
            batch.support_x,
            batch.support_y,
            batch.query_x,
            steps=run.evaluation.steps,
            rate=run.evaluation.rate,
        )
    gradients = adaptation.gradients
    logits = []
    for index, rng in enumerate(rngs):
        task = batch.select(slice(index, index + 1))
        if run.evaluation.best_step:
            logits.append(best_logits(gradients, theta, task, run, rng=rng))
            continue
        tuned = fine_tune(
            gradients, theta, task.support_x[0], task.support_y[0], run, rng=rng
        )
        logits.append(np.asarray(gradients.logits(tuned, task.query_x))[0])
    return np.stack(logits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FewShotMeasures(NoMeasures):
    """Measures of a meta-model in training: public validation tasks, after adaptation.

    The test follows after training.
    """

    run: Run
    dataset: ImageDataset
    choice: Choice
    threads: int
    columns: ClassVar[tuple[str, ...]] = ("validation_loss",)

    def validate(self, theta: np.ndarray) -> dict[str, float]:
        """Return accuracy in percent and loss on the query sets."""
        tasks = self.run.validation.tasks
        scores = adapted_scores(
            self.choice,
            [theta],
            self.run,
            draw_tasks(
                self.dataset,
                self.run,
                split="validation",
                tasks=tasks,
                purpose="validation",
            ),
            np.arange(tasks),
            purpose="validation",
            threads=self.threads,
        )
        return scores.of_validation()


def tested_members(
    run: Run, model_path: Path, *, image_shape: tuple[int, ...], train_classes: int
) -> tuple[Net, list[np.ndarray]]:
    """Return the network that adapts to tasks, and each member's initial weights [d].

    The last layer of a pre-trained model, whose outputs are the training classes, is
    replaced by a new one.

    Raises:
        BenchError: the model is missing, damaged or of another network.
    """
    net = run.tested_net(image_shape)
    if not run.pretrains:
        return net, load_members(model_path, net)
    trained = run.trained_net(image_shape, train_classes)
    return net, [
        net.with_fresh_head(theta, trained)
        for theta in load_members(model_path, trained)
    ]


def meta_test(
    run: Run,
    *,
    data_dir: Path,
    model_path: Path,
    out_path: Path,
    threads: int = 1,
    kernels: bool = True,
) -> None:
    """Meta-test a trained model and write metrics.json.

    The interval is over tasks, for this one model: see `evaluation.intervals`.
    Accuracies are in percent.

    Raises:
        BenchError: data or model are missing or damaged.
    """
    dataset = load_dataset(data_dir)
    net, members = tested_members(
        run,
        model_path,
        image_shape=dataset.image_shape,
        train_classes=len(dataset.splits["train"]),
    )
    tasks = run.evaluation.tasks
    progress = Progress(f"meta-test {run.folder}", tasks, unit="tasks")
    purpose = "meta-test"
    scores = adapted_scores(
        choose(net, enabled=kernels),
        members,
        run,
        draw_tasks(dataset, run, split="test", tasks=tasks, purpose=purpose),
        np.arange(tasks),
        purpose=purpose,
        threads=threads,
        progress=progress,
    )
    write_task_metrics(out_path, run, 100 * scores.accuracies, members=len(members))

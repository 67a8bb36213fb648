"""Meta-test: how well the meta-model, adapted to a new task's support set, tells the task's classes apart."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpfedbench.config import RunConfig
from dpfedbench.data.images import ImageDataset, load_dataset
from dpfedbench.data.partition import gather, sample_tasks
from dpfedbench.evaluation.intervals import mean_interval
from dpfedbench.evaluation.record_test import record_test
from dpfedbench.federation.progress import Progress
from dpfedbench.files import write_json
from dpfedbench.kernels import choose
from dpfedbench.models.conv4 import Conv4
from dpfedbench.models.gradients import Workers
from dpfedbench.models.members import load_members
from dpfedbench.models.meta_gradient import Adaptation
from dpfedbench.models.net import Net


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scores:
    """What a model makes of tasks: accuracy (0 to 1) and mean cross-entropy on the query set of each, float64 [n]."""

    accuracies: np.ndarray
    losses: np.ndarray


def task_scores(
    net: Net,
    members: Sequence[np.ndarray],
    dataset: ImageDataset,
    config: RunConfig,
    *,
    split: str,
    tasks: int,
    purpose: str,
    threads: int = 1,
    progress: Progress | None = None,
) -> Scores:
    """Accuracy and loss on each of `tasks` fresh tasks of a split.

    The same seed and purpose give the same tasks, so methods are compared on equal tasks. With several members
    (an ensemble), each is adapted by itself and their class probabilities are averaged.

    Args:
        net: the network's shapes.
        members: flat weights [d] of each member.
        dataset: where the tasks come from.
        config: gives ways, shots, query size, steps and rate.
        split: "validation" or "test".
        tasks: how many.
        purpose: name of the random stream that draws the tasks.
        threads: CPU threads; results do not depend on it.
        progress: told of every finished task.
    """
    ways, shots, evaluation = config.task.ways, config.task.shots, config.evaluation
    sampled = sample_tasks(
        dataset, split, count=tasks, ways=ways, shots=shots, query_per_class=evaluation.query_per_class,
        seed=config.seed, purpose=purpose,
    )  # fmt: skip
    workers = Workers(choose(net), Adaptation, threads=threads)
    counter = itertools.count(1)

    def one(index: int) -> tuple[float, float]:
        task = gather(
            dataset,
            sampled,
            np.array([index]),
            support_per_class=shots,
            query_per_class=evaluation.query_per_class,
        )
        total = np.zeros((ways * evaluation.query_per_class, ways))
        with workers.worker() as adaptation:
            for theta in members:
                logits = adaptation.logits(
                    theta, task.support_x, task.support_y, task.query_x, steps=evaluation.steps, rate=evaluation.rate
                )[0]
                exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
                total += exponentials / exponentials.sum(axis=1, keepdims=True)
        if progress is not None:
            progress.step(next(counter), 1)
        right = total[np.arange(len(total)), task.query_y[0]] / len(members)
        loss = float(-np.log(np.maximum(right, np.finfo(float).tiny)).mean())
        return float((total.argmax(axis=1) == task.query_y[0]).mean()), loss

    with workers.running() as pool:
        found = np.array(list(pool.map(one, range(tasks))))
    return Scores(accuracies=found[:, 0], losses=found[:, 1])


def validation_measures(
    net: Net, theta: np.ndarray, dataset: ImageDataset, config: RunConfig, threads: int
) -> dict[str, float]:
    """Accuracy in percent and loss on the query sets of public validation tasks, after adaptation."""
    scores = task_scores(
        net, [theta], dataset, config, split="validation", tasks=config.validation.tasks, purpose="validation",
        threads=threads,
    )  # fmt: skip
    return {
        "validation_accuracy": 100 * float(scores.accuracies.mean()),
        "validation_loss": float(scores.losses.mean()),
    }


def few_shot_network(config: RunConfig, image_shape: tuple[int, int, int]) -> Net:
    """The network of few-shot clients: one output for each class of a task, and their rates where these are learnt."""
    update, net = config.client_update, pretraining_network(config, image_shape=image_shape, classes=config.task.ways)
    return net.with_rates(update.inner_steps, update.inner_rate) if update.learnable_rates else net


def pretraining_network(config: RunConfig, *, image_shape: tuple[int, int, int], classes: int) -> Net:
    """The network that is pre-trained: one output for each training class."""
    model = config.model

    def build() -> Conv4:
        return Conv4(image_shape=image_shape, filters=model.filters, ways=classes, normalisation=model.normalisation)

    return Net(build, input_shape=image_shape, outputs=classes)


def meta_test(config: RunConfig, *, data_dir: Path, model_path: Path, out_path: Path, threads: int = 1) -> None:
    """Meta-test a trained model and write metrics.json; one that is used as it is goes to `record_test`.

    Of a pre-trained model the last layer, whose outputs are the training classes, is replaced by a fresh one.

    The interval is over tasks, for this one model: see `evaluation.intervals`. Accuracies are in percent.

    Raises:
        BenchError: data or model missing or damaged.
    """
    if config.on_records and not config.pretrains:
        record_test(config, data_dir=data_dir, model_path=model_path, out_path=out_path)
        return
    dataset = load_dataset(data_dir)
    net = few_shot_network(config, dataset.image_shape)
    if config.pretrains:
        trained = pretraining_network(config, image_shape=dataset.image_shape, classes=len(dataset.splits["train"]))
        members = [net.with_fresh_head(theta, trained) for theta in load_members(Path(model_path), trained)]
    else:
        members = load_members(Path(model_path), net)
    tasks = config.evaluation.tasks
    progress = Progress(f"meta-test {config.folder}", tasks, unit="tasks")
    accuracies = (
        100
        * task_scores(
            net,
            members,
            dataset,
            config,
            split="test",
            tasks=tasks,
            purpose="meta-test",
            threads=threads,
            progress=progress,
        ).accuracies
    )
    interval = mean_interval(accuracies.tolist())
    write_json(
        out_path,
        {
            "dataset": config.dataset,
            "method": config.method,
            "seed": config.seed,
            "accuracy": interval.mean,
            "ci_low": interval.low,
            "ci_high": interval.high,
            "tasks": tasks,
            "shots": config.task.shots,
            "query_per_class": config.evaluation.query_per_class,
            "steps": config.evaluation.steps,
            "members": len(members),
            "per_task": [round(float(value), 6) for value in accuracies],
        },
    )

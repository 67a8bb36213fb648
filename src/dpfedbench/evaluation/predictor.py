"""A trained model on the user's data: class probabilities, accuracy, and adaptation."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from torch import nn

from dpfedbench.errors import BenchError
from dpfedbench.evaluation.few_shot import tested_members
from dpfedbench.evaluation.fine_tuning import fine_tune
from dpfedbench.evaluation.next_word import refined
from dpfedbench.models.choose import choose
from dpfedbench.models.members import load_members
from dpfedbench.models.meta_gradient import Adaptation
from dpfedbench.models.net import Array, Net
from dpfedbench.run import Run
from dpsum.randomness import stream


def trained(
    run: Run,
    model_path: Path,
    summary: Mapping[str, Any],
    references: Mapping[str, Path],
) -> Predictor:
    """Return a run's trained model.

    For a model that is adapted to each task, this is the model before adaptation.

    Args:
        run: the run.
        model_path: its model file.
        summary: summary.json of its data set.
        references: files of other runs, by name (`Run.references`).

    Raises:
        BenchError: the model is missing or damaged.
    """
    text = run.task.text
    shape = tuple(summary["image_shape"]) if text is None else (text.record,)
    if run.task.shots:
        train_classes = summary.get("split_classes", {}).get("train", 0)
        return Predictor(
            *tested_members(
                run, model_path, image_shape=shape, train_classes=train_classes
            )
        )
    net = run.trained_net(shape, summary["classes"], references)
    return Predictor(net, load_members(model_path, net))


@dataclasses.dataclass(frozen=True)
class Predictor:
    """Networks whose class probabilities are averaged.

    `members` are the flat weight vectors of the networks.
    """

    net: Net
    members: list[np.ndarray]

    @property
    def modules(self) -> list[nn.Module]:
        """Return a torch module with its weights for each member."""
        loaded = []
        for theta in self.members:
            module = copy.deepcopy(self.net.module)
            weights = theta[: self.net.weights].astype(np.float32)
            nn.utils.vector_to_parameters(
                torch.from_numpy(weights), module.parameters()
            )
            loaded.append(module)
        return loaded

    def adapted(
        self,
        run: Run,
        x: Array,
        y: Array | None = None,
        *,
        steps: int | None = None,
        rate: float | None = None,
    ) -> Predictor:
        """Return the networks adapted to a task as in the run's meta-test.

        Arguments are as for `FinishedRun.adapt`.
        """
        x, y = self.checked(x, y)
        gradients = choose(self.net).make()
        steps = run.evaluation.steps if steps is None else steps
        rate = run.evaluation.rate if rate is None else rate
        text = run.task.text
        rng = stream(run.seed, "own-minibatches")
        adaptation = Adaptation(gradients, adapted=run.adapted_tensors(self.net))

        def adapt(theta: np.ndarray) -> np.ndarray:
            if text is not None:
                batch = text.refine_batch
                return refined(gradients, theta, x, batch=batch, steps=steps, rate=rate)
            if not run.evaluation.is_plain:
                return np.asarray(
                    fine_tune(
                        gradients, theta, x, y, run, rng=rng, steps=steps, rate=rate
                    )[0]
                )
            weights = adaptation.adapt(theta, x[None], y[None], steps=steps, rate=rate)
            return np.asarray(weights[0])

        return Predictor(self.net, [adapt(theta) for theta in self.members])

    def predict(self, x: Array) -> np.ndarray:
        """Return class probabilities [n, classes] of images [n, H, W, C].

        Images are uint8, or float in [0, 1]. For a language model and records int64 [n,
        L], the result is float64 [n, L, words + 1]: the probability of each word at
        each position, given the words before it. A model that normalises over the batch
        sees all images together.

        Raises:
            BenchError: the images have another type or range, or the records of words
                another shape or range.
        """
        if self.net.vocabulary:
            return self._predict_words(self._records(x))
        x = self._images(x)
        gradients = choose(self.net).make()
        total = np.zeros((len(x), self.net.outputs))
        for theta in self.members:
            logits = np.asarray(
                gradients.logits(theta[None, : self.net.weights], x[None])
            )[0]
            total += softmax(logits, axis=1)
        return total / len(self.members)

    def _predict_words(self, x: np.ndarray) -> np.ndarray:
        total = np.zeros((*x.shape, self.net.outputs))
        for module in self.modules:
            with torch.no_grad():
                logits = module(torch.from_numpy(x))
            total += torch.softmax(logits.double(), dim=-1).numpy()
        return total / len(self.members)

    def accuracy(self, x: Array, y: Array | None = None) -> float:
        """Return the accuracy in percent, over images or over words.

        Words are counted as in the model's test: an unknown word (0) always counts as
        wrong.
        """
        x, y = self.checked(x, y)
        if self.net.vocabulary:
            gradients = choose(self.net).make()
            return 100 * float(
                np.mean(
                    [gradients.evaluate(theta, x, y).accuracy for theta in self.members]
                )
            )
        return 100 * float((self.predict(x).argmax(axis=1) == y).mean())

    def _images(self, x: Array) -> np.ndarray:
        images = np.asarray(x)
        if images.dtype == np.uint8:
            return images
        is_real = np.issubdtype(images.dtype, np.floating)
        if not is_real or not 0 <= images.min() <= images.max() <= 1:
            raise BenchError(
                f"images of type {images.dtype}: give uint8, or floats from 0 to 1"
            )
        return images.astype(np.float32)

    def _whole(self, values: Array | None, shape: tuple[int, ...]) -> np.ndarray:
        """Return classes or words, int64, after a check of their range and shape."""
        numbers = np.asarray(values)
        is_whole = np.issubdtype(numbers.dtype, np.integer) and numbers.shape == shape
        if not is_whole or not 0 <= numbers.min() <= numbers.max() < self.net.outputs:
            raise BenchError(
                f"classes or words of type {numbers.dtype}, shape"
                f" {list(numbers.shape)}: give whole numbers from 0 to"
                f" {self.net.outputs - 1}, of shape {list(shape)}"
            )
        return numbers.astype(np.int64)

    def _records(self, x: Array) -> np.ndarray:
        return self._whole(x, (len(x), *self.net.input_shape))

    def checked(
        self, x: Array, y: Array | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return images and classes, or records of words twice, after checking them.

        Raises:
            BenchError: the types or ranges are not as in `predict` and `accuracy`.
        """
        if not self.net.vocabulary:
            images = self._images(x)
            return images, self._whole(y, (len(images),))
        records = self._records(x)
        if y is not None and not np.array_equal(y, records):
            raise BenchError(
                "records of words need no labels: leave out the second argument"
            )
        return records, records

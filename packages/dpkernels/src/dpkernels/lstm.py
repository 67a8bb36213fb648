"""LSTM of next words: clipped sums of records' gradients without a row per record.

It uses one CPU thread. For each matrix, one backward pass gives the two factors of
every word's outer product: a record's gradient of a matrix is a sum of L outer
products, sum_t a_t b_t^T. Its squared norm is sum_{t,s} (a_t . a_s)(b_t . b_s), from
two Gram matrices of [L, L] (Goodfellow 2015). The clipped sum over records is then one
product of two long matrices, with a scaled by each record's weight. Rows of the
embedding add up if a word occurs twice. If the softmax is tied to the embedding, both
gradients fall on the same rows, and their product is a term of the squared norm: 2
sum_{t,s} D[t, w_s] (h_t . g_s), where D is the gradient of the logits, h_t the vector
that they are products with, and g_s the gradient of the embedding of the input w_s.

Gram matrices round, so a norm is increased by a few units in the last place of its
summands. A contribution to a sum is therefore never longer than the limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from dpkernels.networks import LstmShape
from dpkernels.passes import Measures, Passes, TaskGradients

_NUMBERS = 2**21
"""Approximate number of logits of one pass.

They fit into a processor's outer cache, and are enough for fast products.
"""


class _Layer(NamedTuple):
    """Pass of a layer over n records: inputs, and state for the backward pass.

    Each array is [L, n, width] unless stated otherwise.
    """

    inputs: torch.Tensor
    before: torch.Tensor  # outputs of the step before
    gates: torch.Tensor  # [L, n, 4 width]: i, f, g, o
    cells: torch.Tensor  # [L + 1, n, width], zero first
    squashed: torch.Tensor  # tanh of the cells
    outputs: torch.Tensor


class _Back(NamedTuple):
    """Results of a backward pass: all factors of the gradients.

    Attributes:
        words: inputs [n, L], which are rows of the embedding.
        arriving: gradients of their embeddings, [n, L, width].
        logits: gradients of the logits, [n, L, V].
        top: vectors that the logits are products with, [n, L, width].
        layers: for each layer, the gradients of its gates [L, n, 4 width], its inputs
            and its previous outputs [L, n, width].
    """

    words: torch.Tensor
    arriving: torch.Tensor
    logits: torch.Tensor
    top: torch.Tensor
    layers: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


class FastLstm(Passes):
    """Gradients of an `LstmShape`. The arguments are those of `Passes`."""

    name = "lstm"
    network: LstmShape
    records_at_once: int

    @staticmethod
    def fits(network: Any, dtype: np.dtype) -> bool:
        """Return true: any such model has this pass."""
        return True

    def __init__(self, network: LstmShape, dtype: Any = np.float32) -> None:
        super().__init__(network, dtype)
        (self._length,) = network.input_shape
        self.records_at_once = max(1, _NUMBERS // (network.outputs * self._length))
        self._torch_type = torch.float32 if self.dtype == np.float32 else torch.float64

    def _tensors(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return a parameter vector [d] as named tensors (views)."""
        shapes = self.network.tensors
        parts = vector.split([math.prod(shape) for shape in shapes.values()])
        return {
            name: part.view(shape)
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }

    # One pass over several records

    def _forward(
        self, weights: dict[str, torch.Tensor], x: torch.Tensor
    ) -> tuple[torch.Tensor, list[_Layer]]:
        """Return the inputs [n, L] and each layer's pass."""
        network = self.network
        words = torch.cat([torch.full_like(x[:, :1], network.outputs), x[:, :-1]], 1)
        steps = weights["embedding"][words.T]
        layers = []
        for layer in range(network.layers):
            layers.append(self._layer(weights, layer, steps))
            steps = layers[-1].outputs
        return words, layers

    def _layer(
        self, weights: dict[str, torch.Tensor], layer: int, steps: torch.Tensor
    ) -> _Layer:
        hidden = weights[f"hidden{layer}"].T
        width = self.network.width
        length, records, _ = steps.shape
        gates = torch.addmm(
            weights[f"bias{layer}"], steps.flatten(0, 1), weights[f"input{layer}"].T
        )
        gates = gates.view(length, records, 4 * width)
        outputs = steps.new_zeros(length + 1, records, width)
        cells = torch.zeros_like(outputs)
        squashed = torch.empty_like(steps)
        for t in range(length):
            step_gates = gates[t]
            if t:
                step_gates.addmm_(outputs[t], hidden)
            step_gates[:, : 2 * width].sigmoid_()
            step_gates[:, 2 * width : 3 * width].tanh_()
            step_gates[:, 3 * width :].sigmoid_()
            i, f, g, o = step_gates.chunk(4, dim=1)
            torch.addcmul(f * cells[t], i, g, out=cells[t + 1])
            torch.tanh(cells[t + 1], out=squashed[t])
            torch.mul(o, squashed[t], out=outputs[t + 1])
        return _Layer(steps, outputs[:-1], gates, cells, squashed, outputs[1:])

    def _logits_at(
        self, weights: dict[str, torch.Tensor], layers: list[_Layer]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the top outputs [n, L, width] and their logits [n, L, V]."""
        top = layers[-1].outputs.transpose(0, 1).contiguous()
        return top, (top.flatten(0, 1) @ self._softmax(weights).T).view(
            *top.shape[:2], self.network.outputs
        )

    def _softmax(self, weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return (
            weights["embedding"][: self.network.outputs]
            if self.network.tied
            else weights["softmax"]
        )

    def _measured(
        self, logits: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, Measures]:
        """Return the words' probabilities, losses and right answers.

        The probabilities overwrite the logits.
        """
        most = logits.amax(dim=2, keepdim=True)
        right_logits = logits.gather(2, y[:, :, None])
        known = y > 0
        right = ((right_logits == most)[:, :, 0] & known).sum(1)
        logits.sub_(most).exp_()
        total = logits.sum(dim=2, keepdim=True)
        word_losses = (total.log() + most - right_logits)[:, :, 0] * known
        logits.div_(total)
        losses = word_losses.double().sum(1) / self._length
        return logits, Measures(
            losses.numpy(),
            right.double().numpy(),
            np.full(len(y), float(self._length)),
        )

    def _backward(
        self, weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
    ) -> tuple[_Back, np.ndarray]:
        """Compute the factors of the gradient of each record's loss, and the losses."""
        words, layers = self._forward(weights, x)
        top, logits = self._logits_at(weights, layers)
        arriving, measured = self._measured(logits, y)
        arriving.scatter_add_(
            2, y[:, :, None], torch.full_like(arriving[:, :, :1], -1.0)
        )
        arriving *= ((y > 0).to(self._torch_type) / self._length)[:, :, None]
        steps = (
            (arriving.flatten(0, 1) @ self._softmax(weights))
            .view_as(top)
            .transpose(0, 1)
            .contiguous()
        )
        back = []
        for number in reversed(range(len(layers))):
            gates = self._layer_backward(
                weights[f"hidden{number}"], layers[number], steps
            )
            back.append((gates, layers[number].inputs, layers[number].before))
            steps = (gates.flatten(0, 1) @ weights[f"input{number}"]).view_as(steps)
        return _Back(
            words, steps.transpose(0, 1).contiguous(), arriving, top, back[::-1]
        ), measured.losses

    def _layer_backward(
        self, hidden: torch.Tensor, layer: _Layer, steps: torch.Tensor
    ) -> torch.Tensor:
        """Return the gradients of the gates [L, n, 4 width].

        `steps` are the gradients of the outputs [L, n, width].
        """
        width = self.network.width
        out = torch.empty_like(layer.gates)
        state = torch.zeros_like(steps[0])
        cell = torch.zeros_like(steps[0])
        for t in reversed(range(len(steps))):
            i, f, g, o = layer.gates[t].chunk(4, dim=1)
            state = steps[t] + state
            squashed = layer.squashed[t]
            cell = cell + state * o * (1 - squashed * squashed)
            slopes = out[t]
            slopes[:, :width] = cell * g * i * (1 - i)
            slopes[:, width : 2 * width] = cell * layer.cells[t] * f * (1 - f)
            slopes[:, 2 * width : 3 * width] = cell * i * (1 - g * g)
            slopes[:, 3 * width :] = state * squashed * o * (1 - o)
            cell = cell * f
            state = slopes @ hidden
        return out

    # Norms and sums of the gradients

    def _norms(self, back: _Back) -> torch.Tensor:
        """Return each record's norm, float64 [n].

        It is increased by the amount that rounding may have removed.
        """
        parts = []
        for gates, inputs, before in back.layers:
            parts.append(
                _gram(gates.transpose(0, 1))
                * (_gram(inputs.transpose(0, 1)) + _gram(before.transpose(0, 1)) + 1)
            )
        parts.append(_gram(back.logits) * _gram(back.top))
        parts.append(
            (back.words[:, :, None] == back.words[:, None, :]) * _gram(back.arriving)
        )
        if self.network.tied:
            rows = back.words.clamp(max=self.network.outputs - 1)[:, None, :].expand(
                -1, self._length, -1
            )
            at = (
                back.logits.gather(2, rows)
                * (back.words < self.network.outputs)[:, None, :]
            )
            parts.append(2 * at * (back.top @ back.arriving.transpose(1, 2)))
        squares = torch.stack([part.double().sum((1, 2)) for part in parts]).sum(0)
        rounded = torch.stack([part.double().abs().sum((1, 2)) for part in parts]).sum(
            0
        )
        return (
            squares.clamp(min=0) + 8 * torch.finfo(self._torch_type).eps * rounded
        ).sqrt()

    def _sum(
        self, back: _Back, weights: torch.Tensor, out: dict[str, torch.Tensor]
    ) -> None:
        """Add the records' gradients, each times its weight [n], to named tensors."""
        for number, (gates, inputs, before) in enumerate(back.layers):
            scaled = (gates * weights[None, :, None]).flatten(0, 1)
            out[f"input{number}"].addmm_(scaled.T, inputs.flatten(0, 1))
            out[f"hidden{number}"].addmm_(scaled.T, before.flatten(0, 1))
            out[f"bias{number}"].add_(scaled.sum(0))
        top = (back.top * weights[:, None, None]).flatten(0, 1)
        self._softmax(out).addmm_(back.logits.flatten(0, 1).T, top)
        out["embedding"].index_add_(
            0,
            back.words.flatten(),
            (back.arriving * weights[:, None, None]).flatten(0, 1),
        )

    def _passes(
        self, theta: np.ndarray, x: np.ndarray, y: np.ndarray
    ) -> Iterator[tuple[slice, dict[str, torch.Tensor], torch.Tensor, torch.Tensor]]:
        """Yield pieces of records: their slice, the weights, records and labels."""
        weights = self._tensors(_tensor(theta))
        records = _tensor(x)
        labels = _tensor(y)
        for start in range(0, len(records), self.records_at_once):
            chosen = slice(start, min(start + self.records_at_once, len(records)))
            yield chosen, weights, records[chosen], labels[chosen]

    def adds_records(self, x: np.ndarray) -> bool:
        return True

    def _add_record_gradients(
        self,
        theta: np.ndarray,
        x: np.ndarray,
        y: np.ndarray,
        limit: float,
        total: np.ndarray,
        norms: np.ndarray,
    ) -> np.ndarray:
        losses = [np.empty(0)]
        clipped_sum = torch.zeros(self.network.dimension, dtype=self._torch_type)
        out = self._tensors(clipped_sum)
        with torch.no_grad():
            for chosen, weights, records, labels in self._passes(theta, x, y):
                back, record_losses = self._backward(weights, records, labels)
                losses.append(record_losses)
                record_norms = self._norms(back)
                norms[chosen] = record_norms.numpy()
                good = torch.isfinite(record_norms)
                # A record that is not finite is left out: multiplying by zero would
                # keep NaN.
                if not good.all():
                    back, _ = self._backward(weights, records[good], labels[good])
                    record_norms = record_norms[good]
                factors = (limit / record_norms).clamp(max=1.0)
                self._sum(back, factors.to(self._torch_type), out)
        total += clipped_sum.double().numpy()
        return np.concatenate(losses)

    def _record_gradients(
        self, theta: np.ndarray, x: np.ndarray, y: np.ndarray, out: np.ndarray
    ) -> np.ndarray:
        weights = self._tensors(_tensor(theta))
        rows = torch.from_numpy(out).zero_()
        factor = torch.ones(1, dtype=self._torch_type)
        losses = [np.empty(0)]
        with torch.no_grad():
            for record, label, row in zip(_tensor(x), _tensor(y), rows, strict=True):
                back, loss = self._backward(weights, record[None], label[None])
                self._sum(back, factor, self._tensors(row))
                losses.append(loss)
        return np.concatenate(losses)

    def _evaluate(self, theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> Measures:
        parts = [Measures(np.empty(0), np.empty(0), np.empty(0))]
        with torch.no_grad():
            for _, weights, records, labels in self._passes(theta, x, y):
                _, layers = self._forward(weights, records)
                _, logits = self._logits_at(weights, layers)
                parts.append(self._measured(logits, labels)[1])
        return Measures(*map(np.concatenate, zip(*parts, strict=True)))

    def prepare(self, x: np.ndarray) -> np.ndarray:
        return x

    def _task_gradients(
        self,
        theta: np.ndarray,
        x: np.ndarray,
        y: np.ndarray,
        out: np.ndarray,
        products: bool,
        before: TaskGradients | None,
    ) -> TaskGradients | None:
        return None if products else _Tasks(self, theta, x, y, out)


class _Tasks(TaskGradients):
    """Tasks, each at its own weights, without second derivatives.

    A gradient is the mean over a task's records.
    """

    def __init__(
        self,
        owner: FastLstm,
        theta: np.ndarray,
        x: np.ndarray,
        y: np.ndarray,
        out: np.ndarray,
    ) -> None:
        means = torch.from_numpy(out).zero_()
        task_losses = []
        with torch.no_grad():
            for weights_of_task, records, labels, mean in zip(
                theta, x, y, means, strict=True
            ):
                tensors = owner._tensors(mean)
                losses = []
                for _, weights, piece, answers in owner._passes(
                    weights_of_task, records, labels
                ):
                    back, piece_losses = owner._backward(weights, piece, answers)
                    share = 1 / len(records)
                    factors = torch.full((len(piece),), share, dtype=owner._torch_type)
                    owner._sum(back, factors, tensors)
                    losses.append(piece_losses)
                task_losses.append(np.concatenate(losses).mean())
        self.losses = np.array(task_losses)


def _tensor(array: np.ndarray) -> torch.Tensor:
    """Return an array as a tensor, without a copy if torch may write to it."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _gram(rows: torch.Tensor) -> torch.Tensor:
    """Return the inner products of each record's rows [n, L, m]: [n, L, L]."""
    return rows @ rows.transpose(1, 2)

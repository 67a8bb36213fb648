"""Language model of task-global private meta-learning (Li et al. 2020, Appendix C).

It is an LSTM over a vocabulary of known words:

    h = LSTM_2(LSTM_1(E[BOS], E[w_1], ..., E[w_{L-1}]))
    logits_t = S h_t        tied: S is E without its last row

A record starts with BOS (the last row of E) and a zero state, so that no word enters
the gradients of two records. An unknown target (word 0) is left out of the loss and
counts as wrong.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional

RANGE = 0.3
"""Initial weights are uniform between minus and plus this value."""


class Lstm(nn.Module):
    """LSTM language model.

    Args:
        words: size of the vocabulary V; word 0 stands for all unknown words.
        record: words of a record, L.
        width: width of the embedding and of each layer.
        layers: number of LSTM layers.
        tied: whether the logits are products with the embedding. Otherwise they have a
            matrix of their own.
    """

    by_word = ("embedding", "softmax")

    def __init__(
        self, *, words: int, record: int, width: int, layers: int, tied: bool
    ) -> None:
        super().__init__()
        self.words = words
        self.record = record
        self.width = width
        self.layers = layers
        self.tied = tied
        self.embedding = nn.Parameter(torch.zeros(words + 1, width))
        for layer in range(layers):
            matrix = (4 * width, width)
            shapes = {"input": matrix, "hidden": matrix, "bias": (4 * width,)}
            for name, shape in shapes.items():
                self.register_parameter(
                    f"{name}{layer}", nn.Parameter(torch.zeros(shape))
                )
        if not tied:
            self.softmax = nn.Parameter(torch.zeros(words, width))

    @property
    def answers(self) -> tuple[int, ...]:
        """Shape of a record's labels."""
        return (self.record,)

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """Return the initial weights, float32 [weights]."""
        weights = sum(value.numel() for value in self.parameters())
        return rng.uniform(-RANGE, RANGE, weights).astype(np.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits [n, L, V] of records int64 [n, L].

        Each word is predicted from the words before it.
        """
        inputs = functional.pad(x[:, :-1], (1, 0), value=self.words)
        steps = self.embedding[inputs].unbind(1)
        for layer in range(self.layers):
            steps = self._layer(layer, steps)
        return (
            torch.stack(steps, 1)
            @ (self.embedding[: self.words] if self.tied else self.softmax).T
        )

    def _layer(
        self, layer: int, steps: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        inputs, hidden, bias = (
            getattr(self, f"{name}{layer}") for name in ("input", "hidden", "bias")
        )
        h = cell = torch.zeros_like(steps[0])
        states = []
        for step in steps:
            i, f, g, o = (step @ inputs.T + h @ hidden.T + bias).chunk(4, dim=1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(cell)
            states.append(h)
        return tuple(states)

    def losses(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return each record's loss [n]: the sum over its known words, divided by L."""
        logits = self(x)
        word_losses = functional.cross_entropy(
            logits.flatten(0, 1), y.flatten(), reduction="none"
        ).view(y.shape)
        return (word_losses * (y > 0)).sum(1) / self.record

    def correct(
        self, x: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the number of right answers [n] and of answers [n] of each record.

        An answer is right if the most likely word is the next word and is known.
        """
        logits = self(x)
        right = ((logits.argmax(dim=2) == y) & (y > 0)).sum(1).to(logits.dtype)
        return right, torch.full_like(right, self.record)

"""The language model of task-global private meta-learning (Li et al. 2020, Appendix C):
an LSTM over known words.

    h = LSTM_2(LSTM_1(E[BOS], E[w_1], ..., E[w_{L-1}]));   logits_t = S h_t;   tied: S is E without its last row

A record starts with BOS (the last row of E) and a zero state, so that no word is in two
records' gradients. A target that is not known (word 0) is left out of the loss and
counts as wrong.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional

RANGE = 0.3
"""Initial weights are uniform between minus and plus this."""


class Lstm(nn.Module):
    """The network.

    Args:
        words: words told apart, V; 0 stands for all that are not known.
        record: words of a record, L.
        width: of the embedding and of both layers.
        layers: of the LSTM.
        tied: whether the logits are products with the embedding; otherwise with a
            matrix of their own.
    """

    by_word = ("embedding", "softmax")

    def __init__(
        self, *, words: int, record: int, width: int, layers: int = 2, tied: bool = True
    ) -> None:
        super().__init__()
        self.words = words
        self.record = record
        self.width = width
        self.layers = layers
        self.tied = tied
        self.embedding = nn.Parameter(torch.zeros(words + 1, width))
        for layer in range(layers):
            self.register_parameter(
                f"input{layer}", nn.Parameter(torch.zeros(4 * width, width))
            )
            self.register_parameter(
                f"hidden{layer}", nn.Parameter(torch.zeros(4 * width, width))
            )
            self.register_parameter(
                f"bias{layer}", nn.Parameter(torch.zeros(4 * width))
            )
        if not tied:
            self.softmax = nn.Parameter(torch.zeros(words, width))

    @property
    def answers(self) -> tuple[int, ...]:
        """Shape of a record's labels."""
        return (self.record,)

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """Initial weights, float32 [weights]."""
        weights = sum(value.numel() for value in self.parameters())
        return rng.uniform(-RANGE, RANGE, weights).astype(np.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [n, L, V] of records int64 [n, L]: of each word, from those before
        it.
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
        """Each record's loss [n]: the sum over its known words, over L."""
        logits = self(x)
        word_losses = functional.cross_entropy(
            logits.flatten(0, 1), y.flatten(), reduction="none"
        ).view(y.shape)
        return (word_losses * (y > 0)).sum(1) / self.record

    def correct(
        self, x: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Right answers [n] and of how many [n]: the most likely word is right where it
        is the next and is known.
        """
        logits = self(x)
        right = ((logits.argmax(dim=2) == y) & (y > 0)).sum(1).to(logits.dtype)
        return right, torch.full_like(right, self.record)

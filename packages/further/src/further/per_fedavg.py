"""Per-FedAvg (Fallah et al., Personalized Federated Learning with Theoretical
Guarantees: A Model-Agnostic Meta-Learning Approach, 2020), first order.

The server looks for a model that is good after one step of each client. A local step
(Algorithm 1 without its Hessian term, "FO" in their Section 5) uses two independent
batches D and D' of the client's records:

    w~ = w - alpha grad F_k(w; D),    w <- w - beta grad F_k(w~; D').

Here D and D' are the halves of the client's records, which are split at random anew for
each step. The client sends the difference of FedAvg or DP-FedAvg, so that their
guarantee holds. The clients' use of the last model is a step of rate alpha on all of
their records; its result never leaves them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from dpfedbench.config.part import setting
from dpfedbench.training.client_updates.model_difference import ModelDifference

if TYPE_CHECKING:
    from dpfedbench.lazy import np, torch
    from dpfedbench.training.client_updates.local_model import LocalClient, LocalModel

    Examples = tuple[np.ndarray, np.ndarray]


class PerFedAvg(ModelDifference):
    """Per-FedAvg: the model difference of steps that look one adaptation step ahead.

    A client with one record cannot split it, and takes no steps.
    """

    kind: Literal["per-fedavg"] = "per-fedavg"  # type: ignore[assignment]  # each kind has its name

    adaptation_rate: float = setting(
        0.1, gt=0, le=1e6, doc="alpha: learning rate of the adaptation step"
    )
    adaptation_steps: int = setting(
        1,
        ge=1,
        le=100_000,
        doc="steps of a client that uses the last model; training looks one ahead",
    )

    def contributions(
        self, model: LocalModel, cohort: Sequence[LocalClient], index: int
    ) -> Iterator[Any]:
        for client in cohort:
            rng = model.stream("halves", index, client.number)
            yield model.weights - self._looking_ahead(model, client, rng)

    def _looking_ahead(
        self, model: LocalModel, client: LocalClient, rng: np.random.Generator
    ) -> torch.Tensor:
        """Return a client's weights after its local steps."""
        assert client.records is not None
        weights = model.weights
        if len(client.records[1]) < 2:
            return weights
        state = self.optimizer.begin(weights)
        for _ in range(self.inner_steps):
            support, query = _halves(client.records, rng)
            adapted = self._adapted(model, weights, support)
            gradient = model.gradient(adapted, query)
            self.optimizer.step(weights, gradient, state, self.inner_rate)
        return weights

    def _adapted(
        self, model: LocalModel, weights: torch.Tensor, examples: Examples
    ) -> torch.Tensor:
        """Return weights after one adaptation step; `weights` do not change."""
        gradient = model.gradient(weights, examples)
        return weights - self.adaptation_rate * gradient

    def personal_model(self, model: LocalModel, client: LocalClient) -> torch.Tensor:
        assert client.records is not None
        weights = model.weights
        for _ in range(self.adaptation_steps):
            weights = self._adapted(model, weights, client.records)
        return weights


def _halves(examples: Examples, rng: np.random.Generator) -> tuple[Examples, Examples]:
    """Split examples into two halves at random, the first at least as large."""
    inputs, labels = examples
    order = rng.permutation(len(labels))
    middle = (len(labels) + 1) // 2
    first = order[:middle]
    second = order[middle:]
    return (inputs[first], labels[first]), (inputs[second], labels[second])

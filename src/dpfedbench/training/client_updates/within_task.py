"""Few-shot clients that compute each example's gradient separately, and take (private)
sums of these gradients within their task.

    for each step:  gradient of each example -> (private) sum (C_0, z_0) -> step of the task's own weights;
    then MAML's query gradient at the adapted weights (first order), or Reptile's difference of the weights.

With a sum over the query examples as well (DP-AGRLR, Algorithm 3), a client's message
protects each of its examples against the server. Where the server sums the query
examples (sample-level DP-MAML, Algorithm 2), each query gradient goes to the server's
private sum. Nothing else leaves a client.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dpfedbench.lazy import np, torch
from dpfedbench.training.client_updates.client_update import (
    CHUNK_PER_THREAD,
    Clients,
    Setup,
    task_examples,
)
from dpfedbench.training.client_updates.local_model import Examples
from dpfedbench.training.distributed import Stream
from dpsum.sampling import Sampler
from dpsum.sums import SumSpec

if TYPE_CHECKING:
    from dpfedbench.models.gradients import Gradients


class ClientsWithinTask(Clients):
    """Clients of a meta-learning run that compute each example's gradient separately.

    Threads compute the clients one by one, each thread with its own worker.

    Args:
        setup: the parts of the run.
        samplers: sampler of each sum that a client takes, by name.
        contributions_per_client: contributions of a client to the server's sum.
        make: creates a thread's worker from its gradients; by default the gradients.

    Raises:
        BenchError: no noise meets the epsilon.
    """

    def __init__(
        self,
        setup: Setup,
        samplers: dict[str, Sampler],
        *,
        contributions_per_client: int = 1,
        make: Callable[[Gradients], Any] | None = None,
    ) -> None:
        self.setup = setup
        self.dimension = setup.net.dimension
        self._workers = setup.workers(make or (lambda gradients: gradients))
        self.contributions_per_client = contributions_per_client
        specs = {
            name: SumSpec(name=name, unit="record", observer="server", stream=name)
            for name in samplers
        }
        specs |= setup.calibrated_client_sums(samplers)
        self.mechanisms = {
            name: setup.create_mechanism(
                specs[name],
                participation=sampler,
                dimension=self.dimension,
                stream_indices=("round", "client", "step"),
                groups=setup.groups_of(specs[name]),
            )
            for name, sampler in samplers.items()
        }

    def client(
        self,
        worker: Any,
        theta: np.ndarray,
        client: int,
        index: int,
        held: tuple[Examples, Examples],
        out: torch.Tensor,
    ) -> float:
        """Write a client's messages in round `index` to `out`.

        Args:
            worker: worker of the thread.
            theta: weights of the model [d].
            client: number of the client.
            index: number of the round, from 0.
            held: support and query examples of the client.
            out: receives the messages [contributions, d].

        Returns:
            The mean loss.
        """
        raise NotImplementedError

    def contributions(
        self, theta: np.ndarray, cohort: np.ndarray, index: int
    ) -> Stream:
        """Yield contributions, with losses on the query sets.

        For Reptile, the losses are those of all examples before training.
        """
        chunk = CHUNK_PER_THREAD * self._workers.count
        room = torch.empty(
            (chunk, self.contributions_per_client, self.dimension),
            device=self._workers.device,
        )

        def computed(client: int, held: Any, out: torch.Tensor) -> float:
            with self._workers.worker() as worker:
                return self.client(worker, theta, int(client), index, held, out)

        with self._workers.running() as pool:
            for start in range(0, len(cohort), chunk):
                ids = cohort[start : start + chunk]
                examples = task_examples(self.setup.held, ids)
                losses = np.array(list(pool.map(computed, ids, examples, room)))
                yield room[: len(ids)].flatten(end_dim=1), losses
        for mechanism in self.mechanisms.values():
            mechanism.write(index)


class Client:
    """One client in one round, and the sums that it takes."""

    def __init__(self, clients: ClientsWithinTask, round_: int, client: int) -> None:
        self._clients = clients
        self.round = round_
        self.client = client

    def mean(
        self,
        name: str,
        theta: np.ndarray,
        examples: Examples,
        worker: Gradients,
        step: int = 0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the (private) mean gradient of some of the client's examples.

        The sum is divided by the planned number of examples, which is public, and not
        by the number that was drawn.

        Returns:
            The mean gradient, float32 [d], and the examples' losses [n].
        """
        mechanism = self._clients.mechanisms[name]
        total = mechanism.begin_round(self.round, step=step, holder=self.client)
        losses = np.empty(0)
        if len(examples[1]):
            losses, _ = worker.add_record_gradients(theta, *examples, total)
        mean = mechanism.finish(total) / mechanism.sampler["cohort"]
        return mean.astype(np.float32), losses


def mean_loss(losses: np.ndarray) -> float:
    """Return the mean of losses [n], added up one after another; nan without losses."""
    return float(np.cumsum(losses)[-1] / len(losses)) if len(losses) else math.nan

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

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dpfedbench.lazy import np, torch
from dpfedbench.training.clients import (
    CHUNK_PER_THREAD,
    Clients,
    Examples,
    Setup,
    task_examples,
)
from dpfedbench.training.distributed import Stream
from dpsum import participation
from dpsum.sampling import Sampler
from dpsum.sums import SumSpec

if TYPE_CHECKING:
    from dpfedbench.models.gradients import Gradients
    from dpfedbench.run import Run
    from dpsum.mechanism import Mechanism


@dataclasses.dataclass(frozen=True)
class Turn:
    """One client in one round, and the sums that it takes.

    Attributes:
        mechanisms: mechanism of each sum, by name.
        round: number of the round, from 0.
        client: number of the client.
        theta: weights that the server sent, float32 [d].
        support, query: examples of the client.
    """

    mechanisms: Mapping[str, Mechanism]
    round: int
    client: int
    theta: np.ndarray
    support: Examples
    query: Examples

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
        mechanism = self.mechanisms[name]
        total = mechanism.begin_round(self.round, step=step, holder=self.client)
        losses = np.empty(0)
        if len(examples[1]):
            losses, _ = worker.add_record_gradients(theta, *examples, total)
        mean = mechanism.finish(total) / mechanism.sampler["cohort"]
        return mean.astype(np.float32), losses


Compute = Callable[[Turn, Any, "torch.Tensor"], float]
"""Function that writes a client's messages to a tensor [contributions, d], and returns
the mean loss. Its arguments are the client's turn, the thread's worker and the tensor.
"""


class ClientsWithinTask(Clients):
    """Clients of a meta-learning run that compute each example's gradient separately.

    Threads compute the clients one by one, each thread with its own worker.

    Args:
        setup: the parts of the run.
        mechanisms: mechanism of each sum that a client takes, by name.
        compute: computes a client's messages.
        contributions_per_client: contributions of a client to the server's sum.
        make: creates a thread's worker from its gradients; by default the gradients.
    """

    def __init__(
        self,
        setup: Setup,
        mechanisms: Mapping[str, Mechanism],
        compute: Compute,
        *,
        contributions_per_client: int = 1,
        make: Callable[[Gradients], Any] | None = None,
    ) -> None:
        self.setup = setup
        self.mechanisms = mechanisms
        self.compute = compute
        self.contributions_per_client = contributions_per_client
        self._workers = setup.workers(make or (lambda gradients: gradients))

    def contributions(
        self, theta: np.ndarray, cohort: np.ndarray, index: int
    ) -> Stream:
        """Yield contributions, with losses on the query sets.

        For Reptile, the losses are those of all examples before training.
        """
        chunk = CHUNK_PER_THREAD * self._workers.count
        room = torch.empty(
            (chunk, self.contributions_per_client, self.setup.net.dimension),
            device=self._workers.device,
        )

        def computed(client: int, held: Any, out: torch.Tensor) -> float:
            turn = Turn(self.mechanisms, index, int(client), theta, *held)
            with self._workers.worker() as worker:
                return self.compute(turn, worker, out)

        with self._workers.running() as pool:
            for start in range(0, len(cohort), chunk):
                ids = cohort[start : start + chunk]
                examples = task_examples(self.setup.held, ids)
                losses = np.array(list(pool.map(computed, ids, examples, room)))
                yield room[: len(ids)].flatten(end_dim=1), losses
        for mechanism in self.mechanisms.values():
            mechanism.write(index)


def create_mechanisms(
    setup: Setup, samplers: Mapping[str, Sampler]
) -> dict[str, Mechanism]:
    """Return the mechanism of each sum of a client over its examples, by name.

    A sum that the method does not state is plain: it claims no privacy.

    Raises:
        BenchError: no noise meets the epsilon.
    """
    specs = {
        name: SumSpec(name=name, unit="record", observer="server", stream=name)
        for name in samplers
    }
    specs |= setup.calibrated_client_sums(samplers)
    mechanisms = {}
    for name, sampler in samplers.items():
        spec = dataclasses.replace(
            specs[name],
            stream_indices=("round", "client", "step"),
            groups=setup.groups_of(specs[name].clipping),
        )
        mechanisms[name] = setup.create_mechanism(
            spec, participation=sampler, dimension=setup.net.dimension
        )
    return mechanisms


def within_task(
    run: Run, records: int, *, steps: int, batches: str = "full"
) -> Sampler:
    """Return the sampler of a sum that each client takes over its own examples.

    A client takes part in one round.

    For `steps` and `batches` see `dpsum.participation.within_task`.

    Args:
        run: the run.
        records: number of examples of a client.
        steps: number of sums of a client.
        batches: how the examples of each sum are chosen.
    """
    return participation.within_task(
        clients=run.clients.count,
        rounds=run.participation.rounds,
        records=records,
        steps=steps,
        batches=batches,
    )


def mean_loss(losses: np.ndarray) -> float:
    """Return the mean of losses [n], added up one after another; nan without losses."""
    return float(np.cumsum(losses)[-1] / len(losses)) if len(losses) else math.nan

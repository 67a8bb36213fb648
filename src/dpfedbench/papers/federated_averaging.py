"""Federated averaging and its variants for clients that differ: FedAvg, FedProx and
SCAFFOLD, without privacy and with user-level privacy.

FedAvg (McMahan et al. 2017). Each client takes K steps from the broadcast model w_t to
w_k, each along the mean gradient of all of its records, and sends w_t - w_k.

FedProx (Li et al., Federated Optimization in Heterogeneous Networks, 2020). A client
takes its steps on h_k(w; w_t) = F_k(w) + mu/2 ||w - w_t||^2 (their eq. 2): each step's
gradient is that of its records plus mu (w - w_t).

SCAFFOLD (Karimireddy et al., Stochastic Controlled Averaging for Federated Learning,
2020). Each client keeps a control variate c_k, at first 0, and the server one, c. A
step follows g_k(w) - c_k + c, and after K steps of rate r the client sends two vectors
(Algorithm 1, option II):

    w_t - w_k    and    c_k' - c_k = (w_t - w_k) / (K r) - c.

The server steps along the mean of the first, and adds to c the sum of the second over
the number of all clients, so that c stays the mean of all c_k.

With user-level privacy (DP-FedAvg: McMahan et al., Learning Differentially Private
Recurrent Language Models, 2018), each round the server

1. samples a cohort of L clients, each by chance;
2. clips each client's vector to C in L2 norm over all weights, adds the vectors up and
   adds N(0, z^2 C^2 I);
3. takes the sum / L as the gradient of a step.

FedProx's clients send one vector, so that the same guarantee holds whatever mu is.
SCAFFOLD's clients send two. Each is clipped to a threshold of its own, summed, and
noised by itself. A client is in both sums of a round or in neither, so that a round is,
to a client, one Gaussian release of multiplier (z^-2 + z_c^-2)^-1/2
(`dpsum.sums.together`), and one budget covers both. A client also clips the change of
its control variate and keeps what it sent: else c would be the mean of other control
variates than those that clients subtract. What a client keeps leaves by these sums
alone. It follows from its records, from what everyone was sent, and from the rounds
that it took part in; docs/privacy.md says why the last changes nothing of the account
for the participations that `DpScaffold` takes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal

from dpfedbench.errors import BenchError
from dpfedbench.lazy import np, torch
from dpfedbench.method import Method
from dpfedbench.papers.shared import ClientLevelMethod
from dpfedbench.parts.client_updates.client_update import (
    CHUNK_PER_THREAD,
    Clients,
    Setup,
    Stream,
)
from dpfedbench.parts.client_updates.local_steps import LocalSteps
from dpfedbench.parts.client_updates.model_difference import (
    ModelDifference,
    ModelDifferenceClients,
)
from dpfedbench.parts.optimizers.optimizer import Sgd
from dpfedbench.parts.participation.cohorts import (
    BallsAndBins,
    MinSeparation,
    OnePass,
    Poisson,
    ShuffledEpochs,
)
from dpfedbench.parts.participation.poisson_lots import PoissonLots
from dpfedbench.parts.server.server_step import Average, Step
from dpfedbench.settings.part import setting
from dpsum.accounting.claims import POISSON_MOMENTS
from dpsum.clipping import CohortRule, Constant
from dpsum.noise import Gaussian
from dpsum.sums import SumSpec

if TYPE_CHECKING:
    from dpfedbench.settings.run import Run

CONTROL = "control-difference-sum"


class Proximal(ModelDifference):
    """FedProx: the model difference of steps with a proximal term. With mu = 0 it is
    the model difference itself.
    """

    kind: Literal["proximal"] = "proximal"  # type: ignore[assignment]  # each kind has its name

    mu: float = setting(
        0.1,
        ge=0,
        le=1e6,
        doc="of the proximal term mu/2 ||w - w_t||^2",
        paper="0.001 to 1",
    )

    def local_gradient(
        self, gradient: torch.Tensor, model: torch.Tensor, start: torch.Tensor
    ) -> torch.Tensor:
        return gradient.add_(model - start, alpha=self.mu)


class Scaffold(ModelDifference):
    """SCAFFOLD: the model difference of steps that control variates correct, and the
    change of the client's control variate.
    """

    kind: Literal["scaffold"] = "scaffold"  # type: ignore[assignment]  # each kind has its name
    sends_too = (CONTROL,)
    keeps_state = True

    def check(self, run: Run) -> None:
        if self.optimizer != Sgd():
            raise BenchError(
                "client_update.optimizer has to be sgd without momentum: a control"
                " variate is the mean gradient of a client's steps, which is what its"
                " model moved by over their rates"
            )

    def clients(self, setup: Setup) -> Clients:
        return ScaffoldClients(self, setup)


class ScaffoldClients(ModelDifferenceClients):
    """Clients with control variates. A client is always computed by the same process,
    which keeps its control variate.
    """

    divides = True

    def __init__(self, update: ModelDifference, setup: Setup) -> None:
        super().__init__(update, setup)
        self._processes = setup.processes
        self._whole_rate = update.inner_steps * update.inner_rate
        sums = {sum_.name: sum_ for sum_ in setup.run.sums()}
        rule = sums[CONTROL].clipping if CONTROL in sums else None
        self._threshold = math.inf if rule is None else float(rule.threshold)
        self._server_control = np.zeros(self.dimension, np.float32)
        self._controls: dict[int, np.ndarray] = {}

    def followed(
        self,
        client: int,
        gradient: torch.Tensor,
        model: torch.Tensor,
        start: torch.Tensor,
    ) -> torch.Tensor:
        correction = self._server_control
        if client in self._controls:
            correction = correction - self._controls[client]
        return gradient.add_(torch.from_numpy(correction))

    def contributions(
        self, theta: np.ndarray, cohort: np.ndarray, index: int
    ) -> Stream:
        """Both messages [2, n, d]; losses and accuracies are the broadcast model's on
        each client's records.
        """
        chunk = CHUNK_PER_THREAD * self._workers.count
        with self._workers.running() as pool:
            for start in range(0, len(cohort), chunk):
                ids = [int(client) for client in cohort[start : start + chunk]]
                rows = np.zeros((2, len(ids), self.dimension), np.float32)
                measures = np.zeros((len(ids), 2))
                # The numbers, in the chunk, of the clients that this process computes.
                numbers = [
                    number
                    for number, client in enumerate(ids)
                    if self._belongs_here(client)
                ]
                computed = pool.map(
                    self._messages,
                    repeat(theta),
                    [ids[number] for number in numbers],
                    [rows[:, number] for number in numbers],
                )
                for number, measured in zip(numbers, computed, strict=True):
                    measures[number] = measured
                of_processes = self._processes.collected(
                    (numbers, rows[:, numbers], measures[numbers])
                )
                for numbers_there, rows_there, measures_there in of_processes:
                    rows[:, numbers_there] = rows_there
                    measures[numbers_there] = measures_there
                yield torch.from_numpy(rows), measures[:, 0], measures[:, 1]

    def _messages(
        self, theta: np.ndarray, client: int, out: np.ndarray
    ) -> Sequence[float]:
        """Write both messages of a client to `out` [2, d], and move its control
        variate; return its loss and accuracy.
        """
        with self._workers.worker() as worker:
            measured = self.client(
                worker, theta, client, 0, None, torch.from_numpy(out[:1])
            )
        np.subtract(out[0] / self._whole_rate, self._server_control, out=out[1])
        if self.setup.shared is not None and not self.setup.shared.all:
            out[1][~self.setup.shared.mask] = 0.0  # the server corrects what it moves
        norm = float(np.sqrt(np.square(out[1], dtype=np.float64).sum()))
        if self._threshold < norm < math.inf:
            out[1] *= self._threshold / norm
        if math.isfinite(norm):  # what is not finite counts as zero in the sum
            before = self._controls.get(client, np.zeros_like(self._server_control))
            self._controls[client] = before + out[1]
        return measured

    def _belongs_here(self, client: int) -> bool:
        """Whether this process computes a client."""
        return client % self._processes.count == self._processes.rank

    def hear(self, means: Sequence[np.ndarray]) -> None:
        self._server_control += means[0].astype(np.float32)

    def state(self) -> Any:
        here = {
            client: torch.from_numpy(control)
            for client, control in self._controls.items()
        }
        controls: dict[int, torch.Tensor] = {}
        for of_process in self._processes.collected(here):
            controls |= of_process
        server = torch.from_numpy(self._server_control.copy())
        return {"server": server, "own": controls}

    def restore(self, state: Any) -> None:
        self._server_control = state["server"].numpy().copy()
        self._controls = {
            client: control.numpy()
            for client, control in state["own"].items()
            if self._belongs_here(client)
        }


class FedAvg(Method):
    """FedAvg without privacy: the upper bound of Adap DP-FL and of DP-FedAvg.

    With `local-steps` every client trains in every round, along the sums of its lots,
    and the server averages the models, as in Adap DP-FL. With `model-difference`,
    `proximal` (FedProx) or `scaffold` a cohort of clients trains on all of its records,
    and the server steps along the mean.
    """

    name = "fedavg"
    title = "Non-private FedAvg"
    paper = "adap-dp-fl"
    version = "2"

    participation: PoissonLots | OnePass | BallsAndBins | Poisson = PoissonLots()
    client_update: LocalSteps | ModelDifference | Proximal | Scaffold = LocalSteps()
    server: Average | Step = Average()

    def check(self) -> None:
        lots = isinstance(self.participation, PoissonLots)
        averages = isinstance(self.server, Average)
        if not lots == averages == isinstance(self.client_update, LocalSteps):
            raise BenchError(
                f"client_update.kind {self.client_update.kind}, participation.kind"
                f" {self.participation.kind} and server.kind {self.server.kind} do not"
                " go together: local-steps, poisson-lots and average do, and"
                " model-difference, proximal or scaffold with a cohort and server.kind"
                " step"
            )
        super().check()

    def sums(self) -> list[SumSpec]:
        update = self.client_update
        if isinstance(update, LocalSteps):
            return [
                SumSpec(
                    name=update.sends,
                    unit="record",
                    taken_by="client",
                    observer="server",
                ),
                SumSpec(name="model-mean", unit="client", observer="everyone"),
            ]
        return [
            SumSpec(name=name, unit="client", taken_by="server", observer="everyone")
            for name in (*update.sends_too, update.sends)
        ]


class DpFedAvg(ClientLevelMethod):
    """DP-FedAvg, and FedProx with privacy (`proximal`): one private sum a round, over
    the cohort's model differences.
    """

    name = "dp-fedavg"
    title = "DP-FedAvg"
    paper = "dp-fedavg"
    claims = {
        "poisson": dataclasses.replace(
            POISSON_MOMENTS,
            status="proved",
            explanation=(
                "the paper's: moments accounting of Poisson sampling, by TensorFlow"
                " Privacy's orders"
            ),
        )
    }

    client_update: ModelDifference | Proximal = ModelDifference()
    clipping: CohortRule = Constant()


class DpScaffold(DpFedAvg):
    """SCAFFOLD with privacy: two private sums a round, of the cohort's model
    differences and of the changes of their control variates.

    The paper has no privacy; what is claimed here is the moments accountant of
    DP-FedAvg, with both sums counted.
    """

    name = "dp-scaffold"
    title = "DP-SCAFFOLD"
    paper = "clients-that-differ"

    participation: Poisson | ShuffledEpochs | MinSeparation = Poisson()
    client_update: Scaffold = Scaffold()
    noise: Gaussian = Gaussian()
    control_clipping: Constant = setting(
        Constant(), doc="of what control variates move by"
    )
    control_noise: Gaussian = setting(Gaussian(), doc="of their sum")

    def sums(self) -> list[SumSpec]:
        """Return the sum of the control variates, then that of the model differences."""
        control_sum = SumSpec(
            name=CONTROL,
            unit="client",
            taken_by="server",
            observer="everyone",
            clipping=self.control_clipping,
            noise=self.control_noise,
            budget=self.budget,
            stream="control-noise",
        )
        return [control_sum, *super().sums()]

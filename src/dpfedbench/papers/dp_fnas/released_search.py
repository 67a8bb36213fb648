"""Steps of a search as in DP-FNAS's released code, which protects no record.

Facts about github.com/UCSD-AI4H/DP-FNAS (folder cnn, commit 6ff5783); W are the
weights, A the architecture, xi the rate of W, C, sigma and R, tau the clipping norms
and noise of W and A:

- A moves before W, along dA - xi (h + R n), where n has standard deviation tau R. dA is
  the gradient of the validation lot after a virtual step of W, neither clipped nor
  noised. h is a difference of two gradients of the training lot, times epsilon / 2
  where the difference quotient has 1 / (2 epsilon). Its clipping changes nothing.
- W moves along the mean gradient of the training lot, which is first clipped to norm 5.
  Then each kernel (a row of the last layer, its bias, and the scale of the stem's
  normalisation) is clipped to C, and gets noise of standard deviation sigma C^2.
- 1 x 1 convolutions and the shift of the stem's normalisation get no noise.

This update leaves out two traits of the released code: batch normalisation, and loaders
with known batches. Lots are Poisson lots, as in the paper's text. In the released code
each party steps its own architecture, so that this update has one party.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.config.breach import Breach
from dpfedbench.config.rules import Rule
from dpfedbench.lazy import np, torch
from dpfedbench.papers.dp_fnas.search_steps import (
    ARCHITECTURE,
    WEIGHTS,
    SearchSteps,
)
from dpfedbench.parts.optimizers.optimizer import Sgd
from dpfedbench.run import Run
from dpfedbench.training.client_updates.parties import PartyClients
from dpfedbench.training.clients import Clients, Setup
from dpfedbench.training.history import Row
from dpsum import participation
from dpsum.clipping import LARGEST_THRESHOLD, SMALLEST_THRESHOLD, ClippingRule
from dpsum.parameters import parameter
from dpsum.randomness import stream
from dpsum.sums import SumSpec

if TYPE_CHECKING:
    from dpsum.mechanism import Mechanism

LARGEST_NORM = 5.0
"""Norm to which the whole gradient of W is clipped before its kernels are."""
DIFFERENCE = 0.01
"""Length of the steps of W at whose ends the gradients of A are compared."""


@dataclasses.dataclass(frozen=True)
class Kernels:
    """Kernels of one tensor.

    Attributes:
        coordinates: positions of the kernels among the weights, one kernel after
            another.
        size: number of coordinates of each kernel.
    """

    coordinates: slice
    size: int

    @property
    def count(self) -> int:
        """Number of kernels."""
        return (self.coordinates.stop - self.coordinates.start) // self.size


def noised_kernels(shapes: Mapping[str, tuple[int, ...]]) -> list[Kernels]:
    """Return the kernels that the released code noises, in the order of tensors.

    Args:
        shapes: shapes of the tensors of a search network, by name.
    """
    kernels = []
    start = 0
    for name, shape in shapes.items():
        coordinates = slice(start, start + math.prod(shape))
        start = coordinates.stop
        size = _kernel_size(name, shape)
        if size:
            kernels.append(Kernels(coordinates, size))
    return kernels


def _kernel_size(name: str, shape: tuple[int, ...]) -> int:
    """Return the coordinates of each kernel of a tensor; 0 without noise."""
    if name.startswith("classifier."):
        return shape[-1]
    if name == "stem.weight":
        return shape[-1] * shape[-2]
    if name == "stem_norm.scale":
        return shape[0]
    is_spatial = len(shape) == 4 and shape[-1] > 1
    if name.startswith("cells.") and is_spatial:
        return shape[-1] * shape[-2]
    return 0


def clip_kernels(
    gradient: torch.Tensor, kernels: list[Kernels], norm: float
) -> torch.Tensor:
    """Return a gradient in which each kernel is scaled down to at most `norm`.

    All other coordinates stay unchanged.
    """
    clipped = gradient.clone()
    for group in kernels:
        rows = clipped[group.coordinates].view(-1, group.size)
        lengths = rows.norm(dim=1, keepdim=True)
        rows /= (lengths / norm).clamp(min=1.0)
    return clipped


@dataclasses.dataclass(frozen=True)
class ByKernel(ClippingRule):
    """Clipping of each kernel of a lot's mean gradient to C, with noise of z C^2, not z C.

    The released code multiplies the noise by C twice. The sum's threshold in the ledger
    is its `sensitivity`, which no contribution exceeds.
    """

    kind: ClassVar[str] = "by-kernel"
    finds_threshold: ClassVar[bool] = True

    threshold: float | None = parameter(
        None,
        ge=SMALLEST_THRESHOLD,
        le=LARGEST_THRESHOLD,
        doc="null: 2 C times the root of the number of kernels",
    )
    kernel_norm: float = parameter(
        0.01,
        ge=1e-10,
        le=1e10,
        doc="C of each kernel",
        paper="0.01 (DP-FNAS's released command)",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda rule, run: run.client_update.kind != "released-search-steps",
            "clipping.kind is by-kernel, but client_update.kind is"
            " {run.client_update.kind}: by-kernel is for released-search-steps",
        ),
        Rule(
            lambda rule, run: rule.groups != "all",
            "clipping.groups is {part.groups}, but by-kernel defines its own"
            " groups: set it to all",
        ),
        Rule(
            lambda rule, run: rule.threshold is not None,
            "clipping.threshold is {part.threshold:g}, but by-kernel computes it"
            " from the network: set it to null",
        ),
    )

    def sensitivity(self, kernel_count: int) -> float:
        """Return the largest change of a lot's clipped gradient by one record.

        It is the largest distance of two vectors of `kernel_count` clipped kernels.
        """
        return 2 * self.kernel_norm * math.sqrt(kernel_count)

    def claimed_ratio(self, sensitivity: float) -> float:
        """Return the ratio of `dpsum.clipping` for noise of deviation z C^2."""
        return sensitivity / self.kernel_norm**2


class ReleasedSearchSteps(SearchSteps):
    """`search-steps` as in the released code, for `reading: as-released`."""

    kind: Literal["released-search-steps"] = "released-search-steps"  # type: ignore[assignment]
    keeps_state = False  # optimisers follow the party's messages
    columns_are_released = True
    contributes_by_lot: ClassVar[bool] = True

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda update, run: run.clients.count != 1,
            "clients.count is {run.clients.count}, but the parties of DP-FNAS's"
            " released code each search a separate architecture: set it to 1",
        ),
    )

    def breaches(self, run: Run) -> tuple[Breach, ...]:
        breach = Breach(
            unit="record",
            refusal=(
                "client_update.kind is released-search-steps, which clips the mean"
                " gradient of a lot and leaves coordinates without noise, but each"
                " record is promised privacy: set it to search-steps, or reading to"
                " as-released"
            ),
            reason=(
                "the mean gradient of a lot is clipped and not each record's; 1x1"
                " convolutions and the gradient of the architecture on the validation"
                " records leave without noise"
            ),
        )
        return (breach,)

    def columns(self, run: Run) -> tuple[str, ...]:
        return tuple(
            column for column in super().columns(run) if column.startswith("entropy_")
        )

    def clients(self, setup: Setup) -> Clients:
        search = _Search(self, setup)
        records = sum(lots.size for lots in search.lots.values())
        return PartyClients(search.move, search.begin(), records)


class _Search:
    """Rounds of the single party of a run."""

    def __init__(self, update: ReleasedSearchSteps, setup: Setup) -> None:
        self._update = update
        run = setup.run
        self._run: Any = run  # its method has the settings of the architecture's noise
        self._net = net = setup.net
        self._held = setup.held
        self._public_columns = update.public_columns(run, net)
        self._rounds = run.participation.rounds
        self._weights = net.blocks["weights"]
        self._architecture = net.blocks["architecture"]
        self._kernels = noised_kernels(
            {name: net.shapes[name] for name in net.named_blocks["weights"]}
        )
        self._noised = torch.cat(
            [
                torch.arange(group.coordinates.start, group.coordinates.stop)
                for group in self._kernels
            ]
        )
        records = len(self._held.images[0])
        (released,) = setup.client_sums
        self._positions = dict[str, np.ndarray]()
        self.lots = dict[str, participation.RecordLots]()
        for name, half in update.halves.items():
            of_half = SumSpec(name=name, unit="record", observer="server", part=half)
            self._positions[name] = update.record_subset(
                of_half, seed=run.seed, client=0, records=records
            )
            self.lots[name] = update.lots(
                run, of_half, clients=1, records=len(self._positions[name])
            )
        rule = released.clipping
        assert isinstance(rule, ByKernel)  # `check` refuses others
        kernel_count = sum(group.count for group in self._kernels)
        self._kernel_norm = rule.kernel_norm
        spec = dataclasses.replace(
            released, denominator=1.0, stream_indices=("round", "client")
        )
        self._mechanism: Mechanism = setup.create_mechanism(
            spec.with_first_threshold(rule.sensitivity(kernel_count)),
            participation=self.lots[WEIGHTS],
            dimension=len(self._noised),
            holders=1,
        )

    def begin(self) -> dict[str, Any]:
        """Return the state of the optimisers before the first round."""
        start = torch.zeros(self._net.dimension)
        update = self._update
        return {
            WEIGHTS: update.weights.begin(start[self._weights]),
            ARCHITECTURE: update.architecture.begin(start[self._architecture]),
        }

    def move(self, model: torch.Tensor, index: int, state: dict[str, Any]) -> Row:
        """Move architecture and weights in place; return the row of the history."""
        training = self._lot(WEIGHTS, index)
        validation = self._lot(ARCHITECTURE, index)
        if len(training) and len(validation):
            along = self._architecture_gradient(
                model, training, validation, index, state[WEIGHTS]["velocity"]
            )
            self._update.architecture.step(
                model[self._architecture],
                along,
                state[ARCHITECTURE],
                index=index,
                rounds=self._rounds,
            )
        released = self._release_weights(model, training, index)
        self._update.weights.step(
            model[self._weights],
            released,
            state[WEIGHTS],
            index=index,
            rounds=self._rounds,
        )
        return {
            "clients": 1,
            "released_norm": float(released.norm()),
            "noise_multiplier": self._mechanism.noise_multiplier,
            "threshold": self._mechanism.states[0]["threshold"],
        } | self._public_columns(model)

    def _lot(self, name: str, index: int) -> np.ndarray:
        """Return the positions of a half's lot among all of the party's records."""
        return self._positions[name][self.lots[name].lot(index, 0, 0)]

    def _gradient(self, model: torch.Tensor, records: np.ndarray) -> torch.Tensor:
        """Return the gradient [d] of the mean loss over records."""
        weights = model.detach().requires_grad_()
        images = self._held.images[0][records]
        labels = self._held.labels[0][records]
        with torch.enable_grad():
            loss = self._net.losses(weights, images, labels).mean()
            (gradient,) = torch.autograd.grad(loss, weights)
        return gradient

    def _architecture_gradient(
        self,
        model: torch.Tensor,
        training: np.ndarray,
        validation: np.ndarray,
        index: int,
        velocity: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the direction of the architecture's step: dA - xi (h + R n)."""
        weights = self._weights
        architecture = self._architecture
        step = self._update.weights
        rate = step.schedule.rate(step.rate, index, self._rounds)
        virtual = model.clone()
        along = self._gradient(model, training)[weights] + step.decay * model[weights]
        if velocity is not None:
            assert isinstance(step.optimizer, Sgd)
            along = along + step.optimizer.momentum * velocity
        virtual[weights] -= rate * along
        at_virtual = self._gradient(virtual, validation)
        epsilon = DIFFERENCE / at_virtual[weights].norm()
        ends = []
        for sign in (1.0, -1.0):
            moved = model.clone()
            moved[weights] += sign * epsilon * at_virtual[weights]
            ends.append(self._gradient(moved, training)[architecture])
        difference = (ends[0] - ends[1]) / 2 * epsilon
        norm = self._run.architecture_clipping.threshold
        deviation = self._run.architecture_noise.multiplier * norm
        drawn = stream(self._run.stream_seed, "released-architecture-noise", index)
        noise = torch.from_numpy(drawn.standard_normal(len(difference))).float()
        return at_virtual[architecture] - rate * (difference + norm * deviation * noise)

    def _release_weights(
        self, model: torch.Tensor, training: np.ndarray, index: int
    ) -> torch.Tensor:
        """Return the gradient of the weights [weights] that the party sends."""
        gradient = torch.zeros(self._weights.stop - self._weights.start)
        if len(training):
            gradient = self._gradient(model, training)[self._weights]
        gradient = gradient * min(
            1.0, LARGEST_NORM / max(float(gradient.norm()), 1e-30)
        )
        clipped = clip_kernels(gradient, self._kernels, self._kernel_norm)
        total = self._mechanism.begin_round(index, holder=0)
        total.add(clipped[self._noised][None].numpy())
        clipped[self._noised] = torch.from_numpy(self._mechanism.finish(total)).float()
        self._mechanism.write(index)
        return clipped

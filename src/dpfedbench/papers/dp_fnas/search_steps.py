"""Steps of a search (DP-FNAS, Singh et al. 2020, Algorithm 1, first order): a step of
the weights, then one of the architecture.

    a step of W along the parties' sums over lots of their training halves;
    with the new W a step of A along their sums over lots of their validation halves.

A record is in one half, and so in one of the two sums. The halves are drawn at random,
independently of the records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from dpfedbench.config.part import setting
from dpfedbench.config.rules import Rule
from dpfedbench.lazy import np, torch
from dpfedbench.models.zoo.darts import CellModel
from dpfedbench.parts.optimizers.optimizer import Adam
from dpfedbench.parts.step_of_sum import StepOfSum
from dpfedbench.run import Run
from dpfedbench.training.client_updates.summed_steps import SummedUpdate
from dpfedbench.training.history import Row
from dpsum.randomness import stream
from dpsum.sums import SumSpec

if TYPE_CHECKING:
    from dpfedbench.models.net import Net

WEIGHTS = "weights-sum"
ARCHITECTURE = "architecture-sum"
_BLOCKS = {WEIGHTS: "weights", ARCHITECTURE: "architecture"}


class SearchSteps(SummedUpdate):
    """One step of the weights and one of the architecture in each round."""

    kind: Literal["search-steps"] = "search-steps"
    sends = WEIGHTS

    weights: StepOfSum = setting(StepOfSum(), doc="step of the weights, W")
    architecture: StepOfSum = setting(
        StepOfSum(rate=3e-4, optimizer=Adam()), doc="step of the architecture, A"
    )

    @property
    def halves(self) -> Mapping[str, str]:
        """Half of the records that each sum reads, by name, in a round's order."""
        return {WEIGHTS: "training half", ARCHITECTURE: "validation half"}

    @property
    def steps(self) -> Mapping[str, StepOfSum]:
        return {WEIGHTS: self.weights, ARCHITECTURE: self.architecture}

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda update, run: not isinstance(run.model, CellModel),
            "model.kind is {run.model.kind}, which has no architecture to search:"
            " set it to darts-search",
        ),
    )

    columns_are_released = True

    def columns(self, run: Run) -> tuple[str, ...]:
        assert isinstance(run.model, CellModel)  # `check` refuses others
        return (
            *(f"entropy_{kind}" for kind in run.model.space.kinds),
            *super().columns(run),
        )

    def block_of(self, sum_: SumSpec) -> str:
        return _BLOCKS[sum_.name]

    def record_subset(
        self, sum_: SumSpec, *, seed: int, client: int, records: int
    ) -> np.ndarray:
        half = records // 2
        order = stream(seed, "halves", client).permutation(records)
        return np.sort(order[:half] if sum_.name == WEIGHTS else order[half : 2 * half])

    def public_columns(self, run: Run, net: Net) -> Callable[[torch.Tensor], Row]:
        model = run.model
        architecture = net.blocks["architecture"]
        space = model.space if isinstance(model, CellModel) else None
        if space is None or space.size != architecture.stop - architecture.start:
            return lambda theta: {}  # an audit, which draws its coordinates at random
        return lambda theta: {
            f"entropy_{kind}": entropy
            for kind, entropy in space.entropy(theta[architecture].numpy()).items()
        }

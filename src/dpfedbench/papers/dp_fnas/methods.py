"""FNAS and DP-FNAS, the search (Algorithm 1), and the training of the found network
(Section 4).
"""

import dataclasses
from typing import Any

from dpfedbench.config.model_settings import ModelSettings
from dpfedbench.config.part import setting
from dpfedbench.config.sections import PartitionScheme, Task, Validation
from dpfedbench.errors import BenchError
from dpfedbench.models.zoo.darts import DartsCells, DartsSearch
from dpfedbench.papers.dp_fnas.released_search import ByKernel, ReleasedSearchSteps
from dpfedbench.papers.dp_fnas.search_steps import SearchSteps
from dpfedbench.papers.shared import PartyMethod
from dpfedbench.parts.augmentation import Augmentation
from dpfedbench.parts.budget import BudgetSettings
from dpfedbench.parts.optimizers.optimizer import Adam, Sgd
from dpfedbench.parts.partitions.fragments import Fragments
from dpfedbench.parts.schedules.schedule import Cosine
from dpfedbench.parts.step_of_sum import StepOfSum
from dpfedbench.training.client_updates.batch_steps import BatchSteps
from dpfedbench.training.client_updates.summed_steps import SummedSteps
from dpsum.accounting.claims import GDP_OF_HALVES
from dpsum.clipping import Constant
from dpsum.noise import Gaussian
from dpsum.participation import PoissonLots
from dpsum.sums import SumSpec

WEIGHT_STEP = StepOfSum(
    rate=0.025,
    optimizer=Sgd(momentum=0.9),
    schedule=Cosine(final_rate=0.001),
    decay=0.0003,
)
"""Step of the weights, at the rates of the released code."""

SEARCH = SearchSteps(
    parties="sum",
    weights=WEIGHT_STEP,
    architecture=StepOfSum(rate=0.0003, optimizer=Adam(), decay=0.001),
)
"""Steps of a search: Algorithm 1, at the rates of the released code."""


PRIVATE: dict[str, Any] = {
    "clipping": {"kind": "constant"},
    "noise": {"kind": "fixed"},
    "budget": {"profile": "proven"},
}
"""Defaults of the methods that claim privacy."""


class Parties(PartyMethod):
    """Federation of the paper (Section 4.1): one party, CIFAR-10."""

    dataset: str = "cifar-10"
    task: Task = Task(ways=10, shots=0)
    # (The sizes of tasks are for few-shot clients.)
    clients: PartitionScheme = Fragments(  # type: ignore[call-arg]  # its tag is partition
        count=1,
        fragments=50_000,
        examples_per_class=6,
        support_per_class=1,
        query_per_class=1,
    )
    validation: Validation = Validation(tasks=1000)


class Fnas(Parties):
    """FNAS: in each round two plain sums of each party, of the weights and of the
    architecture, and a step after each.

    It is Algorithm 1 without clipping and noise. With one party it is DARTS of first
    order (Liu et al. 2018), "vanilla NAS".
    """

    name = "fnas"
    title = "FNAS"
    paper = "dp-fnas"
    defaults = PartyMethod.defaults | {
        "client_update": {"kind": "search-steps"},
        "model": {"kind": "darts-search"},
    }

    # Section 4.1: cells of four nodes. The sizes of the network, of a lot and of the
    # training, and the steps are those of the released code.
    model: ModelSettings = DartsSearch(nodes=4, cells=8, filters=16, pooling=1)
    participation: PoissonLots = PoissonLots(lot=64, rounds=19_531)
    client_update: SearchSteps = SEARCH

    def party_sums(self) -> list[SumSpec]:
        return [
            SumSpec(
                name=name,
                unit="record",
                taken_by="client",
                observer="server",
                stream=name,
                part=half,
                added=True,
            )
            for name, half in self.client_update.halves.items()
        ]


class DpFnas(Fnas):
    """DP-FNAS: two private sums of each party a round, each over half its records."""

    name = "dp-fnas"
    title = "DP-FNAS"
    claims = {"poisson-lots": GDP_OF_HALVES}
    neutral = {
        "clipping": Constant(threshold=1.0),
        "architecture_clipping": Constant(threshold=0.1),
    }
    defaults = Fnas.defaults | PRIVATE

    # R_G and R_H are the values in the repository's command, and in the text.
    released = {
        "client_update": {"kind": "released-search-steps"},
        "clipping": {"kind": "by-kernel", "threshold": None, "kernel_norm": 0.01},
        "noise": {"kind": "fixed", "multiplier": 1.0},
        "architecture_clipping": {"kind": "constant", "threshold": 0.1},
        "architecture_noise": {"kind": "fixed", "multiplier": 1.0},
    }

    # Section 4.1: R_G = 0.01, R_H = 0.1 and variances of 1.
    client_update: SearchSteps | ReleasedSearchSteps = SEARCH
    clipping: Constant | ByKernel = setting(
        Constant(threshold=0.01), doc="clipping of weight gradients, R_G", paper="0.01"
    )
    noise: Gaussian = setting(
        Gaussian(), doc="noise of the weights' sum, sigma", paper="1"
    )
    architecture_clipping: Constant = setting(
        Constant(threshold=0.1),
        doc="clipping of the architecture's gradients, R_H",
        paper="0.1",
    )
    architecture_noise: Gaussian = setting(
        Gaussian(), doc="noise of the architecture's sum, tau", paper="1"
    )
    budget: BudgetSettings = BudgetSettings(delta=1e-5, profile="proven")

    def check(self) -> None:
        super().check()
        by_kernel = isinstance(self.clipping, ByKernel)
        if isinstance(self.client_update, ReleasedSearchSteps) and not by_kernel:
            raise BenchError(
                f"clipping.kind is {self.clipping.kind}, but client_update.kind"
                " released-search-steps clips by kernel: set clipping.kind to by-kernel"
            )

    def party_sums(self) -> list[SumSpec]:
        weights, architecture = super().party_sums()
        weights_sum = dataclasses.replace(
            weights, clipping=self.clipping, noise=self.noise, budget=self.budget
        )
        if isinstance(self.client_update, ReleasedSearchSteps):
            # It is over one clipped mean gradient a lot, and noised kernels alone.
            return [weights_sum]
        architecture_sum = dataclasses.replace(
            architecture,
            clipping=self.architecture_clipping,
            noise=self.architecture_noise,
            budget=self.budget,
        )
        return [weights_sum, architecture_sum]


class Cells(Parties):
    """Training of known cells: in each round a plain sum over a lot of each party, and
    a step along the total. Not private.

    `batch-steps` trains the network as DARTS does, with batch normalisation, augmented
    images, drop path and a second classifier. Then no sum over records is taken.

    Section 4.1: "All 50000 images in the training set were used for training the
    composed architecture", "following (Liu et al., 2018)" (Section 4): 20 cells of 36
    filters and 600 epochs. The lot, the second classifier's weight, cutout and drop
    path are those of the released configuration; batch normalisation, random crop and
    flip are those of DARTS.
    """

    name = "cells"
    title = "Known cells, not private"
    paper = "dp-fnas"
    defaults = PartyMethod.defaults | {"model": {"kind": "darts-cells"}}

    model: ModelSettings = DartsCells(
        nodes=4,
        cells=20,
        filters=36,
        pooling=1,
        batch_normalisation=True,
        auxiliary=True,
    )
    participation: PoissonLots = PoissonLots(lot=96, rounds=312_500)
    # 0.473 is the mean of CIFAR-10's published channel means, to which DARTS blanks.
    client_update: SummedSteps | BatchSteps = BatchSteps(
        weights=WEIGHT_STEP,
        augmentation=Augmentation(crop=4, flip=True, cutout=16, cutout_value=0.473),
        drop_path=0.2,
        auxiliary=0.4,
    )

    def sums(self) -> list[SumSpec]:
        if isinstance(self.client_update, BatchSteps):
            return [SumSpec(name="model", unit="client", observer="everyone")]
        return super().sums()

    def party_sums(self) -> list[SumSpec]:
        gradient_sum = SumSpec(
            name=self.client_update.sends,
            unit="record",
            taken_by="client",
            observer="server",
            added=True,
        )
        return [gradient_sum]


class DpCells(Cells):
    """Training of known cells by DP-SGD (Abadi et al. 2016): in each round a private
    sum of each party, over single records.

    Each party takes a Poisson lot of its records, clips each record's gradient to C,
    adds them up and adds N(0, z^2 C^2 I). The server steps along the total of the
    parties' sums. Where a search found the cells, its releases read the same records,
    so that the account covers both together.
    """

    name = "dp-cells"
    title = "Known cells, DP-SGD"
    neutral = {"clipping": Constant(threshold=1.0)}
    defaults = Cells.defaults | PRIVATE

    # The paper trains without privacy. Under privacy there is no augmentation, since
    # each record's gradient is its own, and normalisation is within the record. The
    # noise, the threshold and the budget are those of the search.
    model: ModelSettings = DartsCells(nodes=4, cells=20, filters=36, pooling=1)
    client_update: SummedSteps = SummedSteps(parties="sum", weights=WEIGHT_STEP)
    clipping: Constant = Constant(threshold=0.01)
    noise: Gaussian = Gaussian()
    budget: BudgetSettings = BudgetSettings(delta=1e-5, profile="proven")

    def party_sums(self) -> list[SumSpec]:
        (gradient_sum,) = super().party_sums()
        private_sum = dataclasses.replace(
            gradient_sum, clipping=self.clipping, noise=self.noise, budget=self.budget
        )
        return [private_sum]

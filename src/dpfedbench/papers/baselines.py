"""Baselines beside meta-learning: no training, public data alone, and pre-training on
all images at once.

Pre-training ("transfer learning" in DP-FedMeta, Section 6.3; "pre-training" in DP-MAML,
Section 6.5, after Donahue et al. 2014). One holder has all images of the training
classes as records, labelled by their position among these classes. In each round it
takes a Poisson lot, and a step of Adam along the mean gradient of the network with one
output for each training class. The meta-test replaces the last layer by a new one with
zero weights, and adapts the whole network to the task's support set. Normalisation is
within each image, as `dp-transfer` requires.
"""

from typing import Any

from dpfedbench.config.initial_weights import RandomInitial
from dpfedbench.errors import BenchError
from dpfedbench.method import Method
from dpfedbench.papers.shared import LocalRecordMethod
from dpfedbench.parts.server.server_step import Average
from dpfedbench.training.client_updates.local_steps import LocalSteps
from dpsum.accounting.claims import WHOLE_ORDERS
from dpsum.participation import PoissonLots
from dpsum.sums import SumSpec


class RandomInit(Method):
    """Random initialisation: the meta-model before training, a floor of all tables."""

    name = "random"
    title = "Random initialisation"
    paper = "dp-fedmeta"
    trained = False

    initial: RandomInitial = RandomInitial()


class PublicAlone(Method):
    """Public data alone: a model trained on public data and tested like any other,
    without access to private data.

    The weights come from another run or a file (`initial`), which have to be public.
    That run is trained on its own data set; this run is its model under the meta-test
    of the private data set. The benefit of a private method is its gain over this
    baseline.
    """

    name = "public-alone"
    title = "Public data alone, ε = 0"
    paper = "dp-fedmeta"
    trained = False

    def check(self) -> None:
        super().check()
        if isinstance(self.initial, RandomInitial) or not self.initial.public_for(self):
            raise BenchError(
                f"initial.kind is {self.initial.kind}, but public-alone tests weights"
                " trained on public data: set initial to a run or a file, and"
                " initial.public to true"
            )


PRE_TRAINING: dict[str, Any] = {
    # The sizes of few-shot clients are not used. They are fixed here, so that tasks
    # that differ in them share one training.
    "clients": {
        "count": 1,
        "partition": "fragments",
        "fragments": 1,
        "examples_per_class": 2,
        "support_per_class": 1,
        "query_per_class": 1,
    },
    "model": {"normalisation": "record"},
    "client_update": {
        "kind": "local-steps",
        "inner_steps": 1,
        "inner_rate": 0.004,
        "optimizer": "adam",
        "keep_state": True,
    },
    "server": {"kind": "average"},
    "validation": {"every": 0},
    "evaluation": {"every": 0},
}


class Transfer(Method):
    """Transfer learning: in each round a step of the holder's optimiser along the mean
    gradient of a lot. Not private.
    """

    name = "transfer"
    title = "Transfer learning"
    paper = "dp-fedmeta"
    pretrains = True
    defaults = PRE_TRAINING | {
        "participation": {"kind": "poisson-lots", "lot": 100, "rounds": 150}
    }

    participation: PoissonLots = PoissonLots()
    client_update: LocalSteps = LocalSteps()
    server: Average = Average()

    def sums(self) -> list[SumSpec]:
        return [
            SumSpec(
                name=self.client_update.sends,
                unit="record",
                taken_by="client",
                observer="everyone",
            ),
            SumSpec(name="model-mean", unit="record", observer="everyone"),
        ]


class DpTransfer(LocalRecordMethod):
    """Pre-training by DP-SGD (Abadi et al. 2016), the private competitor of DP-AGR and
    DP-MAML: one private sum for each lot.

    In each round the holder

    1. takes a lot: each image with probability L/n, independently of all others;
    2. clips each image's gradient to C in L2 norm over all weights, adds them up and
       adds N(0, z^2 C^2 I);
    3. takes a step of Adam along that sum / L.

    The protected unit is an image, against everyone who receives the model. The
    accountant assumes Poisson lots. z = 6 and L = 2,000 are the papers'; they do not
    state C.
    """

    name = "dp-transfer"
    title = "DP transfer learning"
    paper = "dp-fedmeta"
    claims = {"poisson-lots": WHOLE_ORDERS}
    pretrains = True
    observer = "everyone"
    defaults = PRE_TRAINING | {
        "participation": {"kind": "poisson-lots", "lot": 500, "rounds": 30},
        "clipping": {"kind": "constant", "threshold": 1.0},
        "noise": {"kind": "fixed", "multiplier": 6.0},
        "budget": {"epsilon": None, "delta": 1.0e-5},
    }

"""Adap DP-FL (Fu, Chen and Han 2022): record-level privacy with an adaptive threshold
and adaptive noise.

Algorithm 1. In each round, each client

1. takes a Poisson lot of its records (line 7) and their gradients (line 8);
2. clips each gradient to its C in L2 norm over all weights (line 11), adds them up and
   adds N(0, z^2 C^2 I) (line 12);
3. takes a step of its own optimiser along the sum / L (line 14; Section V: Adam);
4. sets its next C to alpha times a mean norm (eq. 6 to 8).

The server averages the models (line 23), and multiplies z by beta after three
consecutive decreases of a public validation loss (line 24). A client stops before its
budget is exceeded (line 17 stops after). All clients have the same account, so that all
stop in the same round.

Step 4 can be read in three ways, which are three clipping rules of `dpsum.clipping`:

| rule | mean norm of | privacy |
|---|---|---|
| `NoisedMeanNorm` | the clipped gradients, noised | one more release a lot, which the paper does not count |
| `NormOfRelease` | the released vector | post-processing |
| `MeanOfRawNorms` | the gradients before clipping | none |

`training.client_updates.local_steps` has the local steps.

The values of the classes are those of Section V for MNIST, so that `AdapDpFl()` is the
paper's run. For Fashion-MNIST the paper has the rate 0.001, alpha = 0.01, z from 4 and
beta = 0.9998.
"""

from dpfedbench.config.model_settings import ModelSettings
from dpfedbench.config.sections import Evaluation, PartitionScheme, Task, Validation
from dpfedbench.method import Method
from dpfedbench.models.zoo.cnn import CnnModel
from dpfedbench.papers.shared import LocalRecordMethod
from dpfedbench.parts.budget import BudgetSettings
from dpfedbench.parts.optimizers.optimizer import Adam
from dpfedbench.parts.partitions.fragments import Fragments
from dpfedbench.parts.server.server_step import Average
from dpfedbench.training.client_updates.local_steps import LocalSteps
from dpsum.accounting.claims import WHOLE_ORDERS
from dpsum.clipping import Constant, LotRule, NormOfRelease
from dpsum.noise import Decaying, Gaussian
from dpsum.participation import PoissonLots


class Silos(Method):
    """Ten clients with records of their own, in which all methods of Section V train."""

    dataset: str = "mnist"
    task: Task = Task(ways=10, shots=0)
    # Section V-A: 40 of 400 fragments, of records sorted by label, for each client.
    # (The sizes of tasks are for few-shot clients.)
    clients: PartitionScheme = Fragments(  # type: ignore[call-arg]  # its tag is partition
        count=10,
        fragments=400,
        examples_per_class=6,
        support_per_class=1,
        query_per_class=1,
    )
    # Section V-A. Whether pixels are normalised is not stated.
    model: ModelSettings = CnnModel(pixel_mean=0.1307, pixel_deviation=0.3081)
    # Section V-A: L = 78. Training ends at epsilon = 2, by Theorem 1 after at most
    # 33,495 rounds (z = 6).
    participation: PoissonLots = PoissonLots(lot=78, rounds=34_000)
    # Section V-A: one local round; Adam at 0.002. Whether its state is kept is not
    # stated.
    client_update: LocalSteps = LocalSteps(
        inner_steps=1, inner_rate=0.002, optimizer=Adam(), keep_state=True
    )
    server: Average = Average()  # Algorithm 1, line 23
    # The number of records of the validation loss is not stated.
    validation: Validation = Validation(tasks=1000)
    evaluation: Evaluation = Evaluation(every=100)


class AdapDpFl(Silos, LocalRecordMethod):
    """Adap DP-FL: each client takes private sums over its records, with a threshold of
    its own.
    """

    name = "adap-dp-fl"
    title = "Adap DP-FL"
    paper = "adap-dp-fl"
    version = "3"
    claims = {"poisson-lots": WHOLE_ORDERS}

    # Eq. 6 to 8 and Section V-B: alpha = 1. The threshold of the first lot is found on
    # random data (Section IV-A).
    clipping: LotRule = NormOfRelease(threshold=None, factor=1.0)
    # Section V-B: z from 6, beta = 0.9999. Section IV-B: after three decreases in a row.
    noise: Gaussian | Decaying = Decaying(multiplier=6.0, decay=0.9999, falls=3)
    validation: Validation = Validation(every=1, tasks=1000)  # Algorithm 1, line 24
    # Section V-B: epsilon = 2. Section III-B: delta = 1e-5.
    budget: BudgetSettings = BudgetSettings(epsilon=2.0, delta=1e-5)


class DpFl(Silos, LocalRecordMethod):
    """Baseline of the paper (Zheng et al. 2021, in Section V): one threshold and one
    noise scale for all clients and rounds.

    It is local DP-FedAvg: each client trusts only itself.
    """

    name = "dp-fl"
    title = "DP-FL, constant clipping and noise"
    paper = "adap-dp-fl"
    version = "2"
    claims = {"poisson-lots": WHOLE_ORDERS}

    clipping: Constant = Constant(threshold=1.0)  # Section V-B
    noise: Gaussian = Gaussian(multiplier=3.0)  # Section V-B: 3, 4 and 6
    budget: BudgetSettings = BudgetSettings(epsilon=2.0, delta=1e-5)

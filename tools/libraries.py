"""What other libraries claim and what holds: runs of the real libraries at their own tutorials' settings, as a table.

    python tools/libraries.py run flower      # in an environment that has flwr[dp] 1.42.0: docs/libraries/flower.json
    python tools/libraries.py run pfl         # pfl 0.6.0 and torch
    python tools/libraries.py run opacus      # opacus 1.6.0 and torch
    python tools/libraries.py table           # docs/libraries.md, of all of these files

Data and models are small stand-ins, which no epsilon depends on; samplers, thresholds, noise, rounds and accountants
are those of the tutorial or example that a row names. The runs draw from the operating system or from the library's own
generators, so that thresholds which follow the data, and what the audits show, differ from run to run.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
FOLDER, PAGE = ROOT / "docs" / "libraries", ROOT / "docs" / "libraries.md"

CALLS = 200
"""Calls of each attack: an audit of a minute."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table.

    Attributes:
        what: library, mechanism and settings.
        source: where the settings are from.
        claimed: epsilon that the library says; None: none.
        holds: its high end; infinity where nothing finite is known.
        audited: a lower bound; None where no audit was made.
        delta: of all three.
        right: whether the claim is of what ran and at least what holds.
        why: why they differ, or that they do not.
        quote: what the library documents of it; "" where nothing.
    """

    what: str
    source: str
    claimed: float | None
    holds: float
    audited: float | None
    delta: float
    right: bool
    why: str
    quote: str = ""


def _row(watched: Any, delta: float, *, audit: bool = True, profile: str = "holds", **said: Any) -> Row:
    account = watched.account(delta)
    claimed = account.profiles.get("as_claimed")
    holds = account.profiles[profile].epsilon_high
    shown = watched.audit(delta, calls=CALLS).epsilon if audit else None
    number = None if claimed is None else claimed.epsilon_high
    right = number is not None and number >= holds - 1e-2
    return Row(claimed=number, holds=holds, audited=shown, delta=delta, **{"right": right} | said)


# Flower


def flower(folder: Path) -> Iterator[Row]:
    """Flower's wrappers at the settings of its example fl-dp-sa: 20 of 100 clients, three rounds, C = 10."""
    import logging

    import numpy as np
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
    from flwr.serverapp import strategy as strategies
    from flwr.supercore.privacy_accounting import NeighboringRelation, PrivacyConfig, SamplingMethod
    from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

    from dpsum.adapters.flower import watch, watch_mod
    from dpsum.adapters.flower_nodes import InProcess

    logging.getLogger("flwr").setLevel(logging.ERROR)
    clients, cohort, rounds, delta = 100, 20, 3, 1e-5
    start = ArrayRecord({"w": Array(np.zeros((50, 10), np.float32)), "b": Array(np.zeros(10, np.float32))})
    source = (
        "settings of examples/fl-dp-sa, flwr.serverapp's strategies: z 0.2, threshold 10, 20 of 100 clients, 3 rounds"
    )

    def nodes(*mods: Any, examples: Callable[[int], int] = lambda number: 400) -> InProcess:
        app = ClientApp()

        @app.train(mods=list(mods))
        def train(message: Message, context: Any) -> Message:
            draw, number = np.random.default_rng(context.node_id), context.node_config["partition-id"]
            arrays = {
                key: Array((one.numpy() + draw.normal(size=one.numpy().shape)).astype(np.float32))
                for key, one in message.content["arrays"].items()
            }
            metrics = MetricRecord({"num-examples": examples(number), "train_loss": 0.5})
            return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

        return InProcess(app, {1000 + number: {"partition-id": number} for number in range(clients)})

    def fed_avg(fraction: float = cohort / clients) -> Any:
        return strategies.FedAvg(fraction_train=fraction, fraction_evaluate=0.0)

    def run(name: str, strategy: Any, grid: InProcess, **how: Any) -> Any:
        watched = watch(strategy, folder / f"{name}.jsonl", **{"metrics": "kept"} | how)
        strategy.start(grid, start, num_rounds=rounds)
        return watched

    strategy = strategies.DifferentialPrivacyClientSideFixedClipping(fed_avg(), 0.2, 10.0, cohort)
    yield _row(
        run("fixed", strategy, nodes(fixedclipping_mod)), delta,
        what="Flower, fixed clipping at the client", source=source,
        why="No ε is said. Equal weights: the noise is as documented, and cohorts are drawn without replacement; "
        "z = 0.2 is little noise.",
        quote="A value of 1.0 or higher is recommended for strong privacy.",
    )  # fmt: skip

    config = PrivacyConfig(delta, clients, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
    strategy = strategies.DifferentialPrivacyServerSideFixedClipping(
        fed_avg(), 1.0, 10.0, cohort, accountant=RdpAccountant(config)
    )
    yield _row(
        run("accountant", strategy, nodes(), cohorts="known"), delta,
        what="Flower, fixed clipping at the server, its accountant",
        source="the same with noise multiplier 1.0, the least that is recommended",
        why="Right: equal weights are enforced and no amplification is claimed, so that it holds whoever knows the "
        "cohorts. The rest is the Renyi conversion.",
        quote="Training and evaluation metrics are not included.",
    )  # fmt: skip

    sizes = [int(size) for size in np.geomspace(40, 4000, clients)]
    strategy = strategies.DifferentialPrivacyServerSideFixedClipping(fed_avg(), 1.0, 10.0, cohort)
    uneven = run("uneven", strategy, nodes(examples=lambda number: sizes[number]), cohorts="known")
    yield _row(
        uneven, delta, audit=False,
        what="Flower, fixed clipping at the server, clients of 40 to 4,000 examples",
        source="the same without an accountant; sizes of our own",
        why="No ε is said. FedAvg weighs by examples and the noise is of equal weights: the heaviest client of a "
        "cohort moves the mean by several times C / 20.",
        quote="Accounted mode requires no-amplification accounting and uniform FedAvg aggregation.",
    )  # fmt: skip

    strategy = strategies.DifferentialPrivacyServerSideAdaptiveClipping(fed_avg(), 1.0, cohort)
    yield _row(
        run("adaptive", strategy, nodes()), delta,
        what="Flower, adaptive clipping at the server",
        source="the same with noise multiplier 1.0 and Flower's defaults: first threshold 0.1, quantile 0.5, rate 0.2",
        why="No ε is said. The threshold moves before the noise is added, so that updates clipped to C have noise in "
        "proportion to the next C; where it falls that is too little. What holds is of the noise as it ran.",
    )  # fmt: skip

    strategy = strategies.DifferentialPrivacyClientSideAdaptiveClipping(fed_avg(), 1.0, cohort)
    yield _row(
        run("bits", strategy, nodes(adaptiveclipping_mod), metrics="released"), delta, audit=False,
        what="Flower, adaptive clipping at the client",
        source="the same",
        why="No ε is said. The bits that tell who was clipped are averaged with the other metrics and returned without "
        "noise, beside the noisy count of the same bits.",
    )  # fmt: skip

    epsilon = 1.0
    mod = watch_mod(LocalDpMod(1.0, 1.0, epsilon, delta), folder / "local", rounds=rounds, metrics="kept")
    fed_avg(1.0).start(nodes(mod), start, num_rounds=rounds)
    yield _row(
        mod.of(1000), delta, audit=False, profile="replace_one",
        what="Flower, LocalDpMod: clip 1, sensitivity 1, ε 1, three rounds",
        source="how-to-use-differential-privacy; the numbers are ours",
        why="The ε is of one message, and a client sends three. Sensitivity 1 is that of an update against none; of "
        "one update against another, which local privacy is about, it is twice the threshold.",
        quote="sensitivity: The sensitivity of the client model.",
    )  # fmt: skip


# pfl-research


def pfl(folder: Path) -> Iterator[Row]:
    """pfl's mechanisms at the settings of its tutorial on differential privacy and of its CIFAR10 benchmark."""
    import os

    import numpy as np
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import ModelHyperParams
    from pfl.internal.ops import pytorch_ops
    from pfl.internal.ops.selector import get_default_framework_module, set_framework_module
    from pfl.metrics import Metrics
    from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism, PLDPrivacyAccountant
    from pfl.privacy.adaptive_clipping import AdaptiveClippingGaussianMechanism
    from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism
    from pfl.stats import MappedVectorStatistics

    from dpsum.accounting.gaussian import gaussian_epsilon
    from dpsum.adapters.pfl import watch

    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"
    set_framework_module(pytorch_ops)
    os.chdir(folder)
    row = get_default_framework_module().to_tensor(np.full(50, 10.0))

    class Model:
        def apply_model_update(self, statistics: Any) -> Any:
            return self, Metrics()

    class Users(FederatedAveraging):  # type: ignore[type-arg]
        def simulate_one_user(self, model: Any, user_dataset: Any, central_context: Any) -> Any:
            return MappedVectorStatistics({"row": row.clone()}), Metrics()

    def run(name: str, mechanism: Any, *, users: int, cohort: int, rounds: int, sampler: str) -> Any:
        data = FederatedDataset(
            lambda user: Dataset((np.zeros(1),), user_id=user), get_user_sampler(sampler, range(users))
        )
        backend = SimulatedBackend(data, data, postprocessors=[WeightByUser(), mechanism])
        watched = watch(backend, folder / f"{name}.jsonl", rounds=rounds, users=users, metrics="kept")
        params = NNAlgorithmParams(rounds, rounds + 1, cohort, None)
        Users().run(params, backend, Model(), ModelHyperParams(), send_metrics_to_platform=False)
        return watched

    def accountant(rounds: int, rate: float, delta: float, scale: float = 1.0) -> PLDPrivacyAccountant:
        return PLDPrivacyAccountant(
            num_compositions=rounds, sampling_probability=rate, mechanism="gaussian", epsilon=2.0, delta=delta,
            noise_scale=scale,
        )  # fmt: skip

    tutorial = "tutorial on differential privacy: ε 2, δ 1e-8, cohorts of 100 of 1,000,000, 100 rounds, threshold 0.5"
    large = {"users": 1_000_000, "cohort": 100, "rounds": 100}

    single = GaussianMechanism.construct_single_iteration(2.0, 1.0, 1e-8)
    central = CentrallyAppliedPrivacyMechanism(single)
    watched = run("single", central, users=100, cohort=100, rounds=1, sampler="minimize_reuse")
    yield dataclasses.replace(
        _row(
            watched, 1e-8,
            what="pfl, one iteration of the Gaussian mechanism",
            source="the tutorial's first: construct_single_iteration, ε 1, δ 1e-8, threshold 2, 100 users",
            why="Right: noise is found by the exact trade-off of one Gaussian.",
            quote="The differential privacy guarantee assumes that each user participates in the training at most "
            "once.",
        ),
        claimed=1.0, right=True,
    )  # fmt: skip

    mechanism = GaussianMechanism.from_privacy_accountant(accountant(100, 1e-4, 1e-8), 0.5)
    yield _row(
        run("minimize_reuse", CentrallyAppliedPrivacyMechanism(mechanism), sampler="minimize_reuse", **large), 1e-8,
        what="pfl, Gaussian mechanism by its PLD accountant, user sampler minimize_reuse", source=tutorial,
        why="The account is of Poisson sampling at 1e-4. The users are gone through in a fixed order, which samples "
        "nothing: each is in one Gaussian release, whose round can be known.",
        quote="Maximum probability of sampling each entity being privatized.",
    )  # fmt: skip

    made: list[PLDPrivacyAccountant] = []

    def make(count: int) -> PLDPrivacyAccountant:
        made.append(accountant(count, 1e-4, 1e-8))
        return made[-1]

    banded = BandedMatrixFactorizationMechanism(0.5, 100, 10_000, make)
    longest = float(np.linalg.norm(banded.query_matrix, axis=0).max())
    one = gaussian_epsilon(float(banded.relative_noise_stddev), 1e-8)
    watched = run("banded", CentrallyAppliedPrivacyMechanism(banded), sampler="minimize_reuse", **large)
    yield dataclasses.replace(
        _row(
            watched, 1e-8, audit=False,
            what="pfl, banded matrix factorisation, user sampler minimize_reuse",
            source=f"{tutorial}; minimum separation 10,000",
            why=f"The query matrix is the lower Cholesky factor L of X = L Lᵀ where X = CᵀC was optimised: its rows "
            f"have norm 1 and its columns up to {longest:.2f}, by which one user moves more than accounted for. And "
            "the account takes Poisson sampling at 1e-4, where who comes when is fixed: that alone would make it "
            f"{one:.1f}.",
            quote="for MF-DP-FTRL a strict client participation schema must be adhered to",
        ),
        claimed=made[-1].epsilon, right=False,
    )  # fmt: skip

    mechanism = GaussianMechanism.from_privacy_accountant(accountant(1500, 1e-3, 1e-6, 50 / 1000), 0.4)
    central = CentrallyAppliedPrivacyMechanism(mechanism)
    yield _row(
        run("scaled", central, users=1000, cohort=50, rounds=1500, sampler="random"), 1e-6, audit=False,
        what="pfl, noise_scale 0.05: a cohort of 50 that simulates one of 1,000",
        source="benchmarks/image_classification: ε 2, δ 1e-6, 1,500 rounds, population 1,000,000; 1,000 users",
        why="Documented: the claim is of the deployment that is simulated, 20 times the noise and 1,000,000 users; "
        "what holds is of the 1,000 users whose data were used.",
        quote="your results will only be valid if running with cohort_size=1000 outside simulation",
    )  # fmt: skip

    adaptive = AdaptiveClippingGaussianMechanism.construct_from_privacy_accountant(
        accountant(100, 1e-4, 1e-8), 0.5, 10.0, 0.1
    )
    yield _row(
        run("adaptive", adaptive, sampler="minimize_reuse", **large), 1e-8,
        what="pfl, adaptive clipping, user sampler minimize_reuse",
        source=f"{tutorial}; noise of the bit 0.1 x cohort, quantile 0.1",
        why="Adaptive clipping itself is right: update and bit are one vector whose norm the overall bound covers. The "
        "sampler is another than accounted for, as above.",
    )  # fmt: skip

    mechanism = GaussianMechanism.from_privacy_accountant(accountant(100, 1e-4, 1e-8), 0.5)
    yield _row(
        run("random", CentrallyAppliedPrivacyMechanism(mechanism), sampler="random", **large), 1e-8,
        what="pfl, Gaussian mechanism by its PLD accountant, user sampler random", source=tutorial,
        why="The account is of Poisson sampling at 1e-4. A cohort is 100 draws with replacement: whoever comes takes "
        "another's place, and may come twice. Neighbours of the account have one user more or less.",
        quote="Maximum probability of sampling each entity being privatized.",
    )  # fmt: skip


# Opacus


def opacus(folder: Path) -> Iterator[Row]:
    """Opacus at the settings of its MNIST example."""
    import torch
    from opacus import PrivacyEngine

    from dpsum.adapters.opacus import watch

    torch.set_num_threads(1)
    epochs, delta = 10, 1e-5
    source = "examples/mnist.py: batches of 64 of 60,000, noise multiplier 1.0, threshold 1.0, 10 epochs"
    data = torch.utils.data.TensorDataset(torch.randn(60_000, 4), torch.randint(0, 2, (60_000,)))
    for poisson, why in (
        (True, "Right: batches are Poisson samples, and the accountant allows itself an error of 0.01."),
        (
            False,
            "With poisson_sampling=False the loader shuffles and cuts each epoch into batches, and the account stays "
            "that of Poisson samples. Of shuffled batches what is proved is one Gaussian release an epoch.",
        ),
    ):
        model = torch.nn.Linear(4, 2)
        optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
        engine = PrivacyEngine()
        module, optimizer, loader = engine.make_private(
            module=model, optimizer=optimizer, noise_multiplier=1.0, max_grad_norm=1.0, poisson_sampling=poisson,
            data_loader=torch.utils.data.DataLoader(data, batch_size=64, shuffle=True),
        )  # fmt: skip
        watched = watch(engine, module, optimizer, loader, epochs=epochs, ledger=folder / f"opacus-{poisson}.jsonl")
        for _ in range(epochs):
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss(module(inputs), labels).backward()
                optimizer.step()
        yield _row(
            watched, delta, audit=poisson, what=f"Opacus, poisson_sampling={poisson}", source=source, why=why,
            quote="" if poisson else "Setting ``False`` will leave provided data_loader unchanged. Technically this "
            "doesn't fit the assumptions made by privacy accounting mechanism, but it can be a good approximation when "
            "using Poisson sampling is unfeasible.",
        )  # fmt: skip


_LIBRARIES: dict[str, tuple[str, Callable[[Path], Iterator[Row]]]] = {
    "flower": ("flwr", flower), "opacus": ("opacus", opacus), "pfl": ("pfl", pfl),
}  # fmt: skip


def run(name: str) -> None:
    """Make a library's rows, in this process, and write them down."""
    package, rows = _LIBRARIES[name]
    found = []
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for row in rows(Path(folder)):
            print(f"{row.what}: claimed {row.claimed}, holds {row.holds:.4g}, audited {row.audited}", flush=True)
            found.append({key: _plain(value) for key, value in dataclasses.asdict(row).items()})
            told = {"package": package, "version": importlib.metadata.version(package), "rows": found}
            text = json.dumps(told, indent=1, ensure_ascii=False) + "\n"
            (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isinf(value) else value


def table() -> str:
    """The page, of what the runs wrote."""
    lines, quotes = [], []
    for path in sorted(FOLDER.glob("*.json")):
        told = json.loads(path.read_text(encoding="utf-8"))
        for row in told["rows"]:
            claimed = "none said" if row["claimed"] is None else _number(row["claimed"])
            audited = "–" if row["audited"] is None else f"≥ {_number(row['audited'])}"
            note = ""
            if row["quote"]:
                quotes.append(f"{len(quotes) + 1}. {row['what']}: “{row['quote']}”")
                note = f" [{len(quotes)}]"
            holds = "nothing finite" if row["holds"] is None else _number(row["holds"])
            lines.append(
                f"| {row['what']} ({told['package']} {told['version']})<br>{row['source']} | {claimed} | {holds} | "
                f"{audited} | {row['delta']:g} | {row['why']}{note} |"
            )
    return _PAGE.format(lines="\n".join(lines), quotes="\n".join(quotes))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}" if value < 1 else f"{value:.2f}"


_PAGE = """# What libraries claim and what holds

Each row is a run of the library itself, from the package index, watched by its adapter of dpsum
([check your own](check-your-own.md)). *Claimed* is what the library's own accountant says of it, *holds* the proved
upper end of what ran, *audited* a lower bound by attacks on the code that clips, adds up and noises, at 95 %
confidence (not of the sampling, which the ledger tells). Data and models are small random stand-ins, which no ε
depends on; samplers, thresholds, noise, rounds and accountants are those of the tutorial that a row names. Where a
library is right the row says so. Where it documents an assumption that the run breaks, or that explains the number, the
note quotes it.

What holds is of the models alone: metrics that a library shows beside them without noise are taken to stay with the
server, but for the row that says otherwise.

| run | claimed ε | holds ε | audited ε | δ | why they differ |
|---|---|---|---|---|---|
{lines}

What the libraries document:

{quotes}

Made by `python tools/libraries.py run flower` (and `pfl`, `opacus`: each in an environment that has it), then
`python tools/libraries.py table`.
"""


def main(arguments: list[str]) -> int:
    """Run what was asked for; 2 where it was not understood."""
    if arguments == ["table"]:
        PAGE.write_text(table(), encoding="utf-8")
        return 0
    if arguments[:1] == ["run"] and len(arguments) == 2 and arguments[1] in _LIBRARIES:
        run(arguments[1])
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

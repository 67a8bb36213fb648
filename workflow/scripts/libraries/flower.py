"""Flower's wrappers at the settings of its example fl-dp-sa: 20 of 100 clients, three
rounds, threshold 10.
"""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PACKAGE = "flwr"


def runs(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield runs of Flower's four wrappers and of its local mod.

    One wrapper runs twice, the second time with clients of unequal sizes.
    """
    import numpy as np
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
    from flwr.serverapp import (
        NeighboringRelation,
        PrivacyConfig,
        RdpAccountant,
        SamplingMethod,
    )
    from flwr.serverapp import strategy as strategies

    from dpwatch.adapters.flower import watch, watch_mod
    from dpwatch.adapters.flower_nodes import InProcess

    logging.getLogger("flwr").setLevel(logging.ERROR)
    clients = 100
    cohort = 20
    rounds = 3
    delta = 1e-5
    initial_arrays = ArrayRecord(
        {
            "w": Array(np.zeros((50, 10), np.float32)),
            "b": Array(np.zeros(10, np.float32)),
        }
    )

    def add_draws(values: np.ndarray, rng: np.random.Generator) -> Array:
        return Array((values + rng.normal(size=values.shape)).astype(np.float32))

    def make_nodes(
        *mods: Any, examples: Callable[[int], int] = lambda number: 400
    ) -> InProcess:
        app = ClientApp()

        @app.train(mods=list(mods))
        def train(message: Message, context: Any) -> Message:
            rng = np.random.default_rng(context.node_id)
            number = context.node_config["partition-id"]
            arrays = {
                key: add_draws(array.numpy(), rng)
                for key, array in message.content["arrays"].items()
            }
            metrics = MetricRecord(
                {"num-examples": examples(number), "train_loss": 0.5}
            )
            return Message(
                RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}),
                reply_to=message,
            )

        return InProcess(
            app, {1000 + number: {"partition-id": number} for number in range(clients)}
        )

    def make_fed_avg(fraction: float = cohort / clients) -> Any:
        return strategies.FedAvg(fraction_train=fraction, fraction_evaluate=0.0)

    def run(
        strategy: Any,
        grid: InProcess,
        *,
        what: str,
        options: dict[str, Any] | None = None,
        **texts: Any,
    ) -> dict[str, Any]:
        watch_options = {"metrics": "kept"} | (options or {})
        watched = watch(strategy, folder / f"{what}.jsonl", **watch_options)
        strategy.start(grid, initial_arrays, num_rounds=rounds)
        return {"watched": watched, "delta": delta, "what": f"Flower, {what}"} | texts

    example = "examples/fl-dp-sa: threshold 10, 20 of 100 clients, 3 rounds"
    yield run(
        strategies.DifferentialPrivacyClientSideFixedClipping(
            make_fed_avg(), 0.2, 10.0, cohort
        ),
        make_nodes(fixedclipping_mod),
        what="fixed clipping at the client",
        source=(
            f"{example}, noise multiplier 0.2, with the strategies of flwr.serverapp"
        ),
        why=(
            "Flower says no ε. All weights are equal, the noise is as documented, and"
            " cohorts are drawn without replacement. A noise multiplier of 0.2 is"
            " little noise."
        ),
        quote="A value of 1.0 or higher is recommended for strong privacy.",
    )

    config = PrivacyConfig(
        delta,
        clients,
        NeighboringRelation.ADD_OR_REMOVE_ONE,
        SamplingMethod.NO_AMPLIFICATION,
    )
    yield run(
        strategies.DifferentialPrivacyServerSideFixedClipping(
            make_fed_avg(), 1.0, 10.0, cohort, accountant=RdpAccountant(config)
        ),
        make_nodes(),
        what="fixed clipping at the server, its accountant",
        options={"cohorts": "known"},
        source=f"{example}, noise multiplier 1.0, the least that Flower recommends",
        why=(
            "Right where the number of clients is public: with its accountant Flower"
            " enforces equal weights and claims no amplification by sampling, so the"
            " claim holds even for somebody who knows the cohorts. For add-or-remove it"
            " is void: the cohort is a share of all clients. The remaining difference is the conversion from Rényi"
            " divergence."
        ),
        quote="Training and evaluation metrics are not included.",
    )

    sizes = [int(size) for size in np.geomspace(40, 4000, clients)]
    yield run(
        strategies.DifferentialPrivacyServerSideFixedClipping(
            make_fed_avg(), 1.0, 10.0, cohort
        ),
        make_nodes(examples=lambda number: sizes[number]),
        what="fixed clipping at the server, clients of 40 to 4,000 examples",
        options={"cohorts": "known"},
        audit=False,
        source=(
            f"{example}, noise multiplier 1.0, no accountant; the numbers of examples"
            " are ours"
        ),
        why=(
            "Flower says no ε. FedAvg weights the updates by the number of examples,"
            " but the noise is scaled for equal weights: the client with most examples"
            " in a cohort moves the mean by several times C / 20, where C is the"
            " threshold."
        ),
        quote=(
            "Accounted mode requires no-amplification accounting and uniform FedAvg"
            " aggregation."
        ),
    )

    yield run(
        strategies.DifferentialPrivacyServerSideAdaptiveClipping(
            make_fed_avg(), 1.0, cohort
        ),
        make_nodes(),
        what="adaptive clipping at the server",
        source=(
            "20 of 100 clients, 3 rounds, noise multiplier 1.0 and Flower's defaults:"
            " first threshold 0.1, quantile 0.5, rate 0.2"
        ),
        why=(
            "Flower says no ε. It updates the threshold before it adds the noise, so"
            " updates clipped to C get noise in proportion to the next C. Where the"
            " threshold falls, that is too little. What is proven is of the noise that"
            " was added."
        ),
    )

    yield run(
        strategies.DifferentialPrivacyClientSideAdaptiveClipping(
            make_fed_avg(), 1.0, cohort
        ),
        make_nodes(adaptiveclipping_mod),
        what="adaptive clipping at the client",
        options={"metrics": "released"},
        audit=False,
        source=(
            "20 of 100 clients, 3 rounds, noise multiplier 1.0 and Flower's defaults"
        ),
        why=(
            "Flower says no ε. The bits that say which clients were clipped are"
            " averaged with the other metrics and returned without noise, beside the"
            " noisy count of the same bits."
        ),
    )

    mod = watch_mod(
        LocalDpMod(1.0, 1.0, 1.0, delta),
        folder / "local",
        rounds=rounds,
        metrics="kept",
    )
    make_fed_avg(1.0).start(make_nodes(mod), initial_arrays, num_rounds=rounds)
    yield {
        "watched": mod.of(1000),
        "delta": delta,
        "audit": False,
        "profile": "replace_one",
        "what": "Flower, LocalDpMod: threshold 1, sensitivity 1, ε 1, three rounds",
        "source": "the guide how-to-use-differential-privacy; the numbers are ours",
        "why": (
            "The ε is that of one message, and a client sends three. The sensitivity of"
            " 1 compares an update with none. Local privacy compares one update with"
            " any other, and then it is twice the threshold."
        ),
        "quote": "sensitivity: The sensitivity of the client model.",
    }

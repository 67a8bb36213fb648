"""Flower, with clients whose weights differ."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from dpwatch.adapters.flower_nodes import InProcess

np.random.seed(0)
app = ClientApp()


@app.train()
def train(message, context):
    number = context.node_config["partition-id"]
    model = message.content["arrays"]["model"].numpy()
    arrays = ArrayRecord({"model": Array(model + 0.5 * (number % 5 + 1 - model))})
    metrics = MetricRecord({"num-examples": 60 + number})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


grid = InProcess(app, {1000 + i: {"partition-id": i} for i in range(50)})
strategy = DifferentialPrivacyServerSideFixedClipping(
    FedAvg(fraction_train=0.2, fraction_evaluate=0.0),
    noise_multiplier=1.0,
    clipping_norm=1.0,
    num_sampled_clients=10,
)
result = strategy.start(grid, ArrayRecord({"model": Array(np.zeros(30))}), num_rounds=3)

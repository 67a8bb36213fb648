"""Sums of other shapes than the model, and the server's step by all releases."""

from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch

from dpfedbench.errors import BenchError
from dpfedbench.papers.federated_averaging import DpFedAvg
from dpfedbench.parts.server.server_step import RoundReleases, ServerStep
from dpfedbench.training.client_updates.client_update import ClientUpdate
from dpsum.clipping import Constant
from dpsum.errors import DpsumError
from dpsum.ledger import read_ledger
from dpsum.mechanism import Mechanism
from dpsum.noise import Gaussian
from dpsum.sums import SumSpec

from .conftest import difference_config, rounds_of

SUMS = ("ones-sum", "number-sum", "table-sum")


class Shaped(ClientUpdate):
    """Client k sends ones, the number k + 1, and a table of 2 x 3 numbers k."""

    kind: Literal["shaped-test"] = "shaped-test"
    client_data: ClassVar[str] = "records"
    sends: ClassVar[str] = SUMS[0]
    sends_too: ClassVar[tuple[str, ...]] = SUMS[1:]
    keeps_state: ClassVar[bool] = False

    def contributions(self, model, cohort, index):
        for client in cohort:
            yield messages_of(model, client)


def messages_of(model, client) -> Any:
    return {
        "number-sum": torch.tensor([client.number + 1.0]),
        "ones-sum": torch.ones_like(model.weights),
        "table-sum": torch.full((2, 3), float(client.number)),
    }


class KeepReleases(ServerStep):
    """Step that adds the ratio of two releases, and keeps them."""

    kind: Literal["ratio-test"] = "ratio-test"

    def step(self, weights, releases, state):
        state["table"] = releases["table-sum"]
        state["round"] = (releases.index, releases.rounds)
        weights.add_((releases["ones-sum"] / releases["number-sum"]).float())


class DpShaped(DpFedAvg):
    name: ClassVar[str] = "dp-shaped-test"
    client_update: Shaped = Shaped()
    server: KeepReleases = KeepReleases()

    def sums(self):
        (own,) = super().sums()
        shapes = {"number-sum": (1,), "table-sum": (2, 3)}
        further = [
            SumSpec(
                name=name,
                unit="client",
                observer="everyone",
                clipping=Constant(threshold=1e6),
                noise=Gaussian(multiplier=1.0),
                budget=self.budget,
                stream=f"{name}-noise",
                shape=shape,
            )
            for name, shape in shapes.items()
        ]
        return [*further, own]


def shaped_run(**sections):
    """Return a run whose thresholds clip nothing."""
    run = difference_config({"method": "dp-fedavg"}).plain()
    values = {
        "method": DpShaped.name,
        "client_update": {"kind": "shaped-test"},
        "server": {"kind": "ratio-test"},
        "clipping": {"kind": "constant", "threshold": 1e6},
        "noise": {"multiplier": 1.0},
    }
    return DpShaped.read(run | values | sections)


def no_noise(mechanism, purpose, total):
    return np.zeros(total.dimension)


def test_server_steps_by_every_release_of_the_round(silos, tmp_path, monkeypatch):
    """Without noise w moves by sum(1) / sum(k + 1) over the cohort, in its round."""
    monkeypatch.setattr(Mechanism, "draw_noise", no_noise)
    rounds = rounds_of(shaped_run(), silos, tmp_path)
    before = rounds.theta.clone()
    rounds.round(0)
    numbers = rounds.plan.sample_cohort(0)
    expected = len(numbers) / (numbers + 1).sum()
    assert torch.allclose(
        rounds.theta - before, torch.tensor(expected).float(), atol=1e-6
    )
    state = rounds._step_state
    assert state["table"].shape == (2, 3)
    assert np.allclose(state["table"], numbers.sum(), atol=1e-9)
    assert state["round"] == (0, rounds.planned)


def test_ledger_has_the_dimension_of_each_sum(silos, tmp_path):
    rounds = rounds_of(shaped_run(), silos, tmp_path)
    rounds.round(0)
    lines = {line.name: line for line in read_ledger(tmp_path / "ledger.jsonl")}
    sizes = {name: line.dimension for name, line in lines.items()}
    assert sizes == {"ones-sum": rounds.theta.numel(), "number-sum": 1, "table-sum": 6}
    streams = {line.noise_stream for line in lines.values()}
    assert len(streams) == 3


FORGOTTEN = "yields no table-sum, which its class declares: yield ones-sum, number-sum"
UNDECLARED = "yields more, which its class does not declare .*: name it in sends_too"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda sent: {k: v for k, v in sent.items() if k != "table-sum"}, FORGOTTEN),
        (lambda sent: sent | {"more": torch.ones(1)}, UNDECLARED),
        (lambda sent: sent["ones-sum"], "yields 1 message for a client, but its class"),
        (lambda sent: [*sent.values()][:2], "yields 2 messages for a client, but its"),
        (
            lambda sent: sent | {"number-sum": torch.ones(2)},
            r"array \[2\] for number-sum, not \[1\]: yield the shape that its SumSpec",
        ),
        (
            lambda sent: sent | {"ones-sum": torch.ones(2)},
            r"array \[2\] for ones-sum, not \[\d+\]: yield the weights of the whole",
        ),
    ],
    ids=["forgotten", "undeclared", "one alone", "one less", "shape", "model"],
)
def test_other_messages_than_declared_are_refused_with_advice(
    silos, tmp_path, monkeypatch, change, message
):
    monkeypatch.setattr(
        Shaped,
        "contributions",
        lambda self, model, cohort, index: (
            change(messages_of(model, client)) for client in cohort
        ),
    )
    rounds = rounds_of(shaped_run(), silos, tmp_path)
    with pytest.raises(BenchError, match=message) as caught:
        rounds.round(0)
    assert "\n" not in str(caught.value)


def test_sum_that_clients_send_nothing_to_is_refused_in_the_plan(monkeypatch):
    monkeypatch.setattr(Shaped, "sends_too", ("number-sum",))
    message = (
        "takes the sum table-sum, but client_update.kind shaped-test sends nothing"
    )
    with pytest.raises(BenchError, match=message):
        shaped_run()
    monkeypatch.setattr(Shaped, "sends_too", ("table-sum", "number-sum"))
    with pytest.raises(BenchError, match="in another order than the sends_too"):
        shaped_run()


def test_last_sum_has_the_models_weights(monkeypatch):
    monkeypatch.setattr(DpShaped, "sums", lambda self: DpFedAvg.sums(self))
    monkeypatch.setattr(Shaped, "sends_too", ())
    shaped_run()
    numbers = SumSpec(name="n", unit="client", observer="everyone", shape=(1,))
    monkeypatch.setattr(DpShaped, "sums", lambda self: [numbers])
    with pytest.raises(
        BenchError, match=r"has the shape \(1,\): put a sum of the model"
    ):
        shaped_run()


def test_unknown_release_names_the_sums():
    releases = RoundReleases(
        mean=torch.ones(1), sums={"a": torch.ones(1)}, index=0, rounds=1
    )
    with pytest.raises(
        BenchError, match=r"the release of b, but the sums .* are a: add"
    ):
        releases["b"]


@pytest.mark.parametrize("shape", [(), (0,), (2, -1), (1.5,)])
def test_shape_has_positive_whole_numbers(shape):
    with pytest.raises(DpsumError, match="give positive whole numbers"):
        SumSpec(name="n", unit="client", observer="everyone", shape=shape)

"""Refusal of plans and parts that violate an assumption in docs/privacy.md."""

import dataclasses
import re
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch

import dpsum
from dpfedbench.config.part import plain
from dpfedbench.errors import BenchError
from dpfedbench.papers.federated_averaging import DpFedAvg
from dpfedbench.papers.gbml import LocalReptile
from dpfedbench.papers.shared import ClientLevelMethod, LocalRecordMethod
from dpfedbench.parts.budget import OwnUpdate
from dpfedbench.parts.transforms.transform import Transform
from dpfedbench.training import engine
from dpfedbench.training.client_updates.local_steps import LocalSteps
from dpfedbench.training.client_updates.model_difference import ModelDifference
from dpfedbench.training.clients import Clients
from dpfedbench.training.federation import Federation
from dpsum.clipping import Constant, PercentileOfReleases, PrivateQuantile
from dpsum.noise import Gaussian
from dpsum.participation import FixedSize, OnePass
from dpsum.skellam_noise import Skellam
from tests.dpfedbench.training.conftest import (
    FlatNet,
    difference_config,
    lots_config,
    make_config,
)
from tests.dpsum.helpers import make_mechanism

PAGE = Path(__file__).parents[3] / "docs/privacy.md"
FIXED = {"participation": FixedSize(cohort=2, rounds=6)}


class Heads(Clients):
    """Clients that keep a head each."""

    rows = 1

    def __init__(self):
        self.heads = {}

    def contributions(self, theta, cohort, index):
        for client in cohort:
            self.heads[int(client)] = self.heads.get(int(client), 0) + 1
        nothing = np.zeros(len(cohort))
        yield torch.ones((self.rows * len(cohort), 3)), nothing


class PersonalHead(ModelDifference):
    kind: Literal["personal-head"] = "personal-head"
    heads: ClassVar[type[Clients]] = Heads

    def clients(self, setup):
        return self.heads()


def variant(base, **members):
    """Return a user's subclass of a part, with these members."""
    return type("Variant", (base,), {"__module__": __name__, **members})


head = partial(variant, PersonalHead)
SavedHeads = variant(Heads, state=lambda self: self.heads)


def method_of(base, run, **parts):
    """Read a run's values as those of a user's method, which has these parts."""
    annotations = {key: type(part) for key, part in parts.items()}
    members = {"name": "user-method", "title": "user", "__qualname__": "UserMethod"}
    members |= {"__module__": __name__, "__annotations__": annotations}
    user_method = type("UserMethod", (base,), members | parts)
    values = {key: plain(part) for key, part in parts.items()}
    return user_method.read(run.plain() | values | {"method": "user-method"})


def differences_of(update, **parts):
    """Return a run of a user's method whose clients send differences by this update."""
    return method_of(DpFedAvg, difference_config(), client_update=update(), **parts)


def lots_of(base, **members):
    """Return a run of lots of records, with a variant of this client update."""
    run = lots_config({"method": "dp-fl"})
    update = variant(base, clients=lambda self, setup: Heads(), **members)
    return method_of(LocalRecordMethod, run, client_update=update())


def rounds_of(run):
    federation = Federation(net=FlatNet(3), held=None, gradients=None)
    return engine.Rounds(run, federation, ledger=[])


def with_clients(**members):
    """Return the rounds of a user's method in Poisson cohorts with such clients."""
    clients = variant(SavedHeads, **members)
    return rounds_of(differences_of(head(keeps_state=True, heads=clients)))


def state_despite_declaration():
    update = head(keeps_state=False, heads=SavedHeads)
    rounds_of(differences_of(update, **FIXED))


def zero_out_local_update():
    def zero_out(self, name, *, observer):
        spec = OwnUpdate.sum(self, name, observer=observer)
        return dataclasses.replace(spec, adjacency="zero-out")

    update = variant(OwnUpdate, sum=zero_out)()
    method_of(LocalReptile, make_config({"method": "local-reptile"}), own_update=update)


def private_loss_drives_noise():
    run = difference_config({"validation": {"public": False}})
    noise = variant(Gaussian, follows_loss=True)()
    method_of(ClientLevelMethod, run, noise=noise, client_update=ModelDifference())


def mechanism(**parts):
    """Return a mechanism on ten clients; `parts` replace its own."""
    values = {
        "dimension": 2,
        "participation": dpsum.OnePass(units=10, cohort=5, rounds=2),
        "clipping": Constant(threshold=1.0),
        "noise": dpsum.Gaussian(multiplier=1.0),
        "ledger": Path("ledger.jsonl"),
    }
    return make_mechanism(**values | parts)


def borrowed_sampler_name():
    every_other = variant(dpsum.Poisson, sample_cohort=lambda *_: np.arange(0, 10, 2))
    mechanism(participation=every_other(units=10, cohort=5, rounds=2))


def correlated(multiplier, **parts):
    noise = dpsum.Factorised(multiplier=multiplier, rounds=2)
    return mechanism(noise=noise, **parts).noise_multiplier


def release_beside_secure_sum():
    parts = {"noise": Skellam(), "client_update": ModelDifference()}
    parts["participation"] = OnePass(cohort=2, rounds=2)
    parts["clipping"] = PrivateQuantile(count_noise=5.0)
    method_of(ClientLevelMethod, difference_config(), **parts)


def calibration_of_correlated_poisson():
    plan = dpsum.Poisson(units=10, cohort=5, rounds=2)
    correlated(None, participation=plan, budget=dpsum.Budget(epsilon=1.0, delta=1e-5))


def raw_norms_kept_by_a_rule():
    """Show that a rule cannot keep norms: what `values` puts into the state is gone."""

    class Keeping(dpsum.PrivateQuantile):
        def values(self, state, norms):
            state["threshold"] = float(norms.max())
            state["kept"] = norms.tolist()
            return super().values(state, norms)

        def observe(self, state, seen):
            if "kept" not in state and state["threshold"] == 1.0:
                raise BenchError("the rule has no raw norms of this round")

    keeping = mechanism(clipping=Keeping(threshold=1.0, count_noise=5.0))
    total = keeping.begin_round(0)
    total.add(np.full((5, 2), 7.0))
    keeping.release(total)


def agrlr(**changes):
    """Return a violation: a run whose clients take sums over their own records."""
    return partial(make_config, {"method": "dp-agrlr", **changes})


VIOLATIONS = {
    "fixed-size cohorts: no state": (
        lambda: differences_of(PersonalHead, **FIXED),
        "may keep state",
    ),
    "fixed-size cohorts: no declared state": (
        lambda: differences_of(head(keeps_state=True), **FIXED),
        "keep state, but",
    ),
    "fixed-size cohorts: no saved state": (state_despite_declaration, "save a state"),
    "records: no state": (lambda: lots_of(LocalSteps), "may keep state"),
    "records: no batch statistics": (
        agrlr(model={"normalisation": "batch"}),
        "record",
    ),
    "records: first order": (agrlr(client_update={"order": 2}), "second order"),
    "one contribution a client": (
        lambda: with_clients(contributions_per_client=2),
        "2 contributions",
    ),
    "one row a client": (lambda: with_clients(rows=2).round(0), "more contributions"),
    "one participation for own sums": (agrlr(participation="poisson"), "poisson"),
    "own sums are taken": (
        lambda: rounds_of(lots_of(ModelDifference, by_record=True, keeps_state=False)),
        "does not take",
    ),
    "a local update is always sent": (zero_out_local_update, "replace-one"),
    "columns are releases": (
        lambda: differences_of(variant(ModelDifference, columns=lambda *_: ("loss",))),
        "columns_are_released",
    ),
    "no raw loss in a row": (
        lambda: with_clients(row=lambda _: {"clients": 2.0, "loss": 0.25}).round(0),
        "fill the column loss",
    ),
    "noise follows public losses": (private_loss_drives_noise, "public"),
    "a transformation reads one norm": (
        lambda: variant(Transform, rows=lambda self, rows: rows - rows.mean(dim=0)),
        "overrides rows",
    ),
    "a rule sees releases": (raw_norms_kept_by_a_rule, "has no raw norms"),
    "a sampler's name is its draw": (borrowed_sampler_name, "cohort of its own"),
    "a noise's name is its draw": (
        lambda: variant(dpsum.Gaussian, standard=lambda *_: np.zeros(2)),
        "standard of its own",
    ),
    "correlated noise: constant threshold": (
        lambda: correlated(1.0, clipping=PercentileOfReleases(threshold=1.0)),
        "changes",
    ),
    "correlated noise: known or single rounds": (
        calibration_of_correlated_poisson,
        "no analysis",
    ),
    "secure sum: nothing beside it": (release_beside_secure_sum, "secure aggregation"),
}
"""A violation of each row of the page's table, and words of its refusal."""


@pytest.mark.filterwarnings("ignore::dpsum.NoAccountWarning")
@pytest.mark.parametrize("row", VIOLATIONS)
def test_assumption_is_enforced_from_a_property(row, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    violate, words = VIOLATIONS[row]
    with pytest.raises(dpsum.DpsumError, match=words):
        violate()


def test_table_of_assumptions_lists_all_violations():
    section = PAGE.read_text().split("### Which property enforces which assumption")[1]
    rows = re.findall(r"^\| ([^|]+?) \|", section.split("\n#")[0], re.MULTILINE)
    assert rows[1:] == list(VIOLATIONS)


def test_stateful_clients_run_where_rounds_are_independent():
    """Stateless clients, whose class declares it, run in fixed-size cohorts."""
    with_clients().round(0)
    rounds_of(differences_of(head(keeps_state=False), **FIXED))
    overlay = {"method": "dp-fedavg", "participation": "fixed-size"}
    assert difference_config(overlay).client_update.keeps_state is False

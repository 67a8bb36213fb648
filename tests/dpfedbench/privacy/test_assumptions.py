"""Refusal of plans and parts that violate an assumption in docs/privacy.md."""

import dataclasses
import re
import warnings
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch

import dpsum
from dpfedbench.config.part import plain
from dpfedbench.errors import BenchError
from dpfedbench.evaluation.held_out import NoMeasures
from dpfedbench.papers.federated_averaging import DpFedAvg
from dpfedbench.papers.gbml import LocalReptile
from dpfedbench.papers.shared import ClientLevelMethod, LocalRecordMethod
from dpfedbench.parts.budget import OwnUpdate
from dpfedbench.parts.transforms.transform import Transform
from dpfedbench.training import engine
from dpfedbench.training.client_updates.client_update import Clients
from dpfedbench.training.client_updates.local_steps import LocalSteps
from dpfedbench.training.client_updates.model_difference import ModelDifference
from dpsum.clipping import Constant, PercentileOfReleases, PrivateQuantile
from dpsum.noise import Gaussian
from dpsum.participation import FixedSize, OnePass
from dpsum.skellam_noise import Skellam
from tests.dpfedbench.training.conftest import DIFFERENCE, LOTS, FlatNet, make_config
from tests.dpsum.helpers import make_mechanism

PAGE = Path(__file__).parents[3] / "docs/privacy.md"


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


class SavedHeads(Heads):
    def state(self):
        return self.heads


class TwoContributions(Heads):
    contributions_per_client = 2


class TwoRows(Heads):
    rows = 2


class LossInRow(Heads):
    def row(self):
        return {"clients": 2.0, "loss": 0.25}


class PersonalHead(ModelDifference):
    kind: Literal["personal-head"] = "personal-head"
    heads: ClassVar[type[Clients]] = Heads

    def clients(self, setup):
        return self.heads()


FIXED = FixedSize(cohort=2, rounds=6)


def head(**members):
    """Return a client update with a head for each client, which declares its state."""
    return type("DeclaredHead", (PersonalHead,), {"__module__": __name__, **members})


def method_of(update, base=DpFedAvg, general=DIFFERENCE, **fields):
    """Return a run of a user's method with this client update."""
    fields |= {"client_update": update()}
    annotations = {key: type(value) for key, value in fields.items()}
    members = {"name": "user-method", "title": "user", "__module__": __name__}
    members |= fields | {"__annotations__": annotations, "__qualname__": "UserMethod"}
    user_method = type("UserMethod", (base,), members)
    method = {"method": "dp-fedavg" if general is DIFFERENCE else "dp-fl"}
    values = make_config(method, general=general).plain()
    for key, value in fields.items():
        values[key] = plain(value)
    return user_method.read(values | {"method": "user-method"})


def rounds_of(run):
    return engine.Rounds(
        run,
        net=FlatNet(3),
        held=None,
        gradients=None,
        measures=NoMeasures(),
        ledger=[],
    )


def with_clients(clients):
    """Return the rounds of a user's method in Poisson cohorts with these clients."""
    return rounds_of(method_of(head(keeps_state=True, heads=clients)))


def undeclared_state():
    method_of(PersonalHead, participation=FIXED)


def declared_state():
    method_of(head(keeps_state=True), participation=FIXED)


def state_despite_declaration():
    update = head(keeps_state=False, heads=SavedHeads)
    rounds_of(method_of(update, participation=FIXED))


def state_beside_record_sums():
    class StatefulSteps(LocalSteps):
        kind: Literal["stateful"] = "stateful"

        def clients(self, setup):
            return Heads()

    method_of(StatefulSteps, base=LocalRecordMethod, general=LOTS)


def own_columns():
    class Columns(ModelDifference):
        kind: Literal["columns"] = "columns"

        def columns(self, run):
            return ("own_loss",)

    method_of(Columns)


def read_as(method, run, **values):
    """Read a run's values, and others, as those of a user's method."""
    method.read(run.plain() | values | {"method": method.name})


def zero_out_local_update():
    class ZeroOutUpdate(OwnUpdate):
        def sum(self, name, *, observer):
            return dataclasses.replace(
                super().sum(name, observer=observer), adjacency="zero-out"
            )

    class UserLocal(LocalReptile):
        name = "user-local"
        own_update: ZeroOutUpdate = ZeroOutUpdate()

    read_as(UserLocal, make_config({"method": "local-reptile"}))


def private_loss_drives_noise():
    class Following(Gaussian):
        kind: Literal["following"] = "following"
        follows_loss: ClassVar[bool] = True

    class UserFollowing(ClientLevelMethod):
        name = "user-following"
        noise: Following = Following()
        client_update: ModelDifference = ModelDifference()

    run = make_config({"validation": {"public": False}}, general=DIFFERENCE)
    read_as(UserFollowing, run, noise={"kind": "following"})


def own_sum_not_taken():
    class Untaken(ModelDifference):
        kind: Literal["untaken"] = "untaken"
        by_record = True
        keeps_state = False

        def clients(self, setup):
            return Heads()

    rounds_of(method_of(Untaken, base=LocalRecordMethod, general=LOTS))


def mixing_transform():
    class Mixing(Transform):
        kind: Literal["mixing"] = "mixing"

        def rows(self, contributions):
            return contributions - contributions.mean(dim=0)


def borrowed_sampler_name():
    class EveryOther(dpsum.Poisson):
        def sample_cohort(self, index):
            return np.arange(0, self.units, 2)

    mechanism(participation=EveryOther(units=10, cohort=5, rounds=2))


def borrowed_noise_name():
    class HalfGaussian(dpsum.Gaussian):
        def standard(self, stream_of, index, dimension):
            return super().standard(stream_of, index, dimension) / 2


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


def moving_threshold_correlated():
    noise = dpsum.Correlated(multiplier=1.0, weights=np.eye(2))
    clipping = PercentileOfReleases(threshold=1.0)
    _ = mechanism(noise=noise, clipping=clipping).noise_multiplier


def release_beside_secure_sum():
    class UserSecure(ClientLevelMethod):
        name = "user-secure"
        participation: OnePass = OnePass()
        clipping: PrivateQuantile = PrivateQuantile()
        noise: Skellam = Skellam()
        client_update: ModelDifference = ModelDifference()

    read_as(
        UserSecure,
        make_config(general=DIFFERENCE),
        participation={"kind": "one-pass", "cohort": 2, "rounds": 2},
        clipping={"kind": "private-quantile", "count_noise": 5.0},
        noise={"kind": "skellam"},
    )


def several_own_participations():
    make_config({"method": "dp-agrlr", "participation": "poisson"})


def batch_statistics_for_records():
    make_config({"method": "dp-agrlr", "model": {"normalisation": "batch"}})


def second_order_for_records():
    make_config({"method": "dp-agrlr", "client_update": {"order": 2}})


def mechanism_epsilon_of_correlated_poisson():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpsum.NoAccountWarning)
        correlated = mechanism(
            participation=dpsum.Poisson(units=10, cohort=5, rounds=2),
            noise=dpsum.Correlated(multiplier=None, weights=np.eye(2)),
            budget=dpsum.Budget(epsilon=1.0, delta=1e-5),
        )
        _ = correlated.noise_multiplier


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


VIOLATIONS = {
    "fixed-size cohorts: no state": (undeclared_state, "may keep state"),
    "fixed-size cohorts: no declared state": (declared_state, "keep state, but"),
    "fixed-size cohorts: no saved state": (state_despite_declaration, "save a state"),
    "records: no state": (state_beside_record_sums, "may keep state"),
    "records: no batch statistics": (batch_statistics_for_records, "record"),
    "records: first order": (second_order_for_records, "second order"),
    "one contribution a client": (
        lambda: with_clients(TwoContributions),
        "2 contributions",
    ),
    "one row a client": (lambda: with_clients(TwoRows).round(0), "more contributions"),
    "one participation for own sums": (several_own_participations, "poisson"),
    "own sums are taken": (own_sum_not_taken, "does not take"),
    "a local update is always sent": (zero_out_local_update, "replace-one"),
    "columns are releases": (own_columns, "columns_are_released"),
    "no raw loss in a row": (
        lambda: with_clients(LossInRow).round(0),
        "fill the column loss",
    ),
    "noise follows public losses": (private_loss_drives_noise, "public"),
    "a transformation reads one norm": (mixing_transform, "overrides rows"),
    "a rule sees releases": (raw_norms_kept_by_a_rule, "has no raw norms"),
    "a sampler's name is its draw": (borrowed_sampler_name, "cohort of its own"),
    "a noise's name is its draw": (borrowed_noise_name, "standard of its own"),
    "correlated noise: constant threshold": (moving_threshold_correlated, "changes"),
    "correlated noise: known or single rounds": (
        mechanism_epsilon_of_correlated_poisson,
        "no analysis",
    ),
    "secure sum: nothing beside it": (release_beside_secure_sum, "secure aggregation"),
}
"""A violation of each row of the page's table, and words of its refusal."""


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
    with_clients(SavedHeads).round(0)
    rounds_of(method_of(head(keeps_state=False), participation=FIXED))
    overlay = {"method": "dp-fedavg", "participation": "fixed-size"}
    assert make_config(overlay, general=DIFFERENCE).client.keeps_state is False

"""Record-level sums within few-shot tasks: DP-AGRLR, sample-level DP-MAML, task-global Reptile."""

import json

import numpy as np
import pytest
import torch
from dpfedbench.federation.local_sums import QUERY, SUPPORT, TASK, LocalSums
from dpfedbench.federation.record_tasks import OwnTasks, RecordTaskClients
from torch.nn import functional

from dpfedbench.config import merge
from dpfedbench.data.images import load_dataset
from dpfedbench.data.partition import gather, load_partition
from dpfedbench.errors import BenchError
from dpfedbench.federation.engine import train
from dpfedbench.methods import METHODS, dp_agrlr, dp_maml_sample, dp_reptile, reptile
from dpfedbench.privacy.ledger import read_ledger
from tests.federation.conftest import PLAIN, make_config

AGRLR = {"method": "dp-agrlr", **dp_agrlr.DEFAULTS}
SAMPLE = {"method": "dp-maml-sample", **dp_maml_sample.DEFAULTS}
REPTILE = {"method": "dp-reptile", **dp_reptile.DEFAULTS}
NONE = merge(PLAIN, {"model": {"normalisation": "record"}, "client_update": {"order": 1, "inner_steps": 2}})
COHORT = np.array([3, 7, 11])


def clients_of(config, federation, **more):
    parts = METHODS[config.method].compose(config)
    source = OwnTasks(config, data_dir=federation[0], clients_dir=federation[1], threads=1)
    return RecordTaskClients(config, parts.update, parts.local, source=source, **more)


def contributions(clients, theta, index=0):
    return torch.cat([rows.clone() for rows, _, _ in clients.stream(theta, COHORT, index)])


def theta_of(clients):
    rng = np.random.default_rng(0)
    return (clients.net.initial(rng) + 0.1 * rng.standard_normal(clients.net.dimension)).astype(np.float32)


def test_without_clipping_and_noise_it_is_first_order_maml(federation):
    config = make_config(NONE)
    clients = clients_of(config, federation)
    theta = theta_of(clients)
    found = contributions(clients, theta)
    tasks = gather(
        load_dataset(federation[0]), load_partition(federation[1]), COHORT, support_per_class=1, query_per_class=2
    )
    for i in range(len(COHORT)):
        weights = torch.from_numpy(theta).double()

        def loss(w, x, y, i=i):
            return functional.cross_entropy(clients.net.forward(w, torch.from_numpy(x[i]).double()), torch.tensor(y[i]))

        for _ in range(2):
            weights = weights - 0.1 * torch.func.grad(loss)(weights, tasks.support_x, tasks.support_y)
        wanted = torch.func.grad(loss)(weights, tasks.query_x, tasks.query_y)
        assert torch.linalg.norm(found[i] - wanted) < 1e-4 * torch.linalg.norm(wanted)


@pytest.mark.parametrize(
    ("overlay", "names", "rows"),
    [(AGRLR, {SUPPORT: 3, QUERY: 6}, 1), (SAMPLE, {SUPPORT: 3}, 6), (REPTILE, {TASK: 9}, 1)],
)
def test_the_ledger_has_every_release_with_the_noise_it_took(overlay, names, rows, federation):
    config = make_config(overlay, {"client_update": {"inner_steps": 2}})
    seen = []
    clients = clients_of(config, federation, observer=lambda *given: seen.append(given))
    found = contributions(clients, theta_of(clients))
    assert clients.each == rows and len(found) == 3 * rows
    lines = {line.name: line for line in clients.releases(0)}
    assert set(lines) == set(names) == {name for name, *_ in seen}
    for name, records in names.items():
        line = lines[name]
        made = [given for given in seen if given[0] == name]
        steps = 1 if name == QUERY else 2
        assert line.sampler["records"] == records and line.sampler["steps"] == steps
        assert {(client, step) for _, client, step, _, _ in made} == {
            (int(client), step) for client in COHORT for step in range(steps)
        }
        for _, _, _, total, _ in made:
            assert (total.threshold, total.noise_multiplier, total.noise_std, total.sensitivity) == (
                line.threshold, line.noise_multiplier, line.noise_std, line.sensitivity,
            )  # fmt: skip
        assert line.unit == "record" and line.noise_std == line.noise_multiplier * config.local.threshold


def test_noise_is_of_the_stated_size_and_never_used_twice(federation):
    """Standard deviation within 5 % (about 30,000 draws: five deviations are 2 %)."""
    config = make_config(AGRLR, {"local": {"threshold": 1e-6, "multiplier": 3e6}})
    seen = []
    clients = clients_of(config, federation, observer=lambda *given: seen.append(given[-1].numpy()))
    theta = theta_of(clients)
    contributions(clients, theta, 0)
    contributions(clients, theta, 1)
    noise = np.stack(seen)  # [2 rounds x 3 clients x 2 releases, d], each of deviation 3
    assert noise.std() == pytest.approx(3.0, rel=0.05)
    alike = np.corrcoef(noise) - np.eye(len(noise))
    assert abs(alike).max() < 5.5 / noise.shape[1] ** 0.5


def test_threads_change_no_bit(federation):
    config = make_config(AGRLR)
    one, two = (clients_of(config, federation, threads=threads) for threads in (1, 2))
    theta = theta_of(one)
    assert torch.equal(contributions(one, theta), contributions(two, theta))


def test_the_support_set_reaches_a_contribution_through_its_noised_sum_alone(federation, monkeypatch):
    """Property 11: with the support's release held fixed, other support images change nothing."""
    config = make_config(AGRLR)
    clients = clients_of(config, federation)
    theta, own = theta_of(clients), LocalSums.mean
    fixed = np.full(clients.net.dimension, 1e-3, np.float32)
    monkeypatch.setattr(
        LocalSums, "mean", lambda self, name, rows, **k: fixed if name == SUPPORT else own(self, name, rows, **k)
    )
    before = contributions(clients, theta)
    source = clients._source
    gathered = source.gather

    def changed(ids):
        tasks = gathered(ids)
        tasks.support_x[:] = 0.5
        return tasks

    source.gather = changed
    assert torch.equal(before, contributions(clients, theta))


def test_disjoint_batches_read_each_example_once(federation, monkeypatch):
    config = make_config(REPTILE, {"client_update": {"inner_steps": 3}, "local": {"batches": "disjoint"}})
    clients, counts = clients_of(config, federation), []
    own = LocalSums.mean
    monkeypatch.setattr(
        LocalSums, "mean", lambda self, name, rows, **k: (counts.append(len(rows)), own(self, name, rows, **k))[1]
    )
    contributions(clients, theta_of(clients))
    assert counts == [3] * 9
    line = clients.releases(0)[0]
    assert (line.sampler["cohort"], line.sampler["records"], line.denominator) == (3, 9, 3.0)


def test_a_gradient_that_is_not_finite_counts_as_zero_and_is_counted(federation):
    config = make_config(AGRLR)
    sums = LocalSums(config, METHODS["dp-agrlr"].compose(config).update, config.local, dimension=4)
    sums.begin()
    rows = np.array([[np.nan, 0, 0, 0], [0, 0, 0, 0]], np.float32)
    mean = sums.mean(SUPPORT, rows, round_=0, client=0, step=0)
    assert np.isfinite(mean).all() and sums.non_finite == 1


@pytest.mark.parametrize("overlay", [AGRLR, SAMPLE, REPTILE, {"method": "reptile", **reptile.DEFAULTS}])
def test_a_run_ends_with_files_and_goes_on_to_the_same_bits(overlay, federation, tmp_path, monkeypatch):
    config = make_config(overlay, {"participation": {"rounds": 4}, "validation": {"every": 0}})
    data, clients = federation
    train(config, data_dir=data, clients_dir=clients, run_dir=tmp_path / "whole")
    from dpfedbench.federation import server_sum

    original = server_sum.ServerSum.round

    def stopped(self, index):
        if index == 2:
            raise KeyboardInterrupt
        return original(self, index)

    monkeypatch.setattr(server_sum.ServerSum, "round", stopped)
    with pytest.raises(KeyboardInterrupt):
        train(config, data_dir=data, clients_dir=clients, run_dir=tmp_path / "killed", checkpoint_seconds=0)
    monkeypatch.setattr(server_sum.ServerSum, "round", original)
    train(config, data_dir=data, clients_dir=clients, run_dir=tmp_path / "killed")
    for name in ("model.safetensors", "ledger.jsonl"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()
    assert json.loads((tmp_path / "killed" / "training.json").read_text())["resumed"] == 1
    lines = read_ledger(tmp_path / "whole" / "ledger.jsonl")
    assert len(lines) == 4 * {"dp-agrlr": 3, "dp-maml-sample": 2, "dp-reptile": 1, "reptile": 0}[config.method]
    header = (tmp_path / "whole" / "history.csv").read_text().splitlines()[0]
    assert ("norm_q50" in header) == (config.method == "reptile")


@pytest.mark.parametrize(
    ("overlay", "message"),
    [
        ({"model": {"normalisation": "batch"}}, "statistics tie an example's gradient to the others"),
        ({"client_update": {"order": 2}}, "Hessian into every query gradient"),
        ({"participation": {"kind": "poisson"}}, "accounts for one participation of a client"),
        ({"local": {"epsilon": None}}, "local.multiplier and local.epsilon are both null"),
        ({"local": {"batches": "disjoint"}}, "only client_update.kind reptile has such batches"),
        ({"clipping": None, "noise": None, "budget": None, "local": {"query": "server"}}, "local.query is server"),
    ],
)
def test_what_no_account_covers_is_refused(overlay, message):
    with pytest.raises(BenchError, match=message):
        make_config(AGRLR, overlay)


def test_an_epsilon_that_no_noise_meets_is_refused():
    config = make_config(AGRLR, {"local": {"epsilon": 1e-7, "delta": 1e-12}})
    with pytest.raises(BenchError, match=r"no noise multiplier up to 10,000 meets local\.epsilon 1e-07"):
        LocalSums(config, METHODS["dp-agrlr"].compose(config).update, config.local, dimension=3)

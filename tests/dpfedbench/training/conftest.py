"""A small federation on disk: a synthetic data set, its clients and run
configurations.
"""

import collections
import functools
import json
import multiprocessing
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from dpfedbench.config.merge import fit, merge
from dpfedbench.data.images import RawImages
from dpfedbench.data.records import load_any_records, load_records
from dpfedbench.evaluation import evaluate
from dpfedbench.evaluation.held_out import NoMeasures
from dpfedbench.models.choose import Choice
from dpfedbench.papers import METHODS, read_run
from dpfedbench.training import engine
from dpfedbench.training.accounts import account_run
from dpfedbench.training.client_updates.client_update import Clients
from dpsum import randomness
from dpsum.ledger import Ledger, read_ledger
from dpsum.private_sum import PrivateSum
from tests.partitions import make_dirichlet, make_fragments

RUN = {
    "method": "dp-agr",
    "seed": 0,
    "dataset": "glyphs",
    "task": {"ways": 3, "shots": 1},
    "clients": {
        "count": 48,
        "examples_per_class": 4,
        "support_per_class": 1,
        "query_per_class": 2,
        "partition": "shared",
    },
    "model": {"kind": "conv4", "filters": 4, "normalisation": "batch"},
    "participation": {"kind": "one-pass", "cohort": 4, "rounds": 12},
    "client_update": {
        "kind": "maml",
        "inner_steps": 1,
        "inner_rate": 0.1,
        "order": 2,
        "learnable_rates": False,
        "multi_step_rounds": 0,
    },
    "clipping": {
        "kind": "percentile-of-releases",
        "threshold": 0.5,
        "percentile": 90,
        "window": 3,
        "form": "mean",
        "never_rising": False,
    },
    "noise": {"kind": "fixed", "multiplier": 1.0},
    "budget": {"epsilon": None, "delta": 1e-3, "profile": "proven", "stop": True},
    "server": {
        "kind": "step",
        "rate": 0.01,
        "optimizer": "adam",
        "schedule": "constant",
    },
    "validation": {"every": 4, "tasks": 4, "ensemble": 2, "public": True},
    "evaluation": {
        "every": 0,
        "tasks": 6,
        "query_per_class": 3,
        "steps": 2,
        "rate": 0.1,
    },
}
"""The small federation's base configuration."""

PLAIN = {"method": "maml"}
_LOTS_OVERLAY = {
    "method": "adap-dp-fl",
    "dataset": "digits",
    "task": {"ways": 10, "shots": 0},
    "clients": {"count": 4, "partition": "fragments", "fragments": 20},
    "model": {"kind": "cnn", "pixel_mean": 0.3, "pixel_deviation": 0.5},
    "participation": {"kind": "poisson-lots", "cohort": 8, "rounds": 12},
    "client_update": {
        "kind": "local-steps",
        "inner_steps": 1,
        "inner_rate": 0.01,
        "optimizer": "adam",
    },
    "clipping": {"kind": "constant", "threshold": 1.0},
    "noise": {"multiplier": 2.0},
    "budget": {"epsilon": None, "delta": 1e-4, "profile": "claimed"},
    "server": {"kind": "average"},
    "validation": {"every": 1, "tasks": 20, "ensemble": 1},
    "evaluation": {"every": 4},
}
LOTS = merge(RUN, _LOTS_OVERLAY)
"""Base of the methods whose four clients sum over lots of their records."""

DIFFERENCE = merge(
    LOTS,
    {
        "method": "dp-fedavg",
        "participation": {"kind": "poisson", "cohort": 2, "rounds": 6},
        "client_update": {
            "kind": "model-difference",
            "inner_steps": 2,
            "inner_rate": 0.1,
            "optimizer": "sgd",
        },
        "clipping": {"threshold": 0.5},
        "noise": {"multiplier": 1.0},
        "budget": {"delta": 1e-3, "profile": "proven"},
        "server": {
            "kind": "step",
            "rate": 1.0,
            "optimizer": {"kind": "sgd", "momentum": 0.9},
        },
        "validation": {"every": 3},
        "evaluation": {"every": 3},
    },
)
"""Base of the methods whose clients send model differences."""


def make_config(*overlays, general=RUN):
    """Return a run of the small federation.

    The overlays lie above the method's defaults, which lie above `general`. Keys of
    `general` that the method lacks are left out; keys of the overlays have to fit.
    """
    values = merge(*overlays)
    method = METHODS[values.pop("method", general["method"])]
    resolved = fit(method, merge(general, method.defaults, values), values)
    return read_run(resolved | {"method": method.name})


lots_config = functools.partial(make_config, general=LOTS)
difference_config = functools.partial(make_config, general=DIFFERENCE)


def stop_before(monkeypatch, index):
    """Make a training raise the returned exception before round `index`."""

    class Stop(Exception):
        pass

    step = engine._Training._round

    def until(self, current):
        if current == index:
            raise Stop
        return step(self, current)

    monkeypatch.setattr(engine._Training, "_round", until)
    return Stop


def forking():
    """Return a context whose processes are forks of one that has imported `loaded`.

    A process has one such server. It imports what the first caller names.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.dpfedbench.training.loaded"])
    return context


RESULT_FILES = ("model.safetensors", "ledger.jsonl", "metrics.json")


def train_model(config, folders, run_dir, threads=1, checkpoint_seconds=1e9, **options):
    """Train a run on (data folder, clients folder)."""
    data, clients = folders
    engine.train(
        config,
        data_dir=data,
        clients_dir=clients,
        run_dir=run_dir,
        threads=threads,
        checkpoint_seconds=checkpoint_seconds,
        **options,
    )


def train(config, folders, run_dir, *args, references=None, **options):
    """Train and test a run, with the arguments of `train_model`.

    Returns the contents of the files that must not depend on the machine, by name.
    """
    train_model(config, folders, run_dir, *args, references=references, **options)
    evaluate(
        config,
        data_dir=folders[0],
        model_path=run_dir / "model.safetensors",
        out_path=run_dir / "metrics.json",
        references=references,
    )
    return files_in(run_dir)


def files_in(run_dir):
    return {name: (run_dir / name).read_bytes() for name in RESULT_FILES}


def examples(dataset, records):
    """Return (images scaled to 0..1, labels) of records of a data set."""
    images = torch.from_numpy(np.asarray(dataset.images[records])).float() / 255
    return images, torch.from_numpy(np.asarray(dataset.labels[records]))


def clipped_gradient_sum(
    net, theta, images, labels, threshold, coordinates=slice(None)
):
    """Return the sum of single records' gradients over some coordinates, each clipped,
    by autodiff.
    """

    def loss(weights, image, label):
        logits = net.logits(weights, image[None])
        return torch.nn.functional.cross_entropy(logits, label[None])

    record_gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    gradients = record_gradients(theta, images, labels)[:, coordinates]
    scale = torch.clamp(threshold / gradients.norm(dim=1), max=1.0)
    return (gradients * scale[:, None]).sum(dim=0)


def ledger_in(run_dir):
    return read_ledger(run_dir / "ledger.jsonl")


def history_in(run_dir):
    return pd.read_csv(run_dir / "history.csv")


def training_in(run_dir):
    return json.loads((run_dir / "training.json").read_text())


def personal_in(run_dir):
    """Return the results of the clients' personal tests; none where there is no test."""
    training = training_in(run_dir)
    return {key: training[key] for key in training if key.startswith("personal_")}


def accounted(config, run_dir, clients_dir=None):
    """Return the account of a finished run, which is the content of privacy.json."""
    account_run(config, run_dir, run_dir / "privacy.json", clients_dir=clients_dir)
    return json.loads((run_dir / "privacy.json").read_text())


def proven(config, run_dir):
    """Return the proven epsilon: a mapping with status, epsilon_low, epsilon_high."""
    return accounted(config, run_dir)["profiles"]["proven"]


class ReleaseLog(list):
    """Observer of rounds. Items are (ledger line, releases, means float64 [k, d])."""

    def __call__(self, line, outcomes):
        releases = [release for release, _ in outcomes]
        self.append((line, releases, np.array([mean for _, mean in outcomes])))


def rounds_of(config, folders, run_dir, **options):
    """Return the rounds of a run. Their releases go to the list `log`."""
    data, clients = folders
    run_dir.mkdir(exist_ok=True)
    log = ReleaseLog()
    rounds = engine.Rounds.from_run(
        config,
        data_dir=data,
        clients_dir=clients,
        ledger=Ledger(run_dir / "ledger.jsonl"),
        observer=log,
        **options,
    )
    rounds.log = log
    return rounds


def remove_noise(monkeypatch):
    """Make private sums release the clipped sum without noise."""
    monkeypatch.setattr(PrivateSum, "_noised", lambda self, total, standard: total)


def watch_releases(monkeypatch):
    """Return a list that receives (private sum, released vector) of each release."""
    releases = []
    release = PrivateSum.release

    def watched(self, standard):
        vector = release(self, standard)
        releases.append((self, vector.copy()))
        return vector

    monkeypatch.setattr(PrivateSum, "release", watched)
    return releases


def watch_streams(monkeypatch):
    """Return a list that receives the name of each random stream that is opened."""
    names = []
    stream = randomness.stream

    def watched(*name):
        names.append(name)
        return stream(*name)

    monkeypatch.setattr(randomness, "stream", watched)
    return names


def assert_drawn_anew(drawn, rate):
    """Check that samples, bool [rounds, clients, steps, records], are independent.

    Two samples share a record with probability rate^2. Exact binomial tests of disjoint
    pairs (at most nine) and one test of the rate, with false-alarm rate 1e-3 each.
    """
    assert stats.binomtest(int(drawn.sum()), drawn.size, rate).pvalue > 1e-3
    for axis in range(3):
        samples = np.moveaxis(drawn, axis, 0)
        pairs = [
            (samples[:1], samples[index : index + 1])
            for index in range(1, min(len(samples), 3))
        ]
        even = len(samples) // 2 * 2
        pairs.append((samples[:even:2], samples[1::2]))
        for first, second in pairs:
            common = int((first & second).sum())
            assert stats.binomtest(common, first.size, rate**2).pvalue > 1e-3


class FlatNet:
    """Stand-in for a network: `dimension` weights, all zero at the start."""

    def __init__(self, dimension):
        self.dimension = dimension
        self.blocks = collections.defaultdict(lambda: slice(0, dimension))

    def initial(self, generator):
        return np.zeros(self.dimension, np.float32)


class FixedClients(Clients):
    """Clients with fixed contributions [clients, d]."""

    def __init__(self, rows):
        self.rows = torch.from_numpy(np.asarray(rows, np.float32))

    def contributions(self, theta, cohort, index):
        zeros = np.zeros(len(cohort))
        yield self.rows[torch.from_numpy(cohort)], zeros


def rounds_in_memory(
    config, dimension, clients=None, held=None, gradients=None, **options
):
    """Return the rounds of a run over `dimension` weights.

    The ledger is a list, and so is `log`, which has the releases.
    """
    log = ReleaseLog()
    rounds = engine.Rounds(
        config,
        net=FlatNet(dimension),
        held=held,
        gradients=gradients,
        measures=NoMeasures(),
        ledger=[],
        observer=log,
        clients=clients,
        **options,
    )
    rounds.log = log
    return rounds


def fixed_rounds(config, contributions, **options):
    """Return the rounds of a run over fixed contributions [clients, d]."""
    clients = FixedClients(contributions)
    dimension = np.shape(contributions)[1]
    return rounds_in_memory(config, dimension, clients, **options)


def releases_by_round(rounds, count):
    """Take `count` rounds and return for each (ledger lines, means [k, d] by line)."""
    by_round = []
    for index in range(count):
        rounds.log.clear()
        rounds.round(index)
        lines = [line for line, _, _ in rounds.log]
        by_round.append((lines, [means for *_, means in rounds.log]))
    return by_round


def releases_of(config, contributions):
    """Return what everyone sees of a run over fixed contributions [clients, d].

    For each round: (ledger lines, released means [d] by line).
    """
    rounds = fixed_rounds(config, contributions)
    return [
        (lines, [mean for (mean,) in means])
        for lines, means in releases_by_round(rounds, config.participation.rounds)
    ]


class RecordRows:
    """Stand-in for gradients: the gradient of record number i is row i."""

    device = "cpu"

    def __init__(self, rows):
        self.rows = torch.from_numpy(np.asarray(rows, np.float32))

    def add_record_gradients(self, theta, images, labels, total, *, block=""):
        rows = self.rows[torch.from_numpy(images[:, 0].astype(np.int64))]
        return np.zeros(len(rows)), total.add(rows)


def rounds_of_rows(config, rows, gradients=RecordRows):
    """Return the rounds of clients whose records have these gradients, float [clients,
    records, d].
    """
    clients, records, dimension = np.shape(rows)
    numbers = np.arange(clients * records).reshape(clients, records, 1)
    labels = [np.full(records, client) for client in range(clients)]
    flat = np.reshape(rows, (-1, dimension))
    return rounds_in_memory(
        config,
        dimension,
        held=SimpleNamespace(images=list(numbers), labels=labels),
        gradients=Choice("rows", lambda: gradients(flat), "cpu"),
    )


class ZeroGradients:
    """Stand-in for gradients: all of them are zero."""

    device = "cpu"

    def record_gradients(self, theta, x, y, out):
        out.zero_()
        return np.zeros(len(y))

    def add_record_gradients(self, theta, x, y, total, *, block=""):
        rows = torch.zeros((len(y), total.dimension))
        return np.zeros(len(y)), total.add(rows)


def rounds_without_data(config):
    """Return the rounds of a run over three weights, whose gradients are all zero."""
    clients = config.clients.count

    def examples(ids, per_class):
        count = 3 * per_class
        return np.zeros((len(ids), count, 4, 4, 1)), np.zeros((len(ids), count), int)

    def gather(ids):
        support_x, support_y = examples(ids, 1)
        query_x, query_y = examples(ids, 2)
        return SimpleNamespace(
            support_x=support_x, support_y=support_y, query_x=query_x, query_y=query_y
        )

    held = SimpleNamespace(
        images=[np.zeros((50, 4, 4, 1), np.uint8)] * clients,
        labels=[np.zeros(50, np.int64)] * clients,
        gather=gather,
    )
    sends_differences = getattr(config.client, "kind", "") == "model-difference"
    sends_gradients = not config.client_sums and config.client_data == "tasks"
    fixed_clients = None
    if sends_differences or sends_gradients:
        fixed_clients = FixedClients(np.zeros((clients, 3)))
    return rounds_in_memory(
        config,
        3,
        clients=fixed_clients,
        held=held,
        gradients=Choice("zero", ZeroGradients, "cpu"),
    )


UNEQUAL = {"partition": "dirichlet", "concentration": 0.5, "least": 20}


@pytest.fixture(scope="session")
def unequal(silos, tmp_path_factory):
    """Deal 400 records unequally to four clients: (data folder, clients folder)."""
    folder = tmp_path_factory.mktemp("unequal")
    partition = make_dirichlet(
        load_records(silos[0]), clients=4, concentration=0.5, least=20, seed=0
    )
    sizes = partition.summary["records_per_client"]
    assert len(set(sizes)) > 2
    assert sum(sizes) == 400
    partition.save(folder)
    return silos[0], folder


@pytest.fixture(scope="session")
def holder(tmp_path_factory):
    """Give all images of the training classes to one client.

    Classes 1, 3, 5 and 7 of eight are training classes, with ten images each. Returns
    (data folder, clients folder).
    """
    root = tmp_path_factory.mktemp("holder")
    rng = np.random.default_rng(0)
    raw = RawImages(
        images=rng.integers(0, 256, size=(8, 10, 16, 16, 1), dtype=np.uint8),
        class_names=tuple(f"class{i}" for i in range(8)),
        splits=("test", "train", "validation", "train") + ("test", "train") * 2,
        versions={},
    )
    raw.save(root / "data", {"name": "glyphs"})
    records = load_any_records(root / "data")
    make_fragments(records, clients=1, fragments=1, seed=0).save(root / "clients")
    return root / "data", root / "clients"

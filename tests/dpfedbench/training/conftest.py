"""Configurations of small runs, builders of their rounds, and clients on disk."""

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

from dpfedbench.config.merge import merge
from dpfedbench.data.images import RawImages, load_dataset
from dpfedbench.data.partition import RecordPartition
from dpfedbench.data.records import load_any_records, load_records
from dpfedbench.evaluation import evaluate
from dpfedbench.models.choose import Choice
from dpfedbench.papers import METHODS, read_run
from dpfedbench.papers.gbml import NonPrivateReptile
from dpfedbench.training import engine
from dpfedbench.training.accounts import account_run
from dpfedbench.training.client_updates.model_difference import DifferenceUpdate
from dpfedbench.training.clients import Clients
from dpfedbench.training.federation import Federation
from dpsum import randomness
from dpsum.ledger import Ledger, read_ledger
from dpsum.private_sum import PrivateSum
from tests.base_values import fit
from tests.partitions import make_dirichlet, make_fragments, make_partition

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
    },
    "model": {"kind": "conv4", "filters": 4},
    "participation": {"kind": "one-pass", "cohort": 4, "rounds": 12},
    "client_update": {"inner_steps": 1, "inner_rate": 0.1},
    "clipping": {
        "threshold": 0.5,
        "percentile": 90,
        "window": 3,
        "form": "mean",
        "never_rising": False,
    },
    "noise": {"multiplier": 1.0},
    "budget": {"epsilon": None, "delta": 1e-3, "profile": "proven", "stop": True},
    "server": {"kind": "step", "rate": 0.01, "optimizer": "adam"},
    "validation": {"every": 4, "tasks": 4, "ensemble": 2, "public": True},
    "evaluation": {"tasks": 6, "query_per_class": 3, "steps": 2, "rate": 0.1},
}
"""The small federation's base configuration."""

RECORD_MODEL = {"model": {"normalisation": "record"}}
"""Model of methods that take a client's examples one by one."""

PLAIN = {"method": "maml"}
LOTS = merge(
    RUN,
    {
        "method": "adap-dp-fl",
        "dataset": "digits",
        "task": {"ways": 10, "shots": 0},
        "clients": {"count": 4, "partition": "fragments", "fragments": 20},
        "model": {"kind": "cnn", "pixel_mean": 0.3, "pixel_deviation": 0.5},
        "participation": {"kind": "poisson-lots", "lot": 8},
        "client_update": {"inner_rate": 0.01, "optimizer": "adam"},
        "clipping": {"kind": "constant", "threshold": 1.0},
        "noise": {"kind": "fixed", "multiplier": 2.0},
        "budget": {"delta": 1e-4, "profile": "claimed"},
        "server": {"kind": "average"},
        "validation": {"every": 1, "tasks": 20, "ensemble": 1},
        "evaluation": {"every": 4},
    },
)
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
    `general` that the method lacks are left out; keys of the overlays have to fit. The
    values of the method's class count only for sections and kinds that neither states.
    """
    values = merge(*overlays)
    method = METHODS[values.pop("method", general["method"])]
    if issubclass(method, NonPrivateReptile):
        general = merge(RECORD_MODEL, general)
    resolved = fit(method, merge(general, method.defaults, values), values)
    return read_run(resolved | {"method": method.name})


lots_config = functools.partial(make_config, general=LOTS)
difference_config = functools.partial(make_config, general=DIFFERENCE)


def stop_before(monkeypatch, index):
    """Make a training raise the returned exception before round `index`."""
    stop = type("Stop", (Exception,), {})
    step = engine._Training._round

    def until(self, current):
        if current == index:
            raise stop
        return step(self, current)

    monkeypatch.setattr(engine._Training, "_round", until)
    return stop


def forking():
    """Return a context whose processes are forks of one that has imported `loaded`.

    A process has one such server. It imports what the first caller names.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.dpfedbench.training.loaded"])
    return context


def train_model(config, folders, run_dir, threads=1, checkpoint_seconds=1e9, **options):
    """Train a run on (data folder, clients folder)."""
    data, clients = folders
    options |= {"threads": threads, "checkpoint_seconds": checkpoint_seconds}
    engine.train(config, data_dir=data, clients_dir=clients, run_dir=run_dir, **options)


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
    names = ("model.safetensors", "ledger.jsonl", "metrics.json")
    return {name: (run_dir / name).read_bytes() for name in names}


def scaled(images, labels):
    """Return images scaled to 0..1 and labels as tensors."""
    images = torch.from_numpy(np.asarray(images)).float() / 255
    return images, torch.from_numpy(np.asarray(labels))


def examples(dataset, records):
    """Return (images scaled to 0..1, labels) of records of a data set."""
    return scaled(dataset.images[records], dataset.labels[records])


def client_examples(folders):
    """Return (images scaled to 0..1, labels) of each client of (data, clients)."""
    dataset = load_any_records(folders[0])
    clients = RecordPartition.load(folders[1]).records
    return [examples(dataset, np.sort(records[records >= 0])) for records in clients]


def mean_loss(theta, images, labels, net):
    return torch.nn.functional.cross_entropy(net.logits(theta, images), labels)


def mean_gradient(net, theta, images, labels):
    """Return the gradient of the mean loss of some records, by autodiff."""
    return torch.func.grad(mean_loss)(theta, images, labels, net)


def clipped_gradient_sum(
    net, theta, images, labels, threshold, coordinates=slice(None)
):
    """Return the sum of single records' gradients over some coordinates, each clipped."""
    record_gradients = torch.func.vmap(functools.partial(mean_gradient, net, theta))
    gradients = record_gradients(images[:, None], labels[:, None])[:, coordinates]
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


def accounted(config, run_dir, clients_dir=None, **options):
    """Return the account of a finished run, which is the content of privacy.json."""
    path = run_dir / "privacy.json"
    account_run(config, run_dir, path, clients_dir=clients_dir, **options)
    return json.loads(path.read_text())


def proven(config, run_dir):
    """Return the proven epsilon: a mapping with status, epsilon_low, epsilon_high."""
    return accounted(config, run_dir)["profiles"]["proven"]


def logged(make_rounds, *arguments, **options):
    """Return rounds whose list `log` receives their releases.

    Items are (ledger line, releases, means float64 [k, d]).
    """
    log = []

    def observe(line, outcomes):
        releases = [release for release, _ in outcomes]
        log.append((line, releases, np.array([mean for _, mean in outcomes])))

    rounds = make_rounds(*arguments, observer=observe, **options)
    rounds.log = log
    return rounds


def rounds_of(config, folders, run_dir, **options):
    """Return the rounds of a run. Their releases go to the list `log`."""
    run_dir.mkdir(exist_ok=True)
    names = ("kernels", "device", "references")
    read = {name: options.pop(name) for name in names if name in options}
    federation = Federation.load(
        config,
        data_dir=folders[0],
        clients_dir=folders[1],
        threads=options.get("threads", 1),
        **read,
    )
    ledger = Ledger(run_dir / "ledger.jsonl")
    return logged(engine.Rounds, config, federation, ledger=ledger, **options)


def take_rounds(rounds, count):
    """Take the first rounds of a run, and return its rounds."""
    for index in range(count):
        rounds.round(index)
    return rounds


def remove_noise(monkeypatch):
    """Make private sums release the clipped sum without noise."""
    monkeypatch.setattr(PrivateSum, "_noised", lambda self, total, standard: total)


def watch(monkeypatch, owner, name, record):
    """Return a list that receives `record(result, *arguments)` of each call."""
    records = []
    function = getattr(owner, name)

    def watched(*arguments, **options):
        result = function(*arguments, **options)
        records.append(record(result, *arguments))
        return result

    monkeypatch.setattr(owner, name, watched)
    return records


def watch_releases(monkeypatch):
    """Return a list that receives (private sum, released vector) of each release."""

    def record(vector, total, _):
        return total, vector.copy()

    return watch(monkeypatch, PrivateSum, "release", record)


def watch_streams(monkeypatch):
    """Return a list that receives the name of each random stream that is opened."""
    return watch(monkeypatch, randomness, "stream", lambda generator, *name: name)


def assert_drawn_anew(drawn, rate):
    """Check that samples, bool [rounds, clients, steps, records], are independent.

    Two samples share a record with probability rate^2. Exact binomial tests of disjoint
    pairs (at most nine) and one test of the rate, with false-alarm rate 1e-3 each.
    """
    assert stats.binomtest(int(drawn.sum()), drawn.size, rate).pvalue > 1e-3
    for axis in range(3):
        samples = np.moveaxis(drawn, axis, 0)
        pairs = [(samples[0], sample) for sample in samples[1:3]]
        pairs.append((samples[:-1:2], samples[1::2]))
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

    def mask(self, *names):
        """Return the coordinates of any tensors: all but the last, bool [d]."""
        return np.arange(self.dimension) < self.dimension - 1


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
    federation = Federation(net=FlatNet(dimension), held=held, gradients=gradients)
    options |= {"clients": clients, "ledger": []}
    return logged(engine.Rounds, config, federation, **options)


def fixed_rounds(config, contributions, **options):
    """Return the rounds of a run over fixed contributions [clients, d]."""
    clients = FixedClients(contributions)
    return rounds_in_memory(config, clients.rows.shape[1], clients, **options)


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


def rounds_of_rows(config, rows):
    """Return the rounds of clients whose records have these gradients, float [clients,
    records, d].
    """
    clients, records, dimension = np.shape(rows)
    numbers = np.arange(clients * records).reshape(clients, records, 1)
    labels = np.repeat(np.arange(clients), records).reshape(clients, records)
    held = SimpleNamespace(images=list(numbers), labels=list(labels))
    flat = np.reshape(rows, (-1, dimension))
    gradients = Choice("rows", lambda: RecordRows(flat), "cpu")
    return rounds_in_memory(config, dimension, held=held, gradients=gradients)


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
    count = config.clients.count

    def gather(ids):
        return SimpleNamespace(
            support_x=np.zeros((len(ids), 3, 4, 4, 1)),
            support_y=np.zeros((len(ids), 3), int),
            query_x=np.zeros((len(ids), 6, 4, 4, 1)),
            query_y=np.zeros((len(ids), 6), int),
        )

    images = [np.zeros((50, 4, 4, 1), np.uint8)] * count
    labels = [np.zeros(50, np.int64)] * count
    held = SimpleNamespace(images=images, labels=labels, gather=gather)
    sends_differences = isinstance(config.client_update, DifferenceUpdate)
    sends_gradients = not config.client_sums and config.client_data == "tasks"
    clients = None
    if sends_differences or sends_gradients:
        clients = FixedClients(np.zeros((count, 3)))
    gradients = Choice("zero", ZeroGradients, "cpu")
    return rounds_in_memory(config, 3, clients, held, gradients)


UNEQUAL = {"partition": "dirichlet", "concentration": 0.5, "least": 20}


@pytest.fixture(scope="session")
def unequal(silos, tmp_path_factory):
    """Deal 400 records unequally to four clients: (data folder, clients folder)."""
    folder = tmp_path_factory.mktemp("unequal")
    sizes = {"concentration": 0.5, "least": 20}
    make_dirichlet(load_records(silos[0]), clients=4, seed=0, **sizes).save(folder)
    return silos[0], folder


@pytest.fixture(scope="session")
def apart(federation, tmp_path_factory):
    """Make four clients that share no image: (data folder, clients folder)."""
    folder = tmp_path_factory.mktemp("apart")
    sizes = {"clients": 4, "ways": 3, "examples_per_class": 4}
    dataset = load_dataset(federation[0])
    make_partition(dataset, kind="disjoint", seed=0, **sizes).save(folder)
    return federation[0], folder


@pytest.fixture(scope="session")
def holder(tmp_path_factory):
    """Give all images of the training classes to one client.

    Classes 1, 3, 5 and 7 of eight are training classes, with ten images each. Returns
    (data folder, clients folder).
    """
    root = tmp_path_factory.mktemp("holder")
    images = np.random.default_rng(0).integers(0, 256, (8, 10, 16, 16, 1), np.uint8)
    names = tuple(f"class{i}" for i in range(8))
    splits = ("test", "train", "validation", "train") + ("test", "train") * 2
    raw = RawImages(images=images, class_names=names, splits=splits, versions={})
    raw.save(root / "data", {"name": "glyphs"})
    records = load_any_records(root / "data")
    make_fragments(records, clients=1, fragments=1, seed=0).save(root / "clients")
    return root / "data", root / "clients"

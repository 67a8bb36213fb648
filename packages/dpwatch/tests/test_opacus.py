"""Watched Opacus trainings: ledger, account and audit, right and with planted faults."""

import functools
import math
from contextlib import nullcontext

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from opacus import GradSampleModule, PrivacyEngine
from opacus.accountants.analysis import rdp
from opacus.optimizers import DPOptimizer
from opacus.optimizers import optimizer as opacus_optimizer
from opacus.utils.adaptive_clipping import adaptive_clipping_utils
from opacus.utils.batch_memory_manager import BatchMemoryManager
from scipy.stats import chi2
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import sampler as samplers

from dploss.gaussian import gaussian_epsilon
from dpsum import DpsumError
from dpsum.ledger import read_ledger
from dpwatch.adapters import torch_loader
from dpwatch.adapters.opacus import release_of, watch
from dpwatch.audit.anything import audited

AdaptiveEngine = adaptive_clipping_utils.PrivacyEngineAdaptiveClipping
pytestmark = pytest.mark.filterwarnings("ignore")

RECORDS = 200
BATCH = 20
EPOCHS = 2
STEPS = 20
DELTA = 1e-5
DIMENSION = 10 * 16 + 16 + 16 * 2 + 2
NOISE = "add_noise"
CLIP = "clip_and_accumulate"
GHOST = {"grad_sample_mode": "ghost"}
PER_LAYER = {"max_grad_norm": [0.3, 0.4, 1.2, 0.001], "clipping": "per_layer"}
ADAPTIVE = {
    "clipping": "adaptive",
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.1,
    "unclipped_num_std": 2.0,
}


@pytest.fixture(autouse=True, scope="module")
def cached_opacus_accountant():
    """Opacus's accountant takes longer than most trainings here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rdp, "_compute_rdp", functools.cache(rdp._compute_rdp))
        yield


def loader_of(sampler=None, **options):
    """Return a function that makes a data loader, with a sampler of the data."""

    def make(data):
        order = {} if sampler is None else {"sampler": sampler(data)}
        return DataLoader(data, **{"batch_size": BATCH} | order | options)

    return make


SHUFFLE = loader_of(shuffle=True)


class Training:
    """Small private training, written as Opacus's tutorials write it."""

    def __init__(
        self, *, loader=SHUFFLE, seed=0, records=RECORDS, accountant="prv", **options
    ):
        torch.manual_seed(seed)
        data = TensorDataset(torch.randn(records, 10), torch.randint(0, 2, (records,)))
        self.model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2))
        self.public_loader = loader(data)
        self.engine = PrivacyEngine(accountant=accountant)
        self.criterion = nn.CrossEntropyLoss()
        self.module, self.optimizer, *criterion, self.loader = self.engine.make_private(
            module=self.model,
            optimizer=torch.optim.SGD(self.model.parameters(), lr=0.1),
            data_loader=self.public_loader,
            criterion=self.criterion,
            **{"noise_multiplier": 1.0, "max_grad_norm": 1.0} | options,
        )
        if criterion:
            (self.criterion,) = criterion

    def watch(self, path, epochs=EPOCHS, **options):
        parts = self.engine, self.module, self.optimizer, self.loader
        return watch(*parts, epochs=epochs, ledger=path, **options)

    def use(self, batch, *, step=True):
        self.criterion(self.module(batch[0]), batch[1]).backward()
        if step:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def run(self, epochs=EPOCHS, *, every=1, physical_batch=None, stop_after=None):
        """Train, with a step for `every` batches; epochs may stop early."""
        manager = nullcontext(self.loader)
        if physical_batch is not None:
            manager = BatchMemoryManager(
                data_loader=self.loader,
                max_physical_batch_size=physical_batch,
                optimizer=self.optimizer,
            )
        with manager as loader:
            for _ in range(epochs):
                for number, batch in enumerate(loader, start=1):
                    self.use(batch, step=number % every == 0)
                    if number == stop_after:
                        break

    def run_watched(self, path, **options):
        """Train under watch; return the watch."""
        watched = self.watch(path)
        self.run(**options)
        return watched

    def weights(self):
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()


@functools.cache
def poisson_epsilon(*multipliers, rate=BATCH / RECORDS, steps=STEPS):
    """Return dp_accounting's epsilon; each multiplier has its share of the steps."""
    accountant = PLDAccountant()
    for multiplier in multipliers:
        gaussian = dp_accounting.GaussianDpEvent(multiplier)
        event = dp_accounting.PoissonSampledDpEvent(rate, gaussian)
        accountant.compose(event, steps // len(multipliers))
    return accountant.get_epsilon(DELTA)


def lines_of(watched):
    return read_ledger(watched.ledger.path, watched.ledger.chain)


def reasons_of(watched):
    return {line.reason for line in lines_of(watched)} - {""}


def proven_ends(account):
    proven = account.profiles["proven"]
    return proven.epsilon_low, proven.epsilon_high


# Right code


@pytest.mark.parametrize(
    ("options", "physical_batch", "norm"),
    [
        ({}, None, 1.0),
        (GHOST, None, 1.0),
        ({}, 7, 1.0),
        (GHOST, 7, 1.0),
        ({"loader": loader_of(shuffle=True, num_workers=2)}, None, 1.0),
        (PER_LAYER, None, math.sqrt(0.09 + 0.16 + 1.44 + 1e-6)),
        ({"wrap_model": False}, None, 1.0),
        ({"loss_reduction": "sum"}, None, 1.0),
        ({"records": 5 * BATCH + 1}, None, 1.0),
    ],
)
def test_watch_of_poisson_training_has_a_line_a_step(
    options, physical_batch, norm, path
):
    """Two other accountants of the same mechanism confirm the account to 1e-3."""
    training = Training(**options)
    if "wrap_model" in options:
        training.module = training.model
    if "loss_reduction" in options:
        training.criterion = nn.CrossEntropyLoss(reduction="sum")
    watched = training.run_watched(path, physical_batch=physical_batch)
    records = options.get("records", RECORDS)
    batches = math.ceil(records / BATCH)
    denominator = 1.0 if "loss_reduction" in options else int(records / batches)
    lines = lines_of(watched)
    assert [line.round for line in lines] == list(range(EPOCHS * batches))
    for line in lines:
        sampler = line.sampler["kind"], line.sampler["rate"], line.sampler["records"]
        assert sampler == ("poisson-lots", 1 / batches, records)
        assert (line.denominator, line.dimension) == (denominator, DIMENSION)
        values = line.sensitivity, line.noise_std
        assert values == pytest.approx((norm, norm), rel=1e-7)
        assert line.reason == ""
    account = watched.account(DELTA, units_public=True)
    low, high = proven_ends(account)
    expected = poisson_epsilon(1.0, rate=1 / batches, steps=EPOCHS * batches)
    assert low - 1e-3 < expected < high + 1e-3
    assert high - low < 1e-3
    opacus_epsilon = training.engine.accountant.get_epsilon(DELTA, eps_error=5e-4)
    assert low < opacus_epsilon == pytest.approx(high, abs=1e-3)
    claimed = account.profiles["claimed"]
    assert (claimed.status, claimed.adjacency) == ("proved", "zero-out")
    assert claimed.epsilon_high == training.engine.get_epsilon(DELTA)


@pytest.mark.parametrize(("accountant", "status"), [("rdp", "proved"), ("gdp", "void")])
def test_watch_voids_the_claim_of_the_central_limit(accountant, status, path):
    """Renyi divergences give an upper bound."""
    watched = Training(accountant=accountant).run_watched(path)
    account = watched.account(DELTA, units_public=True)
    claimed = account.profiles["claimed"]
    assert claimed.status == status
    assert status == "void" or claimed.epsilon_high > proven_ends(account)[1]


@pytest.mark.parametrize("options", [{}, GHOST])
def test_watch_changes_no_bit_and_can_be_stopped(options, path, tmp_path):
    unwatched = Training(**options)
    training = Training(**options)
    watched = training.watch(path)
    for run in (unwatched, training):
        torch.manual_seed(7)
        run.run(physical_batch=6)
    assert torch.equal(unwatched.weights(), training.weights())
    watched.stop()
    assert not {"_dpsum", "add_noise"} & set(vars(training.optimizer))
    kind = type(unwatched.loader.batch_sampler)
    assert type(training.loader.batch_sampler) is kind
    assert len(lines_of(watched)) == STEPS
    training.engine = PrivacyEngine()
    training.watch(tmp_path / "again").stop()


@pytest.mark.parametrize("seed", range(6))
def test_watch_of_right_code_has_no_reason(seed, path):
    """The measurement of the noise has a false-alarm rate of 1e-9 a run; the rest is
    exact.
    """
    training = Training(seed=seed, **GHOST if seed % 2 else {})
    watched = training.watch(path, epochs=4)
    training.run(4)
    assert reasons_of(watched) == set()


SHUFFLED = "shuffled-epochs"
ORDERED = "min-separation"
DROP_LAST = {"loader": loader_of(shuffle=True, drop_last=True), "records": 210}
SUBSET = {"loader": loader_of(lambda data: samplers.SubsetRandomSampler(range(150)))}
IN_ORDER = {"loader": loader_of()}


@pytest.mark.parametrize(
    ("options", "every", "kind", "records", "cohort", "rounds"),
    [
        ({}, 1, SHUFFLED, RECORDS, 20, 20),
        ({}, 5, SHUFFLED, RECORDS, 100, 4),
        (DROP_LAST, 1, SHUFFLED, 210, 20, 20),
        (SUBSET, 1, SHUFFLED, 150, 20, 16),
        (IN_ORDER, 1, ORDERED, RECORDS, 20, 20),
        (IN_ORDER, 2, ORDERED, RECORDS, 40, 10),
    ],
)
def test_watch_of_epochs_voids_the_poisson_claim(
    options, every, kind, records, cohort, rounds, path
):
    """E epochs of disjoint batches, which the observer may know, are E Gaussian
    releases of a record: one of z / sqrt(E).
    """
    training = Training(poisson_sampling=False, **options)
    watched = training.run_watched(path, every=every)
    lines = lines_of(watched)
    assert len(lines) == rounds
    sizes = {"records": records, "cohort": cohort, "rounds": rounds}
    sizes["epoch" if kind == SHUFFLED else "separation"] = rounds / EPOCHS
    sampler = {"kind": kind, "rate": cohort / records} | sizes
    assert {name: lines[0].sampler[name] for name in sampler} == sampler
    assert reasons_of(watched) == set()
    denominator = every * int(training.optimizer.expected_batch_size)
    assert {line.denominator for line in lines} == {denominator}
    account = watched.account(DELTA)
    claimed = account.profiles["claimed"]
    assert claimed.status == "void"
    assert claimed.epsilon_high == training.engine.get_epsilon(DELTA)
    gaussian = gaussian_epsilon(1 / math.sqrt(EPOCHS), DELTA)
    assert proven_ends(account)[1] == pytest.approx(gaussian, rel=1e-9)


def unknown_batches(data):
    kind = type("UnknownBatches", (samplers.BatchSampler,), {})
    return DataLoader(
        data, batch_sampler=kind(samplers.RandomSampler(data), BATCH, False)
    )


@pytest.mark.parametrize(
    "loader",
    [
        loader_of(lambda data: samplers.RandomSampler(data, replacement=True)),
        loader_of(
            lambda data: samplers.WeightedRandomSampler([1.0] * len(data), len(data))
        ),
        loader_of(lambda data: samplers.SubsetRandomSampler([*range(150), 3])),
        unknown_batches,
    ],
)
def test_watch_of_an_unknown_sampler_has_no_epsilon(loader, path):
    watched = Training(poisson_sampling=False, loader=loader).run_watched(path)
    assert lines_of(watched)[0].sampler["kind"] == "unknown"
    with pytest.raises(DpsumError, match=r"no analysis.*unknown"):
        watched.account(DELTA)


# Noise and thresholds that change


@pytest.mark.parametrize(
    ("name", "value", "later_z", "status"),
    [
        ("noise_multiplier", 0.5, 0.5, "as run"),
        ("max_grad_norm", 0.25, 1.0, "proved"),
    ],
)
def test_watch_accounts_for_noise_or_a_norm_that_was_lowered(
    name, value, later_z, status, path
):
    training = Training()
    watched = training.watch(path)
    training.run(1)
    setattr(training.optimizer, name, value)
    training.run(1)
    threshold = value if name == "max_grad_norm" else 1.0
    written = [(line.noise_multiplier, line.threshold) for line in lines_of(watched)]
    assert written == [(1.0, 1.0)] * 10 + [(later_z, threshold)] * 10
    account = watched.account(DELTA)
    low, high = proven_ends(account)
    assert low - 1e-3 < poisson_epsilon(1.0, later_z) < high + 1e-3
    assert account.profiles["proven"].status == status


@pytest.mark.parametrize("options", [GHOST, {}])
def test_watch_accounts_for_noise_of_another_norm_than_the_clipping(options, path):
    """Opacus claims the same epsilon for half the noise that the clipping needs."""
    training = Training(**options)
    watched = training.watch(path)
    training.optimizer.max_grad_norm = 0.5  # the module of ghost clipping clips to 1
    if options is not GHOST:
        plant(training.optimizer, CLIP, clipping_to_twice)
    training.run()
    for line in lines_of(watched):
        values = line.sensitivity, line.noise_std, line.noise_multiplier
        assert values == (1, 0.5, 0.5)
    account = watched.account(DELTA)
    low, high = proven_ends(account)
    assert low - 1e-3 < poisson_epsilon(0.5) < high + 1e-3
    assert account.profiles["claimed"].epsilon_high < 0.4 * low


# Thresholds of the norm 5.
NORM_5 = {"max_grad_norm": [1.0, 2.0, 2.0, 4.0], "clipping": "per_layer"}


def test_watch_of_per_layer_clipping_has_a_group_for_each_tensor(path):
    """Every tensor has noise of 5 z. Opacus keeps it where thresholds are raised: those
    of the norm 10 make z = 1/2. It would clip the first tensors alone where there are
    too few, without a warning.
    """
    training = Training(**NORM_5)
    watched = training.watch(path)
    training.run(1)
    training.optimizer.max_grad_norms = [2.0, 4.0, 4.0, 8.0]
    training.run(1)
    assert reasons_of(watched) == set()
    for index, line in enumerate(lines_of(watched)):
        scale = 1.0 if index < STEPS / EPOCHS else 2.0
        assert line.groups == {
            "boundaries": [0, 160, 176, 208, 210],
            "thresholds": [scale, 2 * scale, 2 * scale, 4 * scale],
            "noise_stds": [5.0] * 4,
            "names": ["0.weight", "0.bias", "2.weight", "2.bias"],
        }
        assert line.threshold == line.sensitivity == 5 * scale
        assert (line.noise_std, line.noise_multiplier) == (5.0, 1 / scale)
    account = watched.account(DELTA)
    assert account.profiles["claimed"].epsilon_high < proven_ends(account)[0]
    training.optimizer.max_grad_norms = [1.0, 2.0, 2.0]
    with pytest.raises(DpsumError, match="has 3 thresholds"):
        training.run(1)


def test_per_layer_noise_has_the_stated_deviation_on_every_tensor():
    """At least 800 draws of each tensor: the deviation is within 12.5 % of 5 with
    probability 1 - 1e-6.
    """
    release = release_of(Training(**NORM_5).optimizer)
    noise = np.array([release(np.zeros((1, DIMENSION))) for _ in range(400)])
    for tensor in np.split(noise, [160, 176, 208], axis=1):
        assert tensor.std() == pytest.approx(5.0, rel=0.125)


# The number of records


def test_claim_for_a_private_number_of_records_is_void(path):
    """Zero-out and replace-one have a public number of records, and stand."""
    watched = Training().run_watched(path)
    account = watched.account(DELTA)
    named = {
        name: (entry.adjacency, entry.status)
        for name, entry in account.profiles.items()
    }
    assert named["claimed"] == ("add-or-remove", "void")
    assert named["proven"] == ("zero-out", "proved")
    assert named["replace_one"] == ("replace-one", "proved")
    assert "int(N / L)" in account.profiles["claimed"].explanation
    assert any("under add-or-remove" in notice for notice in account.notices)
    public = watched.account(DELTA, units_public=True)
    claimed = public.profiles["claimed"]
    assert (claimed.adjacency, claimed.status) == ("zero-out", "proved")
    assert public.notices == ()


def released_mean(records, rows):
    """Return a coordinate of the mean that Opacus releases, without noise.

    Args:
        records: number of records of the data.
        rows: gradients of the batch's records in that coordinate.
    """
    loader = loader_of(batch_size=64, shuffle=True)
    training = Training(records=records, loader=loader, noise_multiplier=1e-12)
    optimizer = training.optimizer
    gradients = torch.zeros(len(rows), DIMENSION)
    gradients[:, 0] = torch.tensor(rows)
    sizes = [tensor.numel() for tensor in optimizer.params]
    columns = gradients.split(sizes, dim=1)
    for tensor, values in zip(optimizer.params, columns, strict=True):
        tensor.grad_sample = values.reshape(-1, *tensor.shape)
        tensor.summed_grad = None
    optimizer.pre_step()
    rate = training.loader.batch_sampler.sample_rate
    return rate, optimizer.expected_batch_size, optimizer.params[0].grad[0, 0].item()


def test_one_record_less_moves_the_released_mean_by_twice_its_share():
    """Both data sets have 938 batches, and divisors of 64 and 63. A batch of 63 gradients
    of C and one of -C has the mean 62 C / 64. Without the last it is C: it moved by
    2 C / 64, and the account is of C / 64.
    """
    others = [1.0] * 63
    rate, divisor, with_it = released_mean(60_032, [*others, -1.0])
    rate_without, divisor_without, without_it = released_mean(60_031, others)
    assert rate == rate_without == 1 / 938
    assert (divisor, divisor_without) == (64, 63)
    assert with_it == pytest.approx(62 / 64, rel=1e-5)
    assert without_it == pytest.approx(1.0, rel=1e-5)


def test_noise_of_one_epoch_tells_one_record_less():
    """The noise of the mean is z C / 64 or z C / 63 on each of 938 x 210 coordinates, so
    that its sum of squares, a chi squared, shows an epsilon of more than 20. Opacus
    claims less than 1 for the epoch.
    """
    draws = 938 * DIMENSION
    median = chi2.median(draws)
    # More than the median of the noise over 63, and seldom so much over 64.
    log_false_alarm = chi2.logsf(median * (64 / 63) ** 2, draws)
    shown = math.log(0.5 - DELTA) - log_false_alarm
    assert shown > 20
    assert poisson_epsilon(1.0, rate=1 / 938, steps=938) < 1


@pytest.mark.parametrize(("reduction", "loss_reduction"), [("sum", "mean")])
def test_clipped_sum_of_a_criterion_that_adds_up_moves_by_more(
    reduction, loss_reduction, path
):
    """Opacus multiplies each record's gradient by the batch's size n under "mean". With
    n gradients of C / n, leaving one out moves the clipped sum from n C to (n - 1)^2 C /
    n: by 2 C - C / n.
    """
    sums = []
    for rows in (5, 4):
        model = GradSampleModule(nn.Linear(1, 1, bias=False), loss_reduction="mean")
        optimizer = DPOptimizer(
            torch.optim.SGD(model.parameters()),
            noise_multiplier=0.0,
            max_grad_norm=1.0,
            expected_batch_size=5,
        )
        model(torch.full((rows, 1), 1 / 5)).sum().backward()
        optimizer.clip_and_accumulate()
        sums.append(optimizer.params[0].summed_grad.item())
    assert sums[0] - sums[1] == pytest.approx(2 - 1 / 5, rel=1e-5)
    criterion = nn.CrossEntropyLoss(reduction=reduction)
    training = Training(loss_reduction=loss_reduction)
    with pytest.raises(
        DpsumError, match="reduction is sum, but loss_reduction is mean"
    ):
        training.watch(path, criterion=criterion)
    training.watch(path, criterion=nn.CrossEntropyLoss()).stop()


# Layers that are frozen


def freeze(training, value=False):
    training.model[0].requires_grad_(value)


def run_with_change(training, change, path, step=10):
    """Train for two epochs, with a change before a step; return the watch."""
    watched = training.watch(path)
    number = 0
    for _ in range(EPOCHS):
        for batch in training.loader:
            if number == step:
                change(training)
            training.use(batch)
            number += 1
    assert number == STEPS
    return watched


@pytest.mark.parametrize(
    ("options", "later_z", "groups"),
    [({}, 1.0, None), (NORM_5, math.sqrt(5), ["2.weight", "2.bias"])],
)
def test_watch_accounts_for_a_layer_that_is_frozen(options, later_z, groups, path):
    """The tensors that are left have 34 coordinates. Opacus gives them the first
    thresholds, 1 and 2, and noise of 5, the norm of all thresholds.
    """
    watched = run_with_change(Training(**options), freeze, path)
    lines = lines_of(watched)
    assert reasons_of(watched) == set()
    assert [line.dimension for line in lines] == [DIMENSION] * 10 + [34] * 10
    multipliers = [line.noise_multiplier for line in lines]
    assert multipliers == pytest.approx([1.0] * 10 + [later_z] * 10, rel=1e-7)
    if groups:
        assert lines[-1].groups["names"] == groups
    low, high = proven_ends(watched.account(DELTA))
    assert low - 1e-3 < poisson_epsilon(1.0, later_z) < high + 1e-3


def test_watch_accounts_for_a_parameter_that_is_added(path):
    """Progressive unfreezing adds the first layer to the optimiser."""
    training = Training(poisson_sampling=False)
    optimizer = training.optimizer
    optimizer.param_groups[0]["params"] = list(training.model[2].parameters())

    def add_first_layer(training):
        for tensor in training.model[0].parameters():
            tensor.grad_sample = None
            tensor.summed_grad = None
        optimizer.param_groups[0]["params"] = list(training.model.parameters())

    watched = run_with_change(training, add_first_layer, path)
    assert reasons_of(watched) == set()
    dimensions = [line.dimension for line in lines_of(watched)]
    assert dimensions == [34] * 10 + [DIMENSION] * 10


def frozen_first(**options):
    """Return a training of ghost clipping whose first layer is frozen at first."""

    class FrozenFirst(nn.Sequential):
        def __init__(self, *layers):
            super().__init__(*layers)
            self[0].requires_grad_(False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn, "Sequential", FrozenFirst)
        return Training(**GHOST, **options)


@pytest.mark.parametrize(
    ("training", "change"),
    [
        # Its gradient is in no norm that ghost clipping takes.
        (frozen_first, lambda training: freeze(training, True)),
        # Its norms are those of an earlier batch's records.
        (lambda: Training(**GHOST, poisson_sampling=False), freeze),
    ],
)
def test_watch_reports_layers_that_ghost_clipping_does_not_clip_to(
    training, change, path
):
    watched = run_with_change(training(), change, path)
    lines = lines_of(watched)
    assert {line.reason for line in lines[:10]} == {""}
    assert all("ghost clipping clips to the norm" in line.reason for line in lines[10:])
    assert watched.account(DELTA).profiles["proven"].status == "void"


# Faults of a loop


def use_batches_twice(training):
    for batch in training.loader:
        training.use(batch)
        training.use(batch)


def divide_by_realised_size(training):
    for batch in training.loader:
        training.optimizer.expected_batch_size = len(batch[0])
        training.use(batch)


def seed_each_epoch(training):
    for _ in range(EPOCHS):
        torch.manual_seed(3)
        training.run(1)


def seed_noise_each_step(training):
    for batch in training.loader:
        training.optimizer.generator = torch.Generator().manual_seed(3)
        training.use(batch)


def use_public_loader(training):
    training.loader = training.public_loader
    training.run()


def accumulate_poisson_batches(training):
    training.module.allow_grad_accumulation()
    training.run(every=2)


def freeze_before_the_step(training):
    """Freeze a layer after the backward pass: its raw gradient is applied."""
    for number, batch in enumerate(training.loader):
        training.criterion(training.module(batch[0]), batch[1]).backward()
        if number == 5:
            freeze(training)
        training.optimizer.step()
        training.optimizer.zero_grad()


def freeze_between_physical_batches(training):
    """Freeze a layer while the gradients of a step are added up."""
    batches = iter(training.loader)
    optimizer = training.optimizer
    for skip in (True, False):
        optimizer.signal_skip_step(skip)
        training.use(next(batches))
        freeze(training)


def skip_empty_batches(training):
    for _ in range(20):
        for batch in training.loader:
            if len(batch[0]):
                training.use(batch)


# Faults of an optimiser, each in place of one of its methods


def plant(optimizer, name, fault):
    method = getattr(optimizer, name)
    setattr(optimizer, name, lambda: fault(optimizer, method))


def half_noise(optimizer, add_noise):
    optimizer.noise_multiplier /= 2
    add_noise()
    optimizer.noise_multiplier *= 2


def no_noise_on_a_tensor(optimizer, add_noise):
    add_noise()
    tensor = optimizer.params[-2]
    tensor.grad = tensor.summed_grad.clone()


def repeated_noise(optimizer, add_noise):
    optimizer.generator = torch.Generator().manual_seed(3)
    add_noise()


def reuse_noise(optimizer, add_noise, *, tensors, age, share=1.0):
    """Use earlier noise for some tensors: that of `age` steps before.

    Args:
        tensors: numbers of the tensors.
        age: number of steps.
        share: share of the noise that is used again; the rest is new.
    """
    add_noise()
    history = vars(optimizer).setdefault("history", [])
    noises = [tensor.grad - tensor.summed_grad for tensor in optimizer.params]
    history.append([noise.clone() for noise in noises])
    if len(history) > age:
        for number in tensors:
            tensor = optimizer.params[number]
            old = history[-1 - age][number]
            noise = share * old + math.sqrt(1 - share**2) * noises[number]
            tensor.grad = tensor.summed_grad + noise


def same_noise_at_once(optimizer, add_noise):
    """Use one draw for the weights of both layers."""
    add_noise()
    first, _, second, _ = optimizer.params
    noise = (first.grad - first.summed_grad).reshape(-1)[: second.numel()]
    second.grad = second.summed_grad + noise.reshape(second.shape)


def noise_of_each_threshold(optimizer, _):
    thresholds = optimizer.max_grad_norms
    for tensor, threshold in zip(optimizer.params, thresholds, strict=True):
        tensor.grad = tensor.summed_grad + threshold * torch.randn(tensor.shape)


def add_up(optimizer, factors_of=torch.ones_like):
    """Add up the rows of each tensor, times factors of their norms."""
    for tensor in optimizer.params:
        rows = optimizer._get_flat_grad_sample(tensor)
        factors = factors_of(rows.reshape(len(rows), -1).norm(dim=1))
        tensor.summed_grad = torch.einsum("i,i...->...", factors, rows)
        opacus_optimizer._mark_as_processed(tensor.grad_sample)


def no_clipping(optimizer, _):
    add_up(optimizer, lambda norms: torch.full_like(norms, 1000.0))


def clipping_by_tensor(optimizer, _):
    threshold = optimizer.max_grad_norm
    add_up(optimizer, lambda norms: (threshold / (norms + 1e-6)).clamp(max=1.0))


def clipping_of_the_sum(optimizer, _):
    add_up(optimizer)
    sums = [tensor.summed_grad for tensor in optimizer.params]
    factor = optimizer.max_grad_norm / (nn.utils.get_total_norm(sums) + 1e-6)
    for total in sums:
        total.mul_(factor.clamp(max=1.0))


def clipping_to_twice(optimizer, clip_and_accumulate):
    optimizer.max_grad_norm *= 2
    clip_and_accumulate()
    optimizer.max_grad_norm /= 2


def reversed_thresholds(optimizer, clip_and_accumulate):
    optimizer.max_grad_norms.reverse()
    clip_and_accumulate()
    optimizer.max_grad_norms.reverse()


def reused(**options):
    return NOISE, functools.partial(reuse_noise, **options)


LESS_NOISE = "its noise is less"
USED_BEFORE = "was used before"
TOO_LONG = "longer than the clipping norm"


# With 8 records in 4 lots every tenth lot is empty.
SMALL_LOTS = {"records": 8, "loader": loader_of(batch_size=2, shuffle=True)}


@pytest.mark.parametrize(
    ("options", "fault", "loop", "message"),
    [
        ({}, None, use_batches_twice, "a second time"),
        ({}, None, divide_by_realised_size, "expected_batch_size was changed"),
        ({}, None, seed_each_epoch, "that a batch was drawn from before"),
        ({}, None, seed_noise_each_step, "that noise was drawn from before"),
        ({}, None, use_public_loader, "of another"),
        ({}, None, accumulate_poisson_batches, "in more than one of them"),
        (SMALL_LOTS, None, skip_empty_batches, "was left out"),
        ({}, (NOISE, half_noise), Training.run, LESS_NOISE),
        ({}, (NOISE, no_noise_on_a_tensor), Training.run, LESS_NOISE),
        (PER_LAYER, (NOISE, noise_of_each_threshold), Training.run, LESS_NOISE),
        (PER_LAYER, (CLIP, reversed_thresholds), Training.run, TOO_LONG),
        ({}, (CLIP, no_clipping), Training.run, TOO_LONG),
        (ADAPTIVE, None, Training.run, "the batch's own size"),
        ({}, reused(tensors=range(4), age=1), Training.run, USED_BEFORE),
        ({}, reused(tensors=[1], age=15), Training.run, USED_BEFORE),
        ({}, reused(tensors=[0], age=2, share=0.7), Training.run, USED_BEFORE),
        (GHOST, reused(tensors=[2], age=3), Training.run, USED_BEFORE),
        (PER_LAYER, reused(tensors=[0], age=1), Training.run, USED_BEFORE),
        ({}, (NOISE, same_noise_at_once), Training.run, USED_BEFORE),
        ({}, None, freeze_before_the_step, "not clipped and noised"),
        ({}, None, freeze_between_physical_batches, "between the clipping"),
    ],
)
def test_watch_reports_a_fault(options, fault, loop, message, path):
    """No epsilon is finite, and Opacus's claim is void."""
    training = Training(**options)
    if fault:
        plant(training.optimizer, *fault)
    watched = training.watch(path, epochs=30)
    loop(training)
    reasons = reasons_of(watched)
    assert any(message in reason for reason in reasons), reasons
    profiles = watched.account(DELTA).profiles
    assert profiles["proven"].epsilon_high == math.inf
    assert profiles["proven"].status == profiles["claimed"].status == "void"
    assert math.isfinite(training.engine.get_epsilon(DELTA))


@pytest.mark.parametrize(
    ("run_options", "step"), [({"every": 3}, 3), ({"stop_after": 5}, 5)]
)
def test_watch_reports_records_that_return_too_early(run_options, step, path):
    """The tenth batch joins the next epoch, or an epoch is broken off."""
    watched = Training(poisson_sampling=False).run_watched(path, **run_options)
    lines = lines_of(watched)
    assert {line.reason for line in lines[:step]} == {""}
    assert torch_loader.STRADDLES in lines[step].reason


def test_watch_allows_a_poisson_epoch_that_is_broken_off(path):
    watched = Training().run_watched(path, stop_after=4)
    assert len(lines_of(watched)) == 8
    assert reasons_of(watched) == set()


@pytest.mark.parametrize("value", [math.nan, 3e38, -3e38, 1e-45])
def test_watch_writes_a_line_whatever_a_record_sends(value, path):
    """Opacus does not clip NaN, so the line has a reason. It counts a gradient as zero
    whose norm exceeds single precision.
    """
    training = Training()
    watched = training.watch(path, epochs=1)
    training.use(next(iter(training.loader)), step=False)
    for parameter in training.optimizer.params:
        if len(parameter.grad_sample):
            parameter.grad_sample[0] = value
    training.optimizer.step()
    (line,) = read_ledger(watched.path)
    assert ("not finite" in line.reason) == math.isnan(value)


# Refusals


def test_watch_refuses_a_step_without_a_release(path):
    training = Training()
    watched = training.watch(path)
    training.use(next(iter(training.loader)), step=False)
    for tensor in training.model.parameters():
        tensor.grad = tensor.grad_sample.mean(0)
    weights = training.weights()
    with pytest.raises(DpsumError, match="did not release"):
        training.optimizer.original_optimizer.step()
    assert torch.equal(weights, training.weights())
    assert watched.ledger.chain["lines"] == 0


def test_watch_refuses_more_epochs_than_planned(path):
    training = Training()
    training.watch(path, epochs=1)
    training.run(1)
    weights = training.weights()
    with pytest.raises(DpsumError, match="step 11 is beyond the 10 steps"):
        training.run(1)
    assert torch.equal(weights, training.weights())


def test_account_refuses_steps_that_were_not_watched(path):
    training = Training()
    watched = training.run_watched(path, epochs=1)
    unwatched = Training()
    unwatched.optimizer.attach_step_hook(training.optimizer.step_hook)
    unwatched.run(1)
    with pytest.raises(DpsumError, match="counts 20 steps and the ledger 10"):
        watched.account(DELTA)


@pytest.mark.parametrize(
    "change",
    [
        lambda it: setattr(it.optimizer, "__class__", type("New", (DPOptimizer,), {})),
        lambda it: setattr(it, "optimizer", Training(**GHOST).optimizer),
        lambda it: setattr(it.optimizer, "noise_multiplier", 0.0),
        lambda it: setattr(it, "engine", AdaptiveEngine()),
        lambda it: it.run(1),
    ],
)
def test_watch_refuses_what_it_does_not_know(change, path):
    training = Training()
    change(training)
    with pytest.raises(DpsumError):
        training.watch(path)


def test_account_refuses_a_ledger_of_another_run_or_that_was_edited(path):
    watched = Training().run_watched(path)
    with pytest.raises(DpsumError, match="has the lines of another run"):
        Training().watch(path)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"noise_std": 1.0', '"noise_std": 2.0', 1))
    with pytest.raises(DpsumError):
        watched.account(DELTA)


# Audits


def test_release_of_an_optimiser_clips_adds_and_noises():
    """Mean and deviation of 400 releases, against the clipped sum. The training's state
    does not change.
    """
    training = Training()
    training.use(next(iter(training.loader)), step=False)
    gradients = [tensor.grad_sample for tensor in training.optimizer.params]
    weights = training.weights()
    release = release_of(training.optimizer)
    rows = np.zeros((3, DIMENSION), dtype=np.float32)
    rows[[0, 1, 2], [0, 0, 1]] = 5.0, 0.25, -3.0
    releases = np.array([release(rows) for _ in range(400)])
    expected = np.zeros(DIMENSION)
    expected[:2] = 1.25, -1.0
    assert np.all(np.abs(releases.mean(0) - expected) < 5 / math.sqrt(400))
    assert releases.std() == pytest.approx(math.sqrt(1 + expected.var()), rel=0.02)
    assert torch.equal(weights, training.weights())
    for tensor, gradient in zip(training.optimizer.params, gradients, strict=True):
        assert tensor.grad_sample is gradient


@pytest.mark.parametrize(
    "fault", [None, (NOISE, half_noise), (CLIP, clipping_of_the_sum)]
)
def test_audit_of_a_watched_optimiser_refutes_planted_faults_alone(fault, path):
    """The false-alarm rate is 1e-3. The ledger cannot show clipping of another kind than
    its name. Releases for an audit are not in the ledger.
    """
    training = Training()
    watched = training.run_watched(path)
    release_of(training.optimizer)(np.ones((2, DIMENSION)))
    if fault:
        plant(training.optimizer, *fault)
    audit = watched.audit(DELTA)
    assert audit.refuted == (fault is not None)
    assert audit.claimed == pytest.approx(poisson_epsilon(1.0), abs=1e-3)
    assert (audit.epsilon > audit.claimed) == audit.refuted
    assert audit.epsilon > 1.0
    assert len(lines_of(watched)) == STEPS
    assert reasons_of(watched) == set()


@pytest.mark.parametrize(
    "fault",
    [
        (NOISE, no_noise_on_a_tensor),
        (NOISE, repeated_noise),
        (CLIP, clipping_by_tensor),
    ],
)
def test_audit_of_an_optimiser_refutes_further_faults(fault):
    optimizer = Training().optimizer
    plant(optimizer, *fault)
    release = release_of(optimizer)
    assert audited(release, dimension=DIMENSION, noise_multiplier=1.0).refuted

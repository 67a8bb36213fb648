"""Watched Opacus trainings: ledger, account and audit, right and with planted faults.

Accounts are compared with dp_accounting's PLD accountant and with Opacus's own; models
with trainings that nobody watches.
"""

import functools
import math
from contextlib import nullcontext

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from opacus import PrivacyEngine
from opacus.accountants.analysis import rdp
from opacus.optimizers import DPOptimizer
from opacus.optimizers import optimizer as opacus_optimizer
from opacus.utils.adaptive_clipping.adaptive_clipping_utils import (
    PrivacyEngineAdaptiveClipping,
)
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from dploss.gaussian import gaussian_epsilon
from dpsum import DpsumError
from dpsum.ledger import read_ledger
from dpwatch.adapters import torch_loader
from dpwatch.adapters.opacus import release_of, watch
from dpwatch.audit.anything import audited

pytestmark = pytest.mark.filterwarnings("ignore")

RECORDS = 200
BATCH = 20
EPOCHS = 2
DELTA = 1e-5
STEPS = 20
RATE = 0.1
DIMENSION = 10 * 16 + 16 + 16 * 2 + 2
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


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


class Training:
    """Small private training, written as Opacus's tutorials write it."""

    def __init__(
        self,
        *,
        loader=None,
        seed=0,
        records=RECORDS,
        accountant="prv",
        **options,
    ):
        torch.manual_seed(seed)
        data = TensorDataset(torch.randn(records, 10), torch.randint(0, 2, (records,)))
        self.model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2))
        self.public_loader = (loader or loader_of(shuffle=True))(data)
        self.engine = PrivacyEngine(accountant=accountant)
        self.module, self.optimizer, *criterion, self.loader = self.engine.make_private(
            module=self.model,
            optimizer=torch.optim.SGD(self.model.parameters(), lr=0.1),
            data_loader=self.public_loader,
            criterion=nn.CrossEntropyLoss(),
            **{"noise_multiplier": 1.0, "max_grad_norm": 1.0} | options,
        )
        self.criterion = criterion[0] if criterion else nn.CrossEntropyLoss()

    def watch(self, path, epochs=EPOCHS):
        parts = self.engine, self.module, self.optimizer, self.loader
        return watch(*parts, epochs=epochs, ledger=path)

    def backward(self, batch):
        self.criterion(self.module(batch[0]), batch[1]).backward()

    def step(self):
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
                    self.backward(batch)
                    if number % every == 0:
                        self.step()
                    if number == stop_after:
                        break

    def run_watched(self, path, **options):
        """Train under watch; return the watch."""
        watched = self.watch(path)
        self.run(**options)
        return watched

    def weights(self):
        return torch.cat(
            [tensor.detach().ravel() for tensor in self.model.parameters()]
        )


def loader_of(sampler=None, **options):
    """Return a function that makes a data loader, with a sampler of the data."""

    def make(data):
        order = {} if sampler is None else {"sampler": sampler(data)}
        return DataLoader(data, **{"batch_size": BATCH} | order | options)

    return make


@functools.cache
def poisson_epsilon(z, rate=RATE, steps=STEPS, later_z=None, interval=1e-4):
    """Return dp_accounting's epsilon; half of the steps may have another noise."""
    accountant = PLDAccountant(value_discretization_interval=interval)
    multipliers = [z] if later_z is None else [z, later_z]
    for multiplier in multipliers:
        gaussian = dp_accounting.GaussianDpEvent(multiplier)
        event = dp_accounting.PoissonSampledDpEvent(rate, gaussian)
        accountant.compose(event, steps // len(multipliers))
    return accountant.get_epsilon(DELTA)


def lines_of(watched):
    return read_ledger(watched.ledger.path, watched.ledger.chain)


def reasons_of(watched):
    reasons = (
        reason for line in lines_of(watched) for reason in line.reason.split("; ")
    )
    return set(reasons) - {""}


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
        assert line.sampler["kind"] == "poisson-lots"
        assert line.sampler["rate"] == 1 / batches
        assert line.sampler["records"] == records
        assert line.denominator == denominator
        assert line.dimension == DIMENSION
        assert line.sensitivity == pytest.approx(norm, rel=1e-7)
        assert line.noise_std == pytest.approx(norm, rel=1e-7)
        assert line.reason == ""
    account = watched.account(DELTA)
    low, high = proven_ends(account)
    expected = poisson_epsilon(1.0, 1 / batches, EPOCHS * batches)
    assert low - 1e-3 < expected < high + 1e-3
    assert high - low < 1e-3
    opacus_epsilon = training.engine.accountant.get_epsilon(DELTA, eps_error=5e-4)
    assert high == pytest.approx(opacus_epsilon, abs=1e-3)
    assert low < opacus_epsilon
    claimed = account.profiles["claimed"]
    assert claimed.status == "proved"
    assert claimed.epsilon_high == training.engine.get_epsilon(DELTA)


@pytest.mark.parametrize(("accountant", "status"), [("rdp", "proved"), ("gdp", "void")])
def test_watch_voids_the_claim_of_the_central_limit(accountant, status, path):
    """Renyi divergences give an upper bound."""
    account = Training(accountant=accountant).run_watched(path).account(DELTA)
    claimed = account.profiles["claimed"]
    assert claimed.status == status
    assert (claimed.epsilon_high > proven_ends(account)[1]) or status == "void"


@pytest.mark.parametrize("options", [{}, GHOST])
def test_watch_changes_no_bit_and_can_be_stopped(options, path, tmp_path):
    unwatched = Training(**options)
    training = Training(**options)
    torch.manual_seed(7)
    unwatched.run(physical_batch=6)
    torch.manual_seed(7)
    watched = training.run_watched(path, physical_batch=6)
    assert torch.equal(unwatched.weights(), training.weights())
    watched.stop()
    assert not {"_dpsum", "add_noise"} & set(vars(training.optimizer))
    batch_samplers = training.loader.batch_sampler, unwatched.loader.batch_sampler
    assert type(batch_samplers[0]) is type(batch_samplers[1])
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
DROP_LAST = loader_of(shuffle=True, drop_last=True)
SUBSET = loader_of(lambda data: SubsetRandomSampler(range(150)))


@pytest.mark.parametrize(
    ("options", "every", "kind", "records", "cohort", "rounds"),
    [
        ({}, 1, SHUFFLED, RECORDS, 20, 20),
        ({}, 5, SHUFFLED, RECORDS, 100, 4),
        ({"loader": DROP_LAST, "records": 210}, 1, SHUFFLED, 210, 20, 20),
        ({"loader": SUBSET}, 1, SHUFFLED, 150, 20, 16),
        ({"loader": loader_of()}, 1, ORDERED, RECORDS, 20, 20),
        ({"loader": loader_of()}, 2, ORDERED, RECORDS, 40, 10),
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
    sampler = lines[0].sampler
    assert sampler["kind"] == kind
    assert sampler["records"] == records
    assert sampler["cohort"] == cohort
    assert sampler["rounds"] == len(lines) == rounds
    assert sampler["rate"] == cohort / records
    epoch = sampler["epoch" if kind == SHUFFLED else "separation"]
    assert epoch == rounds / EPOCHS
    assert reasons_of(watched) == set()
    denominator = every * int(training.optimizer.expected_batch_size)
    assert {line.denominator for line in lines} == {denominator}
    account = watched.account(DELTA)
    claimed = account.profiles["claimed"]
    assert claimed.status == "void"
    assert claimed.epsilon_high == training.engine.get_epsilon(DELTA)
    gaussian = gaussian_epsilon(1 / math.sqrt(EPOCHS), DELTA)
    assert proven_ends(account)[1] == pytest.approx(gaussian, rel=1e-9)


class UnknownBatches(BatchSampler):
    """Batch sampler that the adapter does not know."""


@pytest.mark.parametrize(
    "loader",
    [
        loader_of(lambda data: RandomSampler(data, replacement=True)),
        loader_of(lambda data: WeightedRandomSampler([1.0] * len(data), len(data))),
        loader_of(lambda data: SubsetRandomSampler([*range(150), 3])),
        lambda data: DataLoader(
            data, batch_sampler=UnknownBatches(RandomSampler(data), BATCH, False)
        ),
    ],
)
def test_watch_of_an_unknown_sampler_has_no_epsilon(loader, path):
    watched = Training(poisson_sampling=False, loader=loader).run_watched(path)
    assert lines_of(watched)[0].sampler["kind"] == "unknown"
    profiles = watched.account(DELTA).profiles
    assert {name: entry.status for name, entry in profiles.items()} == {
        "claimed": "void"
    }


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
    lines = lines_of(watched)
    multipliers = [line.noise_multiplier for line in lines]
    assert multipliers == [1.0] * 10 + [later_z] * 10
    later_threshold = value if name == "max_grad_norm" else 1.0
    thresholds = [line.threshold for line in lines]
    assert thresholds == [1.0] * 10 + [later_threshold] * 10
    account = watched.account(DELTA)
    low, high = proven_ends(account)
    assert low - 1e-3 < poisson_epsilon(1.0, later_z=later_z) < high + 1e-3
    assert account.profiles["proven"].status == status


@pytest.mark.parametrize("options", [GHOST, {}])
def test_watch_accounts_for_noise_of_another_norm_than_the_clipping(options, path):
    """Opacus claims the same epsilon for half the noise that the clipping needs."""
    training = Training(**options)
    watched = training.watch(path)
    optimizer = training.optimizer
    if options is GHOST:
        optimizer.max_grad_norm = 0.5  # the module clips to 1 as before
    else:
        clip = optimizer.clip_and_accumulate

        def clip_to_1():
            optimizer.max_grad_norm = 1.0
            clip()
            optimizer.max_grad_norm = 0.5

        optimizer.clip_and_accumulate = clip_to_1
    training.run()
    for line in lines_of(watched):
        assert (line.sensitivity, line.noise_std, line.noise_multiplier) == (
            1,
            0.5,
            0.5,
        )
    account = watched.account(DELTA)
    low, high = proven_ends(account)
    assert low - 1e-3 < poisson_epsilon(0.5) < high + 1e-3
    assert account.profiles["claimed"].epsilon_high < 0.4 * low


def per_layer_training():
    """Return a training with thresholds of the norm 5."""
    return Training(max_grad_norm=[1.0, 2.0, 2.0, 4.0], clipping="per_layer")


def test_watch_of_per_layer_clipping_has_a_group_for_each_tensor(path):
    """Every tensor has noise of 5 z, and the account is that of flat clipping."""
    watched = per_layer_training().run_watched(path)
    assert reasons_of(watched) == set()
    for line in lines_of(watched):
        assert line.groups == {
            "boundaries": [0, 160, 176, 208, 210],
            "thresholds": [1.0, 2.0, 2.0, 4.0],
            "noise_stds": [5.0, 5.0, 5.0, 5.0],
            "names": ["0.weight", "0.bias", "2.weight", "2.bias"],
        }
        assert line.threshold == line.sensitivity == line.noise_std == 5.0
    high = proven_ends(watched.account(DELTA))[1]
    assert high == pytest.approx(poisson_epsilon(1.0), abs=1e-3)


def test_per_layer_noise_has_the_stated_deviation_on_every_tensor():
    """At least 800 draws of each tensor: the deviation is within 12.5 % of 5 with
    probability 1 - 1e-6.
    """
    release = release_of(per_layer_training().optimizer)
    noise = np.array([release(np.zeros((1, DIMENSION))) for _ in range(400)])
    for tensor in np.split(noise, [160, 176, 208], axis=1):
        assert tensor.std() == pytest.approx(5.0, rel=0.125)


def test_watch_accounts_for_per_layer_thresholds_that_were_raised(path):
    """Opacus keeps the noise of the norm 5; thresholds of the norm 10 make z = 1/2. It
    would clip the first tensors alone where there are too few, without a warning.
    """
    training = per_layer_training()
    watched = training.watch(path)
    training.optimizer.max_grad_norms = [2.0, 4.0, 4.0, 8.0]
    training.run(1)
    line = lines_of(watched)[0]
    assert line.groups["thresholds"] == [2.0, 4.0, 4.0, 8.0]
    assert line.groups["noise_stds"] == [5.0] * 4
    assert line.noise_multiplier == 0.5
    account = watched.account(DELTA)
    assert account.profiles["claimed"].epsilon_high < proven_ends(account)[0]
    training.optimizer.max_grad_norms = [1.0, 2.0, 2.0]
    with pytest.raises(DpsumError, match="has 3 thresholds"):
        training.run(1)


# Faults of a loop


def use_batches_twice(training):
    for batch in training.loader:
        for _ in range(2):
            training.backward(batch)
            training.step()


def divide_by_realised_size(training):
    for batch in training.loader:
        training.optimizer.expected_batch_size = len(batch[0])
        training.backward(batch)
        training.step()


def seed_each_epoch(training):
    for _ in range(EPOCHS):
        torch.manual_seed(3)
        training.run(1)


def seed_noise_each_step(training):
    for batch in training.loader:
        training.optimizer.generator = torch.Generator().manual_seed(3)
        training.backward(batch)
        training.step()


def use_public_loader(training):
    training.loader = training.public_loader
    training.run()


def accumulate_poisson_batches(training):
    training.module.allow_grad_accumulation()
    training.run(every=2)


def skip_empty_batches(training):
    for _ in range(20):
        for batch in training.loader:
            if len(batch[0]):
                training.backward(batch)
                training.step()


def replaces(name):
    """Make a fault of a function that replaces one of the optimiser's methods."""

    def decorate(function):
        def plant(optimizer):
            method = getattr(optimizer, name)
            object.__setattr__(optimizer, name, lambda: function(optimizer, method))

        return plant

    return decorate


@replaces("add_noise")
def half_noise(optimizer, add_noise):
    optimizer.noise_multiplier /= 2
    add_noise()
    optimizer.noise_multiplier *= 2


@replaces("add_noise")
def no_noise_on_a_tensor(optimizer, add_noise):
    add_noise()
    tensor = optimizer.params[-2]
    tensor.grad = tensor.summed_grad.clone()


@replaces("add_noise")
def repeated_noise(optimizer, add_noise):
    optimizer.generator = torch.Generator().manual_seed(3)
    add_noise()


@replaces("add_noise")
def noise_of_each_threshold(optimizer, _):
    thresholds = optimizer.max_grad_norms
    for tensor, threshold in zip(optimizer.params, thresholds, strict=True):
        tensor.grad = tensor.summed_grad + threshold * torch.randn(tensor.shape)


def add_up(optimizer, factors_of):
    """Add up the rows of each tensor, times factors of their norms."""
    for tensor in optimizer.params:
        rows = optimizer._get_flat_grad_sample(tensor)
        factors = factors_of(rows.reshape(len(rows), -1).norm(dim=1))
        tensor.summed_grad = torch.einsum("i,i...", factors, rows)
        opacus_optimizer._mark_as_processed(tensor.grad_sample)


@replaces("clip_and_accumulate")
def no_clipping(optimizer, _):
    add_up(optimizer, lambda norms: torch.full_like(norms, 1000.0))


@replaces("clip_and_accumulate")
def clipping_by_tensor(optimizer, _):
    threshold = optimizer.max_grad_norm
    add_up(optimizer, lambda norms: (threshold / (norms + 1e-6)).clamp(max=1.0))


@replaces("clip_and_accumulate")
def clipping_of_the_sum(optimizer, _):
    add_up(optimizer, torch.ones_like)
    sums = [tensor.summed_grad for tensor in optimizer.params]
    norm = torch.cat([total.ravel() for total in sums]).norm() + 1e-6
    for total in sums:
        total.mul_((optimizer.max_grad_norm / norm).clamp(max=1.0))


@replaces("clip_and_accumulate")
def reversed_thresholds(optimizer, clip_and_accumulate):
    optimizer.max_grad_norms.reverse()
    clip_and_accumulate()
    optimizer.max_grad_norms.reverse()


LESS_NOISE = "its noise is less"
TOO_LONG = "longer than the clipping norm"


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (use_batches_twice, "a second time"),
        (divide_by_realised_size, "expected_batch_size was changed"),
        (seed_each_epoch, "that a batch was drawn from before"),
        (seed_noise_each_step, "that noise was drawn from before"),
        (use_public_loader, "of another"),
        (accumulate_poisson_batches, "in more than one of them"),
        (skip_empty_batches, "was left out"),
    ],
)
def test_watch_reports_a_fault_of_the_loop(loop, message, path):
    """With 8 records in 4 lots every tenth lot is empty."""
    options = {}
    if loop is skip_empty_batches:
        options = {"records": 8, "loader": loader_of(batch_size=2, shuffle=True)}
    check_fault(Training(**options), loop, message, path)


@pytest.mark.parametrize(
    ("options", "fault", "message"),
    [
        ({}, half_noise, LESS_NOISE),
        ({}, no_noise_on_a_tensor, LESS_NOISE),
        (PER_LAYER, noise_of_each_threshold, LESS_NOISE),
        (PER_LAYER, reversed_thresholds, TOO_LONG),
        ({}, no_clipping, TOO_LONG),
        (ADAPTIVE, None, "the batch's own size"),
    ],
)
def test_watch_reports_a_fault_of_the_optimiser(options, fault, message, path):
    training = Training(**options)
    if fault:
        fault(training.optimizer)
    check_fault(training, Training.run, message, path)


def check_fault(training, loop, message, path):
    """Check the ledger's reason; no epsilon is finite, and Opacus's claim is void."""
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
    training.backward(next(iter(training.loader)))
    for parameter in training.optimizer.params:
        if len(parameter.grad_sample):
            parameter.grad_sample[0] = value
    training.step()
    (line,) = read_ledger(watched.path)
    assert ("not finite" in line.reason) == math.isnan(value)


# Refusals


def test_watch_refuses_a_step_without_a_release(path):
    training = Training()
    watched = training.watch(path)
    training.backward(next(iter(training.loader)))
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


class UnknownOptimizer(DPOptimizer):
    """Optimiser that the adapter does not know."""


def use_an_unknown_optimizer(training):
    training.optimizer.__class__ = UnknownOptimizer


def use_the_optimizer_of_ghost_clipping(training):
    training.optimizer = Training(**GHOST).optimizer


def use_no_noise(training):
    training.optimizer.noise_multiplier = 0.0


def use_adaptive_ghost_clipping(training):
    training.engine = PrivacyEngineAdaptiveClipping()


@pytest.mark.parametrize(
    "change",
    [
        use_an_unknown_optimizer,
        use_the_optimizer_of_ghost_clipping,
        use_no_noise,
        use_adaptive_ghost_clipping,
        lambda training: training.run(1),
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
    edited = text.replace('"noise_std": 1.0', '"noise_std": 2.0', 1)
    for content in (text[: text.rindex("{")], edited):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(DpsumError):
            watched.account(DELTA)


# Audits


def test_release_of_an_optimiser_clips_adds_and_noises():
    """Mean and deviation of 400 releases, against the clipped sum. The training's state
    does not change.
    """
    training = Training()
    training.backward(next(iter(training.loader)))
    gradients = [tensor.grad_sample for tensor in training.optimizer.params]
    weights = training.weights()
    release = release_of(training.optimizer)
    rows = np.zeros((3, DIMENSION), dtype=np.float32)
    rows[0, 0] = 5.0
    rows[1, 0] = 0.25
    rows[2, 1] = -3.0
    releases = np.array([release(rows) for _ in range(400)])
    expected = np.zeros(DIMENSION)
    expected[:2] = 1.25, -1.0
    assert np.all(np.abs(releases.mean(0) - expected) < 5 / math.sqrt(400))
    assert releases.std() == pytest.approx(math.sqrt(1 + expected.var()), rel=0.02)
    assert torch.equal(weights, training.weights())
    for tensor, gradient in zip(training.optimizer.params, gradients, strict=True):
        assert tensor.grad_sample is gradient


def test_audit_of_a_watched_optimiser_refutes_half_the_noise_alone(path):
    """The false-alarm rate is 1e-3. Releases for an audit are not in the ledger."""
    training = Training()
    watched = training.watch(path)
    release_of(training.optimizer)(np.ones((2, DIMENSION)))
    training.run()
    right = watched.audit(DELTA)
    assert not right.refuted
    assert right.claimed == pytest.approx(poisson_epsilon(1.0), abs=1e-3)
    assert 1.0 < right.epsilon < right.claimed
    training.optimizer.noise_multiplier = 0.5
    wrong = watched.audit(DELTA)
    assert wrong.refuted
    assert wrong.epsilon > right.claimed
    assert len(lines_of(watched)) == STEPS
    assert reasons_of(watched) == set()


@pytest.mark.parametrize(
    "fault",
    [
        half_noise,
        no_noise_on_a_tensor,
        repeated_noise,
        clipping_by_tensor,
        clipping_of_the_sum,
        None,
    ],
)
def test_audit_of_an_optimiser_refutes_planted_faults_alone(fault):
    """The ledger cannot show clipping of another kind than its name."""
    optimizer = Training().optimizer
    if fault:
        fault(optimizer)
    release = release_of(optimizer)
    audit = audited(release, dimension=DIMENSION, noise_multiplier=1.0)
    assert audit.refuted == (fault is not None)

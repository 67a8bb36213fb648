"""Opacus trainings that are watched: the ledger of real runs, its account, and what is
wrong with a loop.

Accounts are compared with dp_accounting's PLD accountant and with Opacus's own; models
with trainings nobody watches.
"""

import functools
import json
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

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
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from dpsum.accounting.account import Account
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.errors import DpsumError
from dpsum.ledger import Release, read_ledger
from dpwatch.adapters import torch_loader
from dpwatch.adapters.opacus import Watch, release_of, watch
from dpwatch.audit.anything import audited

pytestmark = pytest.mark.filterwarnings("ignore")

RECORDS, BATCH, EPOCHS, DELTA = 200, 20, 2, 1e-5
STEPS, RATE = 20, 0.1
ADAPTIVE = {
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.1,
    "unclipped_num_std": 2.0,
}


@pytest.fixture(autouse=True, scope="module")
def opacus_reckons_once() -> Iterator[None]:
    """Most trainings here have the same noise, steps and rate; Opacus's accountant
    takes longer than they do.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rdp, "_compute_rdp", functools.cache(rdp._compute_rdp))
        yield


class Training:
    """A small private training as Opacus's tutorials write it."""

    def __init__(
        self,
        *,
        mode: str = "hooks",
        poisson: bool = True,
        workers: int = 0,
        order: Any = None,
        seed: int = 0,
        norm: Any = 1.0,
        records: int = RECORDS,
        loader: Any = None,
        accountant: str = "prv",
        noise: float = 1.0,
        **more: Any,
    ) -> None:
        torch.manual_seed(seed)
        data = TensorDataset(torch.randn(records, 10), torch.randint(0, 2, (records,)))
        self.model: Any = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2))
        order = {"shuffle": True} if order is None else order(data)
        self.plain = (
            loader(data)
            if loader
            else DataLoader(data, batch_size=BATCH, num_workers=workers, **order)
        )
        self.engine = PrivacyEngine(accountant=accountant)
        found = self.engine.make_private(
            module=self.model,
            optimizer=torch.optim.SGD(self.model.parameters(), lr=0.1),
            data_loader=self.plain,
            criterion=nn.CrossEntropyLoss(),
            noise_multiplier=noise,
            max_grad_norm=norm,
            poisson_sampling=poisson,
            grad_sample_mode=mode,
            **more,
        )
        self.module, self.optimizer, *criterion, self.loader = found
        self.criterion = criterion[0] if criterion else nn.CrossEntropyLoss()

    def watched(self, path: Path, epochs: int = EPOCHS) -> Watch:
        return watch(
            self.engine,
            self.module,
            self.optimizer,
            self.loader,
            epochs=epochs,
            ledger=path,
        )

    def backward(self, batch: Any) -> None:
        self.criterion(self.module(batch[0]), batch[1]).backward()

    def run(
        self, epochs: int = EPOCHS, *, every: int = 1, most: int | None = None
    ) -> None:
        manager = nullcontext(self.loader)
        if most is not None:
            manager = BatchMemoryManager(
                data_loader=self.loader,
                max_physical_batch_size=most,
                optimizer=self.optimizer,
            )  # type: ignore[assignment]
        with manager as loader:
            for _ in range(epochs):
                for number, batch in enumerate(loader, start=1):
                    self.backward(batch)
                    if number % every == 0:
                        self.optimizer.step()
                        self.optimizer.zero_grad()

    def weights(self) -> torch.Tensor:
        return torch.cat([one.detach().reshape(-1) for one in self.model.parameters()])


def independent(
    multipliers: list[float], rate: float = RATE, delta: float = DELTA
) -> float:
    """Epsilon of Poisson-sampled Gaussians one after another, by dp_accounting's PLD
    accountant.
    """
    return _independent(tuple(multipliers), rate, delta)


@functools.cache
def _independent(multipliers: tuple[float, ...], rate: float, delta: float) -> float:
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for z in dict.fromkeys(multipliers):
        sampled = dp_accounting.PoissonSampledDpEvent(
            rate, dp_accounting.GaussianDpEvent(z)
        )
        accountant.compose(sampled, multipliers.count(z))
    return accountant.get_epsilon(delta)


def lines(watched: Watch) -> list[Release]:
    return read_ledger(watched.ledger.path, watched.ledger.chain)


def reasons(watched: Watch) -> set[str]:
    return {
        reason
        for event in lines(watched)
        for reason in event.reason.split("; ")
        if reason
    }


def holds(account: Account) -> tuple[float, float]:
    return account.profiles["holds"].epsilon_low, account.profiles["holds"].epsilon_high


@pytest.mark.parametrize(
    ("options", "run", "norm"),
    [
        ({}, {}, 1.0),
        ({"mode": "ghost"}, {}, 1.0),
        ({}, {"most": 7}, 1.0),
        ({"mode": "ghost"}, {"most": 7}, 1.0),
        ({"workers": 2}, {}, 1.0),
        (
            {"norm": [0.3, 0.4, 1.2, 0.0001], "clipping": "per_layer"},
            {},
            math.sqrt(0.09 + 0.16 + 1.44 + 1e-8),
        ),
        ({"wrap_model": False}, {}, 1.0),
        ({"loss_reduction": "sum"}, {}, 1.0),
        ({"records": 5 * BATCH + 1}, {}, 1.0),
    ],
    ids=[
        "hooks",
        "ghost",
        "memory",
        "ghost-memory",
        "workers",
        "per-layer",
        "no-wrapping",
        "sum",
        "odd",
    ],
)
def test_poisson_run(
    options: dict[str, Any], run: dict[str, Any], norm: float, tmp_path: Path
) -> None:
    """Every step is a line; two other accountants of the same mechanism confirm the
    account to 1e-3.
    """
    training = Training(**options)
    if not options.get("wrap_model", True):
        training.module = _Called(training)
    if options.get("loss_reduction") == "sum":
        training.criterion = nn.CrossEntropyLoss(reduction="sum")
    watched = training.watched(tmp_path / "ledger.jsonl")
    training.run(**run)
    records = options.get("records", RECORDS)
    steps = EPOCHS * math.ceil(records / BATCH)
    rate = 1 / math.ceil(records / BATCH)
    found = lines(watched)
    assert [event.round for event in found] == list(range(steps))
    assert {event.sampler["kind"] for event in found} == {"poisson-lots"}
    assert found[0].sampler["rate"] == rate and found[0].sampler["records"] == records
    assert found[0].denominator == (
        1.0 if options.get("loss_reduction") else int(records * rate)
    )
    assert {event.dimension for event in found} == {10 * 16 + 16 + 16 * 2 + 2}
    np.testing.assert_allclose([event.sensitivity for event in found], norm, rtol=1e-7)
    np.testing.assert_allclose([event.noise_std for event in found], norm, rtol=1e-7)
    assert reasons(watched) == set()
    account = watched.account(DELTA)
    low, high = holds(account)
    outside = independent([1.0] * steps, rate)
    assert low - 1e-3 < outside < high + 1e-3 and high - low < 1e-3
    own = training.engine.accountant.get_epsilon(DELTA, eps_error=5e-4)
    assert high == pytest.approx(own, abs=1e-3) and low < own
    claimed = account.profiles["as_claimed"]
    assert (
        claimed.status == "proved"
        and claimed.epsilon_high == training.engine.get_epsilon(DELTA)
    )


class _Called:
    """The hooks that make_private returns without wrapping; the model itself is
    called.
    """

    def __init__(self, training: Training) -> None:
        self._model = training.model

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        return self._model(batch)


def test_claims_of_opacus_accountants(tmp_path: Path) -> None:
    """RDP is an upper bound of the same mechanism; the central limit theorem is none,
    and its claim is void.
    """
    found = {}
    for name in ("rdp", "gdp"):
        training = Training(accountant=name)
        watched = training.watched(tmp_path / name)
        training.run()
        found[name] = watched.account(DELTA)
    assert found["rdp"].profiles["as_claimed"].status == "proved"
    assert found["rdp"].profiles["as_claimed"].epsilon_high > holds(found["rdp"])[1]
    assert found["gdp"].profiles["as_claimed"].status == "void"


def test_little_noise_has_a_narrow_bracket(tmp_path: Path) -> None:
    """Twenty steps at z = 0.1. dp_accounting's value, with its step of 0.02, is never
    below the exact one.
    """
    training = Training(noise=0.1, accountant="rdp")
    watched = training.watched(tmp_path / "ledger.jsonl")
    training.run()
    low, high = holds(watched.account(DELTA))
    accountant = PLDAccountant(value_discretization_interval=0.02)
    sampled = dp_accounting.PoissonSampledDpEvent(
        RATE, dp_accounting.GaussianDpEvent(0.1)
    )
    theirs = accountant.compose(sampled, STEPS).get_epsilon(DELTA)
    assert low <= theirs and high - low <= 0.02 * low
    assert high == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_watching_changes_no_bit(mode: str, tmp_path: Path) -> None:
    plain, seen = Training(mode=mode), Training(mode=mode)
    torch.manual_seed(7)
    plain.run(most=6)
    torch.manual_seed(7)
    watched = seen.watched(tmp_path / "ledger.jsonl")
    seen.run(most=6)
    assert torch.equal(plain.weights(), seen.weights())
    watched.stop()
    assert "_dpsum" not in vars(seen.optimizer) and "add_noise" not in vars(
        seen.optimizer
    )
    assert type(seen.loader.batch_sampler) is type(plain.loader.batch_sampler)
    seen.optimizer.step = lambda: pytest.fail("not stepped")  # type: ignore[method-assign]
    assert len(lines(watched)) == STEPS
    watch(
        PrivacyEngine(),
        seen.module,
        seen.optimizer,
        seen.loader,
        epochs=1,
        ledger=tmp_path / "again",
    ).stop()


def shuffled_subset(data: TensorDataset) -> dict[str, Any]:
    return {"sampler": torch.utils.data.SubsetRandomSampler(range(150))}


@pytest.mark.parametrize(
    ("options", "every", "wanted"),
    [
        ({}, 1, ("shuffled-epochs", RECORDS, 20, 20, 10)),
        ({"workers": 2}, 1, ("shuffled-epochs", RECORDS, 20, 20, 10)),
        ({}, 5, ("shuffled-epochs", RECORDS, 100, 4, 2)),
        (
            {
                "order": lambda data: {"shuffle": True, "drop_last": True},
                "records": 210,
            },
            1,
            ("shuffled-epochs", 210, 20, 20, 10),
        ),
        ({"order": shuffled_subset}, 1, ("shuffled-epochs", 150, 20, 16, 8)),
        (
            {"order": lambda data: {"shuffle": False}},
            1,
            ("min-separation", RECORDS, 20, 20, 10),
        ),
        (
            {"order": lambda data: {"shuffle": False}},
            2,
            ("min-separation", RECORDS, 40, 10, 5),
        ),
    ],
    ids=[
        "shuffled",
        "workers",
        "accumulated",
        "drop-last",
        "subset",
        "ordered",
        "ordered-accumulated",
    ],
)
def test_epochs_are_no_poisson_samples(
    options: dict[str, Any], every: int, wanted: tuple[Any, ...], tmp_path: Path
) -> None:
    """Opacus keeps its Poisson account; here that claim is void, and what is proven is of
    batches that each epoch cuts.

    Of E epochs of disjoint batches that the observer may know a record is in E Gaussian
    releases: one of z / sqrt(E).
    """
    training = Training(poisson=False, **options)
    watched = training.watched(tmp_path / "ledger.jsonl")
    training.run(every=every)
    kind, records, cohort, rounds, epoch = wanted
    sampler = lines(watched)[0].sampler
    assert (
        sampler["kind"],
        sampler["records"],
        sampler["cohort"],
        sampler["rounds"],
    ) == wanted[:4]
    assert sampler["rate"] == cohort / records
    assert sampler.get("epoch", sampler.get("separation")) == epoch
    assert len(lines(watched)) == rounds and reasons(watched) == set()
    assert {event.denominator for event in lines(watched)} == {
        every * int(training.optimizer.expected_batch_size)
    }
    account = watched.account(DELTA)
    claimed = account.profiles["as_claimed"]
    assert (
        claimed.status == "void"
        and claimed.epsilon_high == training.engine.get_epsilon(DELTA)
    )
    if "holds" in account.profiles:  # where there is an analysis of this kind
        assert holds(account)[1] == pytest.approx(
            gaussian_epsilon(1 / math.sqrt(EPOCHS), DELTA), rel=1e-9
        )
    else:
        assert (
            kind in account.reasons["holds"]
            and "no epsilon" in account.reasons["holds"]
        )


def draws_with_replacement(data: TensorDataset) -> dict[str, Any]:
    return {"sampler": RandomSampler(data, replacement=True)}


def draws_by_weight(data: TensorDataset) -> dict[str, Any]:
    return {"sampler": WeightedRandomSampler([1.0] * len(data), len(data))}


def draws_some_twice(data: TensorDataset) -> dict[str, Any]:
    return {"sampler": torch.utils.data.SubsetRandomSampler([*range(150), 3])}


class OwnBatches(BatchSampler):
    pass


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"order": draws_with_replacement}, "RandomSampler"),
        ({"order": draws_by_weight}, "WeightedRandomSampler"),
        ({"order": draws_some_twice}, "SubsetRandomSampler"),
        (
            {
                "loader": lambda data: DataLoader(
                    data, batch_sampler=OwnBatches(RandomSampler(data), 20, False)
                )
            },
            "OwnBatches",
        ),
        (
            {
                "loader": lambda data: DataLoader(
                    data,
                    batch_size=None,
                    sampler=OwnBatches(RandomSampler(data), 20, False),
                )
            },
            "OwnBatches",
        ),
    ],
)
def test_unknown_sampler(options: dict[str, Any], name: str, tmp_path: Path) -> None:
    training = Training(poisson=False, **options)
    watched = training.watched(tmp_path / "ledger.jsonl")
    training.run()
    sampler = lines(watched)[0].sampler
    assert sampler["kind"] == "unknown" and sampler["drawn_by"] == name
    account = watched.account(DELTA)
    assert (
        set(account.profiles) == {"as_claimed"}
        and account.profiles["as_claimed"].status == "void"
    )
    assert "no epsilon" in account.reasons["holds"]


# What a tired colleague does to a loop.


def lower_noise(training: Training) -> None:
    training.run(1)
    training.optimizer.noise_multiplier = 0.5
    training.run(1)


def test_lowered_noise_is_accounted_for(tmp_path: Path) -> None:
    training = Training()
    watched = training.watched(tmp_path / "ledger.jsonl")
    lower_noise(training)
    multipliers = [event.noise_multiplier for event in lines(watched)]
    assert multipliers == [1.0] * 10 + [0.5] * 10
    account = watched.account(DELTA)
    low, high = holds(account)
    assert low - 1e-3 < independent(multipliers) < high + 1e-3
    assert (
        account.profiles["holds"].status == "as run"
    )  # nobody knows why it was lowered


def lower_ghost_norm(training: Training) -> None:
    training.optimizer.max_grad_norm = 0.5  # the module clips to 1 as before
    training.run()


def change_norm_after_clipping(training: Training) -> None:
    plain = training.optimizer.clip_and_accumulate

    def clip() -> None:
        training.optimizer.max_grad_norm = 1.0
        plain()
        training.optimizer.max_grad_norm = 0.5

    training.optimizer.clip_and_accumulate = clip  # type: ignore[method-assign]
    training.run()


@pytest.mark.parametrize(
    ("mode", "fault"),
    [("ghost", lower_ghost_norm), ("hooks", change_norm_after_clipping)],
)
def test_noise_of_another_norm_than_the_clipping(
    mode: str, fault: Callable[[Training], None], tmp_path: Path
) -> None:
    """Opacus claims what it always does; the ledger has half the noise over the
    sensitivity.
    """
    training = Training(mode=mode)
    watched = training.watched(tmp_path / "ledger.jsonl")
    fault(training)
    found = lines(watched)
    assert {
        (event.sensitivity, event.noise_std, event.noise_multiplier) for event in found
    } == {(1.0, 0.5, 0.5)}
    account = watched.account(DELTA)
    low, high = holds(account)
    assert low - 1e-3 < independent([0.5] * STEPS) < high + 1e-3
    assert account.profiles["as_claimed"].epsilon_high < 0.4 * low


def a_norm_for_each_epoch(training: Training) -> None:
    training.run(1)
    training.optimizer.max_grad_norm = 0.25
    training.run(1)


def test_another_norm_for_both(tmp_path: Path) -> None:
    """Clipping and noise follow it together: the account is the same, and each line has
    its norm.
    """
    training = Training()
    watched = training.watched(tmp_path / "ledger.jsonl")
    a_norm_for_each_epoch(training)
    assert [event.threshold for event in lines(watched)] == [1.0] * 10 + [0.25] * 10
    assert holds(watched.account(DELTA))[1] == pytest.approx(
        independent([1.0] * STEPS), abs=1e-3
    )


# Per-layer clipping: one threshold for each parameter tensor.


def test_per_layer_ledger_has_each_tensor_as_a_group(tmp_path: Path) -> None:
    """Thresholds 1, 2, 2 and 4 have the norm 5; every tensor has noise of 5 z."""
    training = Training(norm=[1.0, 2.0, 2.0, 4.0], clipping="per_layer")
    watched = training.watched(tmp_path / "ledger.jsonl")
    training.run()
    assert reasons(watched) == set()
    for event in lines(watched):
        assert event.groups == {
            "boundaries": [0, 160, 176, 208, 210],
            "thresholds": [1.0, 2.0, 2.0, 4.0],
            "noise_stds": [5.0, 5.0, 5.0, 5.0],
            "names": ["0.weight", "0.bias", "2.weight", "2.bias"],
        }
        assert event.threshold == event.sensitivity == event.noise_std == 5.0
        assert event.noise_multiplier == 1.0


def test_per_layer_noise_is_that_of_the_ledger_on_every_tensor() -> None:
    """Opacus's own noise without any gradient: 800 draws or more of each tensor, whose
    deviation is within 12.5 % of 5 but for a chance of 1e-6.
    """
    training = Training(norm=[1.0, 2.0, 2.0, 4.0], clipping="per_layer")
    release = release_of(training.optimizer)
    noise = np.array([release(np.zeros((1, 210))) for _ in range(400)])
    for tensor in np.split(noise, [160, 176, 208], axis=1):
        assert tensor.std() == pytest.approx(5.0, rel=0.125)


def test_per_layer_account_is_that_of_flat_clipping(tmp_path: Path) -> None:
    found = {}
    for name, options in (("layers", PER_LAYER), ("flat", {})):
        training = Training(**options)  # type: ignore[arg-type]
        watched = training.watched(tmp_path / name)
        training.run()
        found[name] = holds(watched.account(DELTA))
    assert found["layers"] == pytest.approx(found["flat"], rel=1e-6)
    assert found["flat"][1] == pytest.approx(independent([1.0] * STEPS), abs=1e-3)


def test_per_layer_thresholds_raised_later_are_accounted_for(tmp_path: Path) -> None:
    """Opacus keeps the noise of the norm 5 that it knew at first. The thresholds 2, 4,
    4 and 8 have the norm 10, so that z is 1/2.
    """
    training = Training(norm=[1.0, 2.0, 2.0, 4.0], clipping="per_layer")
    watched = training.watched(tmp_path / "ledger.jsonl")
    training.optimizer.max_grad_norms = [2.0, 4.0, 4.0, 8.0]
    training.run()
    (event, *_) = lines(watched)
    assert event.groups is not None
    assert event.groups["thresholds"] == [2.0, 4.0, 4.0, 8.0]
    assert event.groups["noise_stds"] == [5.0] * 4
    assert event.noise_multiplier == 0.5
    assert (
        watched.account(DELTA).profiles["as_claimed"].epsilon_high
        < holds(watched.account(DELTA))[0]
    )


@pytest.mark.parametrize("thresholds", [[1.0, 2.0, 2.0], [1.0] * 5, []])
def test_per_layer_thresholds_of_another_length_are_refused(
    thresholds: list[float], tmp_path: Path
) -> None:
    """Opacus would clip the first tensors alone, without a word."""
    said = rf"has {len(thresholds)} thresholds, but the optimiser has 4 parameter"
    before = Training(norm=[1.0] * 4, clipping="per_layer")
    before.optimizer.max_grad_norms = thresholds
    later = Training(norm=[1.0] * 4, clipping="per_layer")
    later.watched(tmp_path / "later")
    later.optimizer.max_grad_norms = thresholds
    for refused in (lambda: before.watched(tmp_path / "before"), later.run):
        with pytest.raises(DpsumError, match=said) as error:
            refused()  # type: ignore[no-untyped-call]
        assert "\n" not in str(error.value)


def test_per_layer_threshold_of_zero_is_refused(tmp_path: Path) -> None:
    training = Training(norm=[1.0, 0.0, 1.0, 1.0], clipping="per_layer")
    with pytest.raises(DpsumError, match="clipping threshold of a tensor") as error:
        training.watched(tmp_path / "ledger.jsonl")
    assert "\n" not in str(error.value)


def same_batch_twice(training: Training) -> None:
    for batch in training.loader:
        for _ in range(2):
            training.backward(batch)
            training.optimizer.step()
            training.optimizer.zero_grad()


def clear_the_marks(training: Training) -> None:
    """Opacus refuses the same gradients twice by a mark on the tensors; a colleague
    removes it.
    """
    for batch in training.loader:
        training.backward(batch)
        training.optimizer.step()
        for one in training.optimizer.params:
            del one.grad_sample._processed  # type: ignore[attr-defined]
            one.summed_grad = None  # type: ignore[attr-defined]
        training.optimizer.step()
        training.optimizer.zero_grad()
        break


def realised_size(training: Training) -> None:
    for batch in training.loader:
        training.optimizer.expected_batch_size = len(batch[0])
        training.backward(batch)
        training.optimizer.step()
        training.optimizer.zero_grad()


def same_seed_each_epoch(training: Training) -> None:
    for _ in range(EPOCHS):
        torch.manual_seed(3)
        training.run(1)


def same_noise_each_step(training: Training) -> None:
    for batch in training.loader:
        training.optimizer.generator = torch.Generator().manual_seed(3)
        training.backward(batch)
        training.optimizer.step()
        training.optimizer.zero_grad()


def loader_of_before(training: Training) -> None:
    training.loader = training.plain
    training.run()


def add_poisson_batches(training: Training) -> None:
    training.module.allow_grad_accumulation()
    training.run(every=2)


def skip_steps(training: Training) -> None:
    for number, batch in enumerate(training.loader):
        training.optimizer.signal_skip_step(number % 2 == 0)
        training.backward(batch)
        training.optimizer.step()
        training.optimizer.zero_grad()


def skip_empty_batches(training: Training) -> None:
    for batch in training.loader:
        if len(batch[0]):
            training.backward(batch)
            training.optimizer.step()
            training.optimizer.zero_grad()


def _plant(name: str, value: Callable[..., Any]) -> Callable[[Training], None]:
    def plant(training: Training) -> None:
        object.__setattr__(training.optimizer, name, value(training.optimizer))

    return plant


def _half(optimizer: DPOptimizer) -> Callable[[], None]:
    plain = optimizer.add_noise

    def add_noise() -> None:
        optimizer.noise_multiplier /= 2
        plain()
        optimizer.noise_multiplier *= 2

    return add_noise


def _some(optimizer: DPOptimizer) -> Callable[[], None]:
    plain = optimizer.add_noise

    def add_noise() -> None:
        plain()
        last = optimizer.params[-2]
        last.grad = last.summed_grad.clone()  # type: ignore[attr-defined]

    return add_noise


def _unclipped(optimizer: DPOptimizer) -> Callable[[], None]:
    def clip_and_accumulate() -> None:
        for one in optimizer.params:
            one.summed_grad = 1000 * optimizer._get_flat_grad_sample(one).sum(0)  # type: ignore[attr-defined]
            opacus_optimizer._mark_as_processed(one.grad_sample)  # type: ignore[attr-defined]

    return clip_and_accumulate


def _reversed_thresholds(optimizer: DPOptimizer) -> Callable[[], None]:
    """Each tensor is clipped to the threshold of another."""
    plain = optimizer.clip_and_accumulate

    def clip_and_accumulate() -> None:
        optimizer.max_grad_norms.reverse()  # type: ignore[attr-defined]
        plain()
        optimizer.max_grad_norms.reverse()  # type: ignore[attr-defined]

    return clip_and_accumulate


def _noise_of_each_threshold(optimizer: DPOptimizer) -> Callable[[], None]:
    """Each tensor has noise of z times its own threshold."""

    def add_noise() -> None:
        thresholds = optimizer.max_grad_norms  # type: ignore[attr-defined]
        for one, threshold in zip(optimizer.params, thresholds, strict=True):
            noise = threshold * torch.randn(one.shape)
            one.grad = one.summed_grad + noise  # type: ignore[attr-defined]

    return add_noise


def run(training: Training) -> None:
    training.run()


PER_LAYER: dict[str, Any] = {"norm": [0.3, 0.4, 1.2, 0.001], "clipping": "per_layer"}

FAULTS = [
    ("twice", {}, None, same_batch_twice, "a second time"),
    ("marks", {}, None, clear_the_marks, "a second time"),
    ("realised size", {}, None, realised_size, "expected_batch_size was changed"),
    ("seed", {}, None, same_seed_each_epoch, "that a batch was drawn from before"),
    ("noise again", {}, None, same_noise_each_step, "that noise was drawn from before"),
    ("other loader", {}, None, loader_of_before, "of another"),
    ("accumulated", {}, None, add_poisson_batches, "in more than one of them"),
    ("skipped steps", {}, None, skip_steps, "in more than one of them"),
    ("empty", {"records": 8}, None, skip_empty_batches, "was left out"),
    ("half", {}, _plant("add_noise", _half), run, "its noise is less"),
    ("some", {}, _plant("add_noise", _some), run, "its noise is less"),
    ("no layer", PER_LAYER, _plant("add_noise", _some), run, "its noise is less"),
    (
        "noise of each threshold",
        PER_LAYER,
        _plant("add_noise", _noise_of_each_threshold),
        run,
        "its noise is less",
    ),
    (
        "reversed thresholds",
        PER_LAYER,
        _plant("clip_and_accumulate", _reversed_thresholds),
        run,
        "longer than the clipping norm",
    ),
    (
        "unclipped",
        {},
        _plant("clip_and_accumulate", _unclipped),
        run,
        "longer than the clipping norm",
    ),
    (
        "adaptive",
        {"clipping": "adaptive"} | ADAPTIVE,
        None,
        run,
        "the batch's own size",
    ),
]


@pytest.mark.parametrize(
    ("options", "plant", "loop", "why"),
    [one[1:] for one in FAULTS],
    ids=[f[0] for f in FAULTS],
)
def test_faults_are_in_the_ledger(
    options: dict[str, Any],
    plant: Callable[[Training], None] | None,
    loop: Callable[[Training], None],
    why: str,
    tmp_path: Path,
) -> None:
    """The claim stands as it did; the line says what is wrong, and nothing finite
    holds.
    """
    if "records" in options:  # 8 records in 4 lots: every tenth is empty
        options = {
            "loader": lambda data: DataLoader(data, batch_size=2, shuffle=True)
        } | options
    training = Training(**options)
    if plant:
        plant(training)
    watched = training.watched(tmp_path / "ledger.jsonl", epochs=30)
    for _ in range(20 if "records" in options else 1):
        loop(training)
    assert any(why in reason for reason in reasons(watched)), reasons(watched)
    account = watched.account(DELTA)
    assert (
        account.profiles["holds"].epsilon_high == math.inf
        and account.profiles["holds"].status == "void"
    )
    assert (
        math.isfinite(training.engine.get_epsilon(DELTA))
        and account.profiles["as_claimed"].status == "void"
    )


def test_right_code_has_no_reason(tmp_path: Path) -> None:
    """20 of 20 seeds; noise is measured at a chance of 1e-9 a run, the rest is
    exact.
    """
    for seed in range(20):
        training = Training(seed=seed, mode="ghost" if seed % 2 else "hooks")
        watched = training.watched(tmp_path / str(seed), epochs=4)
        training.run(4)
        assert reasons(watched) == set()


def test_accumulation_over_the_end_of_an_epoch(tmp_path: Path) -> None:
    """Ten batches by threes: the tenth is added to the next epoch's, where its records
    are again.
    """
    training = Training(poisson=False)
    watched = training.watched(tmp_path / "ledger.jsonl")
    training.run(every=3)
    assert {event.reason for event in lines(watched)[:3]} == {""}
    assert torch_loader.STRADDLES in lines(watched)[3].reason


def test_an_epoch_that_is_broken_off(tmp_path: Path) -> None:
    """Shuffled epochs that are shorter than planned bring a record back earlier than
    the sampler says.
    """
    training = Training(poisson=False)
    watched = training.watched(tmp_path / "ledger.jsonl")
    for _ in range(2):
        for number, batch in enumerate(training.loader):
            training.backward(batch)
            training.optimizer.step()
            training.optimizer.zero_grad()
            if number == 4:
                break
    assert (
        torch_loader.STRADDLES in lines(watched)[5].reason
        and not lines(watched)[4].reason
    )


def test_poisson_epoch_that_is_broken_off(tmp_path: Path) -> None:
    training = Training()
    watched = training.watched(tmp_path / "ledger.jsonl")
    for _ in range(2):
        for number, batch in enumerate(training.loader):
            if number == 4:
                break
            training.backward(batch)
            training.optimizer.step()
            training.optimizer.zero_grad()
    assert len(lines(watched)) == 8 and reasons(watched) == set()


# Bad input.


def test_a_step_that_no_release_stands_for(tmp_path: Path) -> None:
    training = Training()
    watched = training.watched(tmp_path / "ledger.jsonl")
    batch = next(iter(training.loader))
    training.backward(batch)
    for one in training.model.parameters():
        one.grad = one.grad_sample.mean(0)
    before = training.weights()
    with pytest.raises(DpsumError, match="did not release"):
        training.optimizer.original_optimizer.step()
    assert torch.equal(before, training.weights())
    assert watched.ledger.chain["lines"] == 0


def test_steps_that_were_not_watched(tmp_path: Path) -> None:
    training = Training()
    watched = training.watched(tmp_path / "ledger.jsonl")
    training.run(1)
    hook = training.optimizer.step_hook
    other = Training()
    other.optimizer.attach_step_hook(hook)
    other.run(1)
    with pytest.raises(DpsumError, match="counts 20 steps and the ledger 10"):
        watched.account(DELTA)


def test_more_epochs_than_said(tmp_path: Path) -> None:
    training = Training()
    training.watched(tmp_path / "ledger.jsonl", epochs=1)
    training.run(1)
    before = training.weights()
    with pytest.raises(DpsumError, match="step 11 is one more than the 10"):
        training.run(1)
    assert torch.equal(before, training.weights())


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(10), 0)] * 8)


class Own(DPOptimizer):
    pass


def refuse(what: str, training: Training, path: Path) -> None:
    engine, module, optimizer, loader = (
        training.engine,
        training.module,
        training.optimizer,
        training.loader,
    )
    epochs: Any = EPOCHS
    if what == "watched":
        training.watched(path)
        path = path.with_suffix(".other")
    elif what == "loader watched":
        training.watched(path)
        optimizer, path = Training().optimizer, path.with_suffix(".other")
    elif what == "class":
        optimizer.__class__ = Own
    elif what == "plain":
        optimizer = optimizer.original_optimizer  # type: ignore[assignment]
    elif what == "before":
        training.run(1)
    elif what == "stream":
        loader = DataLoader(Stream(), batch_size=2)
    elif what == "ghost":
        optimizer = Training(mode="ghost").optimizer
    elif what == "noise":
        optimizer.noise_multiplier = 0.0
    elif what == "epochs":
        epochs = 1.5
    elif what == "engine":
        engine = PrivacyEngineAdaptiveClipping()
    elif what == "there":
        path.write_text("{}\n", encoding="utf-8")
    watch(engine, module, optimizer, loader, epochs=epochs, ledger=path)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("watched", "the optimiser is watched already"),
        ("loader watched", "the loader is watched already"),
        ("class", "Own is not an optimiser whose clipping and noise are known"),
        ("plain", "SGD is not an optimiser"),
        ("before", "steps were taken before"),
        ("stream", "does not know how many records"),
        ("ghost", "ghost clipping is done by the module"),
        ("noise", "noise_multiplier is 0.0"),
        ("epochs", "epochs is 1.5"),
        ("engine", "adaptive ghost clipping"),
        ("there", "has the lines of another run"),
    ],
)
def test_refused(what: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(DpsumError, match=said) as error:
        refuse(what, Training(), tmp_path / "ledger.jsonl")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("how", ["cut", "changed", "gone", "foreign", "none", "delta"])
def test_ledgers_that_are_not_this_run(how: str, tmp_path: Path) -> None:
    training = Training()
    path = tmp_path / "ledger.jsonl"
    watched = training.watched(path)
    delta: Any = DELTA
    if how != "none":
        training.run()
    text = path.read_text(encoding="utf-8")
    if how == "cut":
        path.write_text(text[: text.rindex("{")], encoding="utf-8")
    elif how == "changed":
        path.write_text(
            text.replace('"noise_std": 1.0', '"noise_std": 2.0', 1), encoding="utf-8"
        )
    elif how == "gone":
        path.unlink()
    elif how == "foreign":
        path.write_text(json.dumps({"epoch": 1, "loss": 0.3}) + "\n", encoding="utf-8")
    elif how == "delta":
        delta = 1
    with pytest.raises(DpsumError) as error:
        watched.account(delta)
    assert "\n" not in str(error.value)


# What an audit calls.


def test_release_of_clips_adds_and_noises() -> None:
    """Mean and deviation of 400 releases of given gradients, against the clipped sum by
    hand; nothing is moved.
    """
    training = Training()
    training.backward(next(iter(training.loader)))
    kept = [one.grad_sample for one in training.optimizer.params]
    before = training.weights()
    release = release_of(training.optimizer)
    rows = np.zeros((3, len(before)), dtype=np.float32)
    rows[0, 0], rows[1, 0], rows[2, 1] = 5.0, 0.25, -3.0
    found = np.array([release(rows) for _ in range(400)])
    wanted = np.zeros(len(before))
    wanted[0], wanted[1] = 1.25, -1.0
    assert np.all(np.abs(found.mean(0) - wanted) < 5 / math.sqrt(400))
    assert found.std() == pytest.approx(math.sqrt(1 + wanted.var()), rel=0.02)
    assert torch.equal(before, training.weights())
    assert all(
        one.grad_sample is two
        for one, two in zip(training.optimizer.params, kept, strict=True)
    )
    assert release(np.zeros((0, len(before)), dtype=np.float32)).shape == (len(before),)
    with pytest.raises(DpsumError, match="give \\[n, "):
        release(rows[:, 1:])
    with pytest.raises(DpsumError, match="without it"):
        release_of(Training(mode="ghost").optimizer)


def test_releases_for_an_audit_are_not_of_the_run(tmp_path: Path) -> None:
    training = Training()
    watched = training.watched(tmp_path / "ledger.jsonl")
    release = release_of(training.optimizer)
    for _ in range(3):
        release(np.ones((2, len(training.weights()))))
    training.run()
    release(np.ones((2, len(training.weights()))))
    assert len(lines(watched)) == STEPS and reasons(watched) == set()
    watched.account(DELTA)


def test_audit_of_the_watched_optimiser(tmp_path: Path) -> None:
    """Right code is not refuted; the same optimiser with half its noise is, at a chance
    of 1e-3 of a false alarm.
    """
    training = Training()
    watched = training.watched(tmp_path / "ledger.jsonl")
    with pytest.raises(DpsumError, match="nothing to audit"):
        watched.audit(DELTA)
    training.run()
    right = watched.audit(DELTA)
    assert not right.refuted and right.claimed == pytest.approx(
        independent([1.0] * STEPS), abs=1e-3
    )
    assert 1.0 < right.epsilon < right.claimed
    training.optimizer.noise_multiplier = 0.5
    wrong = watched.audit(DELTA)
    assert wrong.refuted and wrong.epsilon > right.claimed
    assert len(lines(watched)) == STEPS


def test_audit_of_right_code() -> None:
    """Some of the 20 seeds of which none is refuted, each at a chance of 1e-3."""
    for seed in range(3):
        training = Training(seed=seed)
        assert not audited(
            release_of(training.optimizer),
            dimension=210,
            noise_multiplier=1.0,
            seed=seed,
        ).refuted


def _per_layer(optimizer: DPOptimizer) -> Callable[[], None]:
    """Each layer is clipped to C by itself, and called global."""

    def clip_and_accumulate() -> None:
        for one in optimizer.params:
            rows = optimizer._get_flat_grad_sample(one)
            norms = rows.reshape(len(rows), -1).norm(dim=1) + 1e-6
            factors = (optimizer.max_grad_norm / norms).clamp(max=1.0)
            one.summed_grad = torch.einsum("i,i...", factors, rows)  # type: ignore[attr-defined]
            opacus_optimizer._mark_as_processed(one.grad_sample)  # type: ignore[attr-defined]

    return clip_and_accumulate


def _after_adding(optimizer: DPOptimizer) -> Callable[[], None]:
    """The sum is clipped, and not what each record adds to it."""

    def clip_and_accumulate() -> None:
        for one in optimizer.params:
            one.summed_grad = optimizer._get_flat_grad_sample(one).sum(0)  # type: ignore[attr-defined]
            opacus_optimizer._mark_as_processed(one.grad_sample)  # type: ignore[attr-defined]
        sums = [one.summed_grad for one in optimizer.params]  # type: ignore[attr-defined]
        norm = torch.cat([each.reshape(-1) for each in sums]).norm() + 1e-6
        for each in sums:
            each.mul_((optimizer.max_grad_norm / norm).clamp(max=1.0))

    return clip_and_accumulate


def _for_each_layer(optimizer: DPOptimizer) -> Callable[[], None]:
    """The noise is divided among the layers, as if what it protects were."""
    plain = optimizer.add_noise

    def add_noise() -> None:
        whole = optimizer.noise_multiplier
        optimizer.noise_multiplier = whole / math.sqrt(len(optimizer.params))
        plain()
        optimizer.noise_multiplier = whole

    return add_noise


def _again(optimizer: DPOptimizer) -> Callable[[], None]:
    plain = optimizer.add_noise

    def add_noise() -> None:
        optimizer.generator = torch.Generator().manual_seed(3)
        plain()

    return add_noise


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("add_noise", _half),
        ("add_noise", _some),
        ("add_noise", _for_each_layer),
        ("add_noise", _again),
        ("clip_and_accumulate", _per_layer),
        ("clip_and_accumulate", _after_adding),
    ],
)
def test_audit_of_planted_faults(name: str, plant: Any) -> None:
    """Clipping that is not what its name says too, which the ledger takes from the
    optimiser's word.
    """
    training = Training()
    _plant(name, plant)(training)
    found = audited(release_of(training.optimizer), dimension=210, noise_multiplier=1.0)
    assert found.refuted


@pytest.mark.parametrize("norm", [1e160, 1e-160, math.inf])
def test_a_clipping_norm_that_no_ledger_holds_is_refused_at_once(
    norm: float, tmp_path: Path
) -> None:
    """Its square is beyond double precision, which stopped the first step."""
    training = Training(norm=norm)
    with pytest.raises(DpsumError, match=r"clipping norm is .* from 1e-150"):
        training.watched(tmp_path / "ledger.jsonl")
    assert not (tmp_path / "ledger.jsonl").exists()


@pytest.mark.parametrize("value", [math.nan, 3e38, -3e38, 1e-45])
def test_no_record_stops_a_step(value: float, tmp_path: Path) -> None:
    """Opacus does not clip NaN, so that the line says why no epsilon holds. It counts
    a gradient as zero whose norm single precision does not hold.
    """
    training = Training()
    watched = training.watched(tmp_path / "ledger.jsonl", epochs=1)
    for batch in training.loader:
        training.backward(batch)
        for parameter in training.optimizer.params:
            if len(parameter.grad_sample):
                parameter.grad_sample[0] = value
        training.optimizer.step()
        training.optimizer.zero_grad()
        break
    (event,) = read_ledger(watched.path)
    assert ("not finite" in event.reason) == math.isnan(value)

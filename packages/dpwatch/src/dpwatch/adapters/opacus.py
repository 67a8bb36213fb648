"""Watch an Opacus training: a ledger of its releases, beside Opacus's own epsilon.

`watch` wraps what `PrivacyEngine.make_private` returns and does not change the
training. Each step of the optimiser becomes a line, written after the noise was drawn
and before the model changes:

- The sampler is the one that ran. Poisson sampling is "poisson-lots"; a shuffled loader
  (`poisson_sampling=False`) is "shuffled-epochs"; a loader in a fixed order is
  "min-separation"; any other is "unknown", and no epsilon is reported.
- The sensitivity is the norm to which the step's gradients were clipped. Ghost clipping
  reads that norm from the module, but its noise from the optimiser, so that the two can
  differ.
- Per-layer clipping has one threshold for each parameter tensor. Opacus adds the same
  noise to all tensors: `noise_multiplier` times the L2 norm of the thresholds, which is
  the joint sensitivity. So the privacy is that of flat clipping with the same
  multiplier. The ledger has the tensors as groups, with their thresholds.
- The noise is `noise_multiplier` times `max_grad_norm` at the time of the draw. The
  watch also measures it. If a parameter's noise is smaller than chance allows, or was
  used before (1e-9 each over the whole run), the line has a reason. The same holds for
  noise and Poisson batches drawn from an earlier state of the generator, which repeat
  earlier draws.
- Layers may be frozen and unfrozen, and parameters added. A line is of the tensors that
  the step releases. Ghost clipping clips to the norm over the layers that were
  trainable at `make_private`; where these are not the ones that are released, the line
  has a reason. So has a step that also applies a gradient that was not released.
- The watch counts the batches that the loader drew. No analysis covers gradients of a
  batch that it did not draw, of a batch used twice, or of several Poisson batches
  together; the line then has a reason.

A line with a reason makes the account void: no epsilon is proven.

The watch does not see gradients that leave without the optimiser, data that does not
follow the loader's indices (copies of a record, a module that mixes records, which
Opacus's validator checks), and floating-point effects. Opacus does not hand it the
criterion either. One that adds up the losses under `loss_reduction="mean"`, or averages
them under "sum", scales each record's gradient with the number of the batch's records,
so that one record moves a clipped sum by up to 2 C - C / n, with n the batch's size.
`watch(criterion=...)` refuses it.

The unit is a record: one index of the data set. In a neighbour its gradient is zero.
The number of records is public: Opacus divides by int(N / L) of N records in L batches,
and the rate and the number of steps follow N too. In batches of 64, it divides by 64
for 60,032 records and by 63 for 60,031.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.optimizers import (
    AdaClipDPOptimizer,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
)
from opacus.utils.adaptive_clipping.adaptive_clipping_utils import (
    PrivacyEngineAdaptiveClipping,
)
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from scipy.special import gammainc
from torch.utils.data import DataLoader

from dpsum.accounting.account import Account
from dpsum.accounting.claims import Claim
from dpsum.errors import DpsumError
from dpsum.ledger import Release
from dpsum.parameters import check_range
from dpwatch.adapters.torch_loader import Draws, States, check
from dpwatch.adapters.watch import NoiseSeen, Watch, check_scale

_KNOWN = (
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
    AdaClipDPOptimizer,
)
_FALSE_ALARM = 1e-9
_WINDOW = 32  # earlier draws of noise whose correlation is tested
_KEPT = 512  # coordinates of a tensor that are compared with earlier noise
_GRADIENTS = ("grad", "grad_sample", "summed_grad")
_NORM_SLACK = 1 + 1e-4  # sums of float32
_MANY_EPOCHS = 10**6  # more than any training makes, where the number is not known

_ADAPTIVE = (
    "the clipping norm follows the number of unclipped gradients over the batch's own"
    " size, which has no noise and which Opacus's epsilon leaves out"
)
_UNCLIPPED = (
    "its gradients were not clipped by the criterion that make_private returned"
)
_TOO_LONG = "its sum is longer than the clipping norm times the number of records"
_NOT_FINITE = (
    "its sum is not finite: Opacus does not clip a gradient that is not a number"
)
_LESS_NOISE = "its noise is less than noise_multiplier times max_grad_norm"
_SAME_NOISE = (
    "its noise was drawn from a generator in a state that noise was drawn from before"
)
_OTHER_LAYERS = (
    "layers were frozen or unfrozen, and ghost clipping clips to the norm over those"
    " that were trainable at make_private"
)
_CHANGED_IN_STEP = (
    "parameters were frozen, unfrozen or added between the clipping and the noise of a"
    " step"
)
_NOT_RELEASED = (
    "the step also applies the gradient of a parameter that was not clipped and noised"
)
_DENOMINATOR = (
    "it was divided by another number than the public one: expected_batch_size was"
    " changed"
)


class TrainingWatch(Watch):
    """Watch of a training, from its first step (`watch`).

    Args:
        engine: engine whose accountant gives the claimed epsilon.
        module, optimizer, loader: results of `make_private`. The training iterates over
            this loader, directly or within `BatchMemoryManager`.
        epochs: number of passes over the loader; further steps are refused. None: it is
            not known, and the account is of the steps that ran.
        ledger: path of the ledger; the file must not exist.
        criterion: the loss, whose `reduction` is compared with `loss_reduction`; None:
            it is not checked.

    Raises:
        DpsumError: the optimiser is not one of Opacus's own for one process, is watched
            already, or adds no noise; steps were taken before; the loader does not know
            its length; the criterion has another reduction; the ledger exists.
    """

    adaptive = None
    unit = "record"
    follows_number = (
        "the divisor int(N / L) of N records in L batches, the rate and the number of"
        " steps follow N"
    )

    def __init__(
        self,
        engine: PrivacyEngine,
        module: Any,
        optimizer: DPOptimizer,
        loader: DataLoader[Any],
        *,
        epochs: int | None,
        ledger: Path | str,
        criterion: Any = None,
    ) -> None:
        open_ended = epochs is None
        epochs = _MANY_EPOCHS if epochs is None else epochs
        ghost = isinstance(optimizer, DPOptimizerFastGradientClipping)
        _check_training(engine, module, optimizer, epochs, criterion)
        check(loader)
        for threshold in _layer_thresholds(optimizer):
            check_range("the clipping threshold of a tensor", threshold)
        clipping_norm = float(optimizer.max_grad_norm)
        check_scale(clipping_norm, _multiplier(optimizer) * clipping_norm)
        super().__init__(ledger)
        self.open_ended = open_ended
        self._engine = engine
        self._module = module
        self.optimizer = optimizer
        self._public = optimizer.expected_batch_size
        self._draws = Draws(loader, epochs, UniformWithReplacementSampler)
        self._states = States()
        self._reasons = list[str]()
        self._kind = ""
        self._records = 0
        self._clipped_to = 0.0
        self._ghost = (-1, 0.0)
        self._layers: list[float] = []
        self._clipped_tensors: list[torch.Tensor] = []
        self._noise_sizes: dict[int, _NoiseSize] = {}
        self._noise_draws = NoiseSeen(_WINDOW)
        self._gradients: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self.silent = self._released = False
        self.put(optimizer, "_dpsum", self)
        self.replace(
            optimizer, "accumulate" if ghost else "clip_and_accumulate", self._clipped
        )
        self.replace(optimizer, "add_noise", self._noised)
        if ghost:
            self.replace(module, "get_clipping_coef", self._coefficients)
        self._undo += [
            optimizer.original_optimizer.register_step_pre_hook(
                self._before_step
            ).remove,
            self._draws.stop,
        ]

    # Hooks of the optimiser

    def _coefficients(self, method: Any) -> torch.Tensor:
        coefficients: torch.Tensor = method()
        self._ghost = len(coefficients), float(self._module.max_grad_norm)
        return coefficients

    def _clipped(self, method: Any) -> None:
        """Count the records of a physical batch, and record their clipping norm."""
        optimizer = self.optimizer
        if not self.silent:
            self._check_tensors()
            if isinstance(optimizer, DPOptimizerFastGradientClipping):
                (records, norm) = self._ghost
                self._ghost = (-1, 0.0)
                if records < 0:
                    self._reasons.append(_UNCLIPPED)
                if not _clips_released_layers(self._module, optimizer):
                    self._reasons.append(_OTHER_LAYERS)
            else:
                records = _record_count(optimizer)
                norm = float(optimizer.max_grad_norm)
                layers = _layer_thresholds(optimizer)
                if layers:
                    before = self._layers or layers
                    self._layers = [
                        max(*pair) for pair in zip(layers, before, strict=False)
                    ]
                    norm = math.hypot(*self._layers)
            self._records += max(records, 0)
            self._clipped_to = max(self._clipped_to, norm)
        method()

    def _check_tensors(self) -> None:
        """Note a change of the optimiser's tensors within a step."""
        tensors = list(self.optimizer.params)
        before = self._clipped_tensors or tensors
        if list(map(id, before)) != list(map(id, tensors)):
            self._reasons.append(_CHANGED_IN_STEP)
            self._layers = []
        self._clipped_tensors = tensors

    def _noised(self, method: Any) -> None:
        if self.silent:
            method()
            return
        optimizer = self.optimizer
        if self._states.again(optimizer.generator, optimizer.params[0].device):
            self._reasons.append(_SAME_NOISE)
        norm = float(optimizer.max_grad_norm)
        deviation = _multiplier(optimizer) * norm
        method()
        self._write(norm, deviation)

    def _write(self, norm: float, deviation: float) -> None:
        """Write the line of a release, after its noise was added.

        Args:
            norm: norm to which gradients were clipped.
            deviation: deviation of the noise.
        """
        optimizer = self.optimizer
        sampler, why = self._draws.take(self._records)
        if self.round >= sampler["rounds"]:
            raise DpsumError(
                f"step {self.round + 1} is beyond the {self.round} steps of the"
                " epochs given to watch(): give all epochs"
            )
        self._reasons = self._reasons + why
        self._kind = str(sampler["kind"])
        sensitivity = self._clipped_to or norm
        mean = optimizer.loss_reduction == "mean"
        if isinstance(optimizer, AdaClipDPOptimizer):
            self._reasons.append(_ADAPTIVE)
        if mean and optimizer.expected_batch_size != self._public:
            self._reasons.append(_DENOMINATOR)
        self._check_tensors()
        self._check_further_gradients()
        self._measure(deviation, sensitivity)
        self.write(
            name="gradient-sum",
            threshold=sensitivity,
            sensitivity=sensitivity,
            deviation=deviation,
            dimension=sum(parameter.numel() for parameter in optimizer.params),
            sampler=sampler,
            denominator=(
                optimizer.expected_batch_size * optimizer.accumulated_iterations
                if mean
                else 1
            ),
            reasons=self._reasons,
            noise_stream=(
                "torch"
                if optimizer.generator is None
                else f"torch:{type(optimizer.generator).__name__}"
            ),
            groups=self._groups(),
        )
        self.round += 1
        self._records = 0
        self._clipped_to = 0.0
        self._clipped_tensors = []
        self._layers = []
        self._released = True
        self._reasons = []

    def _check_further_gradients(self) -> None:
        """Note gradients that the step applies beside those of the release.

        Torch's optimisers also apply the gradient of a parameter that was frozen after
        the backward pass. Gradients of earlier releases, and zeros, reveal nothing more.
        """
        released = set(map(id, self.optimizer.params))
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None or id(parameter) in released:
                    continue
                reference, version = self._gradients.get(id(parameter), (None, 0))
                earlier = reference is not None and reference() is gradient
                if earlier and gradient._version == version:
                    continue
                if bool(gradient.count_nonzero()):
                    self._reasons.append(_NOT_RELEASED)

    def _groups(self) -> dict[str, Any] | None:
        """Return the groups of coordinates of this step; None for flat clipping."""
        if not self._layers:
            return None
        sizes = (parameter.numel() for parameter in self.optimizer.params)
        groups: dict[str, Any] = {
            "boundaries": list(itertools.accumulate(sizes, initial=0)),
            "thresholds": self._layers,
        }
        names = _parameter_names(self._module, self.optimizer)
        if names:
            groups["names"] = names
        return groups

    def _measure(self, std: float, clipped_to: float) -> None:
        """Check that the sum's norm and its noise are possible for the mechanism."""
        lengths = []
        squares = []
        pieces = []
        params = self.optimizer.params
        for parameter in params:
            summed = parameter.summed_grad.double().reshape(-1)  # type: ignore[attr-defined]
            noise = parameter.grad.double().reshape(-1) - summed  # type: ignore[union-attr]
            lengths.append(summed.square().sum())
            squares.append(noise.square().sum())
            pieces.append(noise[:_KEPT])
        length = math.sqrt(float(torch.stack(lengths).sum()))
        energies = torch.stack(squares).cpu().numpy()
        if not (math.isfinite(length) and np.isfinite(energies).all()):
            self._reasons.append(_NOT_FINITE)
            return
        sums = [(length, clipped_to)]
        sums += [
            (math.sqrt(float(square)), threshold)
            for square, threshold in zip(lengths, self._layers, strict=False)
        ]
        if any(norm > self._records * most * _NORM_SLACK for norm, most in sums):
            self._reasons.append(_TOO_LONG)
        if std <= 0:
            self._reasons.append(_LESS_NOISE)
            return
        for parameter, energy in zip(params, energies / std / std, strict=True):
            size = self._noise_sizes.setdefault(id(parameter), _NoiseSize(parameter))
            size.coordinates += parameter.numel()
            size.energy += float(energy)
        steps = self.round + 1
        alarm = _FALSE_ALARM / (steps * (steps + 1))
        level = alarm / len(self._noise_sizes)
        if any(size.chance() < level for size in self._noise_sizes.values()):
            self._reasons.append(_LESS_NOISE)
        drawn = torch.cat(pieces).cpu().numpy() / std
        ends = np.cumsum([piece.numel() for piece in pieces])
        draws = np.split(drawn, ends[:-1])
        self._reasons += self._noise_draws.repeats(draws, alarm / len(draws))

    def _before_step(self, *_: Any) -> None:
        if not self._released:
            error = DpsumError(
                "the model was about to be updated with gradients that the watched"
                " optimiser did not release: step the optimiser that make_private"
                " returned, not the one that it wraps"
            )
            if self.on_fault is None:
                raise error
            self.on_fault(error)
        self._released = False
        # The gradients as they are applied, to recognise those that stay.
        for parameter in self.optimizer.params:
            gradient = parameter.grad
            if gradient is not None:
                state = weakref.ref(gradient), gradient._version
                self._gradients[id(parameter)] = state

    # Queries

    def claim(self) -> Claim:
        name = self._engine.accountant.mechanism()
        return Claim(
            epsilon=lambda _schedule, _sampler, delta: float(
                self._engine.get_epsilon(delta)
            ),
            explanation=(
                f"Opacus's {name} accountant, which takes each batch for a Poisson"
                " sample"
            ),
            status=(
                "proved" if self._kind == "poisson-lots" and name != "gdp" else "void"
            ),
        )

    def compute_account(self, delta: float) -> Account:
        """Return the account: Opacus's epsilon (`claimed`) and the proven one.

        Raises:
            DpsumError: the ledger was cut off or changed, no step was taken, or Opacus
                counts other steps; see `Watch.account` too.
        """
        steps = len(self.releases())
        counted = sum(count for _, _, count in self._engine.accountant.history)
        if counted != steps:
            raise DpsumError(
                f"Opacus's accountant counts {counted} steps and the ledger {steps}:"
                " some steps were not watched"
            )
        return super().compute_account(delta)

    def release_of(self) -> Callable[[np.ndarray], np.ndarray]:
        return release_of(self.optimizer)

    def declared(self, last: Release) -> dict[str, Any]:
        return {"dimension": last.dimension}


watch = TrainingWatch


@dataclasses.dataclass
class _NoiseSize:
    """Noise of a parameter tensor over all steps so far.

    Attributes:
        tensor: the tensor, kept alive so that its identity stays its own.
        coordinates: number of draws.
        energy: sum of their squares, in variances.
    """

    tensor: torch.Tensor
    coordinates: int = 0
    energy: float = 0.0

    def chance(self) -> float:
        """Return the probability that right noise is so small."""
        return float(gammainc(self.coordinates / 2, self.energy / 2))


def _record_count(optimizer: DPOptimizer) -> int:
    """Return the number of records whose gradients are about to be clipped."""
    gradients = optimizer.params[0].grad_sample
    if isinstance(gradients, list):
        return sum(map(len, gradients))
    return len(gradients)


def _clips_released_layers(module: Any, optimizer: DPOptimizer) -> bool:
    """Return whether ghost clipping's norm is of this batch and of all released tensors.

    The module takes the norm over the tensors that were trainable at first. A frozen
    one keeps the norms of an earlier batch.
    """
    normed = module.trainable_parameters
    of_this_batch = all(parameter.requires_grad for parameter in normed)
    released = set(map(id, optimizer.params))
    return of_this_batch and released <= set(map(id, normed))


def _check_training(
    engine: PrivacyEngine,
    module: Any,
    optimizer: DPOptimizer,
    epochs: int,
    criterion: Any,
) -> None:
    """Refuse a training that a watch cannot account for; see `TrainingWatch`."""
    ghost = isinstance(optimizer, DPOptimizerFastGradientClipping)
    if type(optimizer) not in _KNOWN:
        raise DpsumError(
            f"{type(optimizer).__name__} is not an optimiser whose clipping and"
            " noise are known here: give the one that make_private returned, in one"
            f" process ({', '.join(kind.__name__ for kind in _KNOWN)})"
        )
    if "_dpsum" in vars(optimizer):
        raise DpsumError(
            "the optimiser is watched already: keep that watch, or stop() it"
        )
    if isinstance(engine, PrivacyEngineAdaptiveClipping):
        raise DpsumError(f"adaptive ghost clipping has no account: {_ADAPTIVE}")
    if len(engine.accountant) > 0:
        raise DpsumError(
            "steps were taken before the watch began: watch right after make_private"
        )
    z = optimizer.noise_multiplier
    if not z > 0:
        raise DpsumError(f"noise_multiplier is {z}: without noise nothing is private")
    if ghost and not hasattr(module, "get_clipping_coef"):
        raise DpsumError(
            "ghost clipping is done by the module: give the one that make_private"
            " returned"
        )
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise DpsumError(f"epochs is {epochs!r}: it must be a whole number from 1 on")
    reduction = getattr(criterion, "reduction", None)
    if (
        not ghost
        and reduction in ("mean", "sum")
        and reduction != optimizer.loss_reduction
    ):
        raise DpsumError(
            f"the criterion's reduction is {reduction}, but loss_reduction is"
            f" {optimizer.loss_reduction}: gradients of records are scaled by the"
            " batch's size; give make_private the criterion's"
        )


def _layer_thresholds(optimizer: DPOptimizer) -> list[float]:
    """Return the threshold of each parameter tensor; empty for flat clipping.

    Where layers are frozen, Opacus gives the first thresholds to the tensors that are
    left, in order.

    Raises:
        DpsumError: there are fewer thresholds than parameter tensors.
    """
    if not isinstance(optimizer, DPPerLayerOptimizer):
        return []
    thresholds = [float(threshold) for threshold in optimizer.max_grad_norms]
    tensors = len(optimizer.params)
    if len(thresholds) < tensors:
        raise DpsumError(
            f"max_grad_norm has {len(thresholds)} thresholds, but the optimiser has"
            f" {tensors} parameter tensors: give one threshold for each, in the order"
            " of optimizer.params"
        )
    return thresholds[:tensors]


def _parameter_names(module: Any, optimizer: DPOptimizer) -> list[str]:
    """Return the names of the optimiser's parameters; empty if one has no name."""
    if not hasattr(module, "named_parameters"):
        return []
    names = {
        id(parameter): name.removeprefix("_module.")
        for name, parameter in module.named_parameters()
    }
    params = optimizer.params
    if not all(id(parameter) in names for parameter in params):
        return []
    return [names[id(parameter)] for parameter in params]


def _multiplier(optimizer: DPOptimizer) -> float:
    """Return the deviation of the optimiser's noise over `max_grad_norm`."""
    z = float(optimizer.noise_multiplier)
    if isinstance(optimizer, AdaClipDPOptimizer):
        return (z**-2 - (2 * float(optimizer.unclipped_num_std)) ** -2) ** -0.5
    return z


def release_of(optimizer: DPOptimizer) -> Callable[[np.ndarray], np.ndarray]:
    """Return the optimiser's clipping, sum and noise as a function for an audit.

    The function maps gradients [n, d] to the noisy sum [d]. The optimiser may be
    watched or not, and of any class. The parameters and their gradients do not change,
    and the ledger gets no line.

    Raises:
        DpsumError: the optimiser uses ghost clipping, which has no gradients of
            records; or, when called, the rows have another length.
    """
    if isinstance(optimizer, DPOptimizerFastGradientClipping):
        raise DpsumError(
            "ghost clipping takes no gradients of records: audit the same training"
            " without it"
        )
    params = optimizer.params
    sizes = [parameter.numel() for parameter in params]

    def release(rows: np.ndarray) -> np.ndarray:
        contributions = torch.as_tensor(
            np.asarray(rows), dtype=params[0].dtype, device=params[0].device
        )
        if contributions.ndim != 2 or contributions.shape[1] != sum(sizes):
            raise DpsumError(
                f"contributions have the shape {tuple(contributions.shape)}: give [n,"
                f" {sum(sizes)}]"
            )
        watcher = getattr(optimizer, "_dpsum", SimpleNamespace())
        gradients = [
            [getattr(parameter, name, None) for name in _GRADIENTS]
            for parameter in params
        ]
        watcher.silent = True
        try:
            for parameter, columns in zip(
                params, contributions.split(sizes, dim=1), strict=True
            ):
                parameter.grad_sample = columns.reshape(-1, *parameter.shape)
                parameter.summed_grad = None
            optimizer.clip_and_accumulate()
            optimizer.add_noise()
            return (
                torch.cat([parameter.grad.reshape(-1) for parameter in params])
                .detach()
                .cpu()
                .numpy()
            )
        finally:
            watcher.silent = False
            for parameter, values in zip(params, gradients, strict=True):
                for name, value in zip(_GRADIENTS, values, strict=True):
                    setattr(parameter, name, value)

    return release

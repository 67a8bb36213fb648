"""DP-AdamBC (Tang, Shpilevskiy and Lecuyer 2023, DP-AdamBC: Your DP-Adam Is Actually
DP-SGD).

A released mean is g + e with noise e of deviation s on each coordinate, so that E[(g +
e)^2] = E[g^2] + s^2. The noise fills Adam's second moment, and where s is large all
coordinates take steps of one length. The server draws the noise itself and s is in the
ledger, so that the bias can be subtracted:

    m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2        n = b2 n + (1 - b2) s^2
    w -= rate * m' / sqrt(max(v' - n', floor)),   x' = x / (1 - b^t)

Where s is constant, n' is s^2 as in the paper. Where the threshold or the noise
changes, n' is the noise's part of v'. Everything follows from releases: it is
post-processing.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from dpfedbench.config.part import setting
from dpfedbench.lazy import np, torch
from dpfedbench.parts.optimizers.optimizer import Optimizer, State

_FIRST = 0.9
_SECOND = 0.999


class AdamBC(Optimizer):
    """Adam without the noise's variance in its second moment; betas are 0.9 and
    0.999.
    """

    kind: Literal["adam-bc"] = "adam-bc"
    reads_noise: ClassVar[bool] = True
    floor: float = setting(
        1e-8,
        gt=0,
        le=1e6,
        doc="smallest corrected second moment, gamma'; smaller values are mostly noise",
        paper="tuned",
    )

    def begin(self, weights: torch.Tensor) -> State:
        moments = {
            "mean": torch.zeros_like(weights),
            "square": torch.zeros_like(weights),
        }
        return {"steps": 0, "noise": 0.0, "deviation": 0.0, **moments}

    def set_noise_deviation(self, state: State, deviation: Any) -> None:
        if np.ndim(deviation):
            state["deviation"] = torch.as_tensor(deviation, dtype=torch.float32)
        else:
            state["deviation"] = float(deviation)

    def step(
        self, weights: torch.Tensor, gradient: torch.Tensor, state: State, rate: float
    ) -> None:
        state["steps"] += 1
        state["mean"].lerp_(gradient, 1 - _FIRST)
        state["square"].mul_(_SECOND).addcmul_(gradient, gradient, value=1 - _SECOND)
        state["noise"] = (
            _SECOND * state["noise"] + (1 - _SECOND) * state["deviation"] ** 2
        )
        first, second = (1 - beta ** state["steps"] for beta in (_FIRST, _SECOND))
        corrected = (
            ((state["square"] - state["noise"]) / second).clamp_(min=self.floor).sqrt_()
        )
        weights.addcdiv_(state["mean"], corrected, value=-rate / first)

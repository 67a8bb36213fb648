"""Task-global DP Reptile (Differentially Private Meta-Learning, Li et al. 2020): "GBML" in DP-FedMeta's Table 2.

Each round every client of the cohort trains from the meta-model on its own examples by DP-Adam: each step's gradients
are clipped one by one and noised (Section 4). It sends the weights it ends with, which protects each of its examples
against the server and everyone after it. The server moves the meta-model towards their mean (batch Reptile, Nichol et
al. 2018): phi <- phi + eps (mean of theta_t - phi); it adds no noise of its own.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dpfedbench.methods.reptile import NonPrivateReptile
from dpfedbench.parts.budget import WithinTask
from dpfedbench.parts.client_updates.reptile import TASK
from dpsum.accounting.claims import REPTILE_STEPS, Claims
from dpsum.sums import Sum


class DpReptile(NonPrivateReptile):
    """Private sums within each task, and the mean of what they make of the weights."""

    name: ClassVar[str] = "dp-reptile"
    title: ClassVar[str] = "Task-global DP Reptile (GBML)"
    claims: ClassVar[Claims] = {"own-records": REPTILE_STEPS, "own-records-poisson": REPTILE_STEPS}
    defaults: ClassVar[dict[str, Any]] = {
        **NonPrivateReptile.defaults,
        "within_task": {"threshold": 0.2, "multiplier": None, "epsilon": 9.5, "delta": 1.0e-3, "profile": "as_claimed"},
    }

    within_task: WithinTask = WithinTask()

    def own_sums(self) -> tuple[Sum, ...]:
        return (self.within_task.sum(TASK, observer="server"),)

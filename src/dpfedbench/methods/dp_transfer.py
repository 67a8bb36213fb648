"""DP pre-training: `transfer` by DP-SGD (Abadi et al. 2016), the private rival of DP-AGR and DP-MAML.

In each round the holder

1. takes a lot: each image with probability L/n, apart from all others;
2. clips each image's gradient to C in L2 norm over all weights, adds them up and adds N(0, z^2 C^2 I);
3. takes a step of Adam along that sum / L.

An image is what is protected, from everyone who gets the model, and Poisson lots are what the accountant takes for
granted. z = 6 and L = 2,000 are the papers'; C is not said.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dpfedbench.methods.over_lots import OverLots
from dpfedbench.methods.transfer import PRE_TRAINING
from dpsum.accounting.claims import WHOLE_ORDERS, Claims


class DpTransfer(OverLots):
    """One private sum a lot, over single images; the pre-trained body goes to others."""

    name: ClassVar[str] = "dp-transfer"
    title: ClassVar[str] = "DP transfer learning"
    paper: ClassVar[str] = "dp-fedmeta"
    claims: ClassVar[Claims] = {"poisson-lots": WHOLE_ORDERS}
    pretrains: ClassVar[bool] = True
    observer: ClassVar[str] = "everyone"
    defaults: ClassVar[dict[str, Any]] = PRE_TRAINING | {
        "participation": {"kind": "poisson-lots", "cohort": 500, "rounds": 30},
        "clipping": {"kind": "constant", "threshold": 1.0},
        "noise": {"kind": "fixed", "multiplier": 6.0},
        "budget": {"epsilon": None, "delta": 1.0e-5},
    }

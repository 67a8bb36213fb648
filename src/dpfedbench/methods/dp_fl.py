"""DP-FL with one threshold and one noise scale for all clients and rounds: the baseline of Adap DP-FL.

Each client clips each record's gradient to C and adds N(0, z^2 C^2 I) to their sum (Zheng et al. 2021, in Section V
of Adap DP-FL): record-level privacy against the server. Local DP-FedAvg in the sense that no one else is trusted.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dpfedbench.methods.over_lots import OverLots
from dpfedbench.parts.clipping.constant import Constant
from dpfedbench.parts.noise.fixed import Fixed
from dpsum.accounting.claims import WHOLE_ORDERS, Claims


class DpFl(OverLots):
    """Each client's local steps along noisy sums of clipped gradients, and the models' average."""

    name: ClassVar[str] = "dp-fl"
    title: ClassVar[str] = "DP-FL, constant clipping and noise"
    paper: ClassVar[str] = "adap-dp-fl"
    version: ClassVar[str] = "2"
    claims: ClassVar[Claims] = {"poisson-lots": WHOLE_ORDERS}
    defaults: ClassVar[dict[str, Any]] = {"clipping": {"kind": "constant"}, "noise": {"kind": "fixed"}}

    clipping: Constant = Constant()
    noise: Fixed = Fixed()

"""NVFlare's privacy filters at their default settings: a client's model difference of
510 coordinates, three rounds.

No adapter knows these filters. What is proven is by hand, from their source.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpsum.accounting.profiles import Entry

PACKAGE = "nvflare"

COORDINATES = 510
ROUNDS = 3


@dataclasses.dataclass(frozen=True)
class _Account:
    profiles: dict[str, Entry]


@dataclasses.dataclass(frozen=True)
class FilteredUpdates:
    """Updates of one client that a filter released, with an epsilon proven by hand.

    Attributes:
        proven: high end of epsilon under replace-one; infinite where none is proven.
        explanation: the proof, or why there is none.
    """

    proven: float
    explanation: str
    claimed_adjacency: str = "replace-one"

    def account(self, delta: float, *, units_public: bool = False) -> _Account:
        """Return the account, at any delta."""
        entry = Entry(
            epsilon_low=0.0,
            epsilon_high=self.proven,
            delta=delta,
            unit="client",
            adjacency="replace-one",
            observer="server",
            status="proved",
            explanation=self.explanation,
        )
        return _Account({"proven": entry})


def proven_selection(
    epsilon_threshold: float, epsilon_query: float, uploads: int, coordinates: int
) -> float:
    """Return the epsilon of the filter's choice of coordinates, in one call.

    Its threshold has noise Lap(gamma / epsilon_threshold), each query noise
    Lap(2 gamma c / epsilon_query) for c uploads, and a query's sensitivity is gamma. By
    Theorem 2 of Lyu, Su and Li (2017) k positive answers cost epsilon_threshold +
    k epsilon_query / c. The filter looks at its count at the end of a pass only, so
    that k may be the number of all coordinates. The subset of c that it then draws is
    post-processing.
    """
    return epsilon_threshold + epsilon_query * coordinates / uploads


def runs(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a run of the sparse vector technique, and one of the percentile filter."""
    import numpy as np
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
    from nvflare.app_common.filters.svt_privacy import SVTPrivacy

    logging.disable(logging.INFO)
    generator = np.random.default_rng(0)

    def release(filter_: Any) -> None:
        for _ in range(ROUNDS):
            update = generator.normal(0.0, 1e-5, COORDINATES)
            dxo = DXO(DataKind.WEIGHT_DIFF, data={"w": update})
            if filter_.process_dxo(dxo, Shareable(), FLContext()) is None:
                raise RuntimeError("the filter released nothing")

    svt = SVTPrivacy()
    release(svt)
    ledger = svt.get_privacy_ledger()
    proven = math.fsum(
        line["epsilon_release"]
        + proven_selection(
            line["epsilon_threshold"],
            line["epsilon_query"],
            line["n_upload"],
            COORDINATES,
        )
        for line in ledger
    )
    settings = f"a model difference of {COORDINATES} coordinates, {ROUNDS} rounds"
    yield {
        "watched": FilteredUpdates(proven, str(proven_selection.__doc__)),
        "delta": 0.0,
        "audit": False,
        "claimed": svt.get_privacy_spent(),
        "what": "NVFlare, SVTPrivacy",
        "source": f"the filter's defaults, {settings}",
        "why": (
            "The sparse vector technique stops at the c-th answer above the threshold,"
            " and its proof counts c of them. The filter counts at the end of a pass"
            " over all coordinates, so that up to all of them are answered above it;"
            " then it draws c. What is proven counts all coordinates. Most of both ε is"
            " of the values' noise: by default 0.1 for each uploaded coordinate, which"
            " the ε of the settings (0.1) does not count. Scalars, and the number of"
            " local steps that scales the update, are released without noise; here"
            " there are none."
        ),
        "quote": (
            "epsilon (float, optional): total privacy budget used for the"
            " threshold/query selection phase."
        ),
    }

    release(PercentilePrivacy())
    yield {
        "watched": FilteredUpdates(math.inf, "a deterministic function of the update"),
        "delta": 0.0,
        "audit": False,
        "what": "NVFlare, PercentilePrivacy",
        "source": f"the filter's defaults, {settings}",
        "why": (
            "NVFlare says no ε. The filter truncates the update and leaves out its"
            " least coordinates, without noise: a deterministic function has no finite"
            " ε."
        ),
        "quote": (
            'Implementation of "largest percentile to share" privacy preserving policy.'
        ),
    }

"""The critical pitfalls of DP training, by name.

Source: R. McKenna and H. B. McMahan, "Common Pitfalls in DP Training", documentation of
JAX Privacy, 2026 (read at version 2.3.0.dev0): the entries of severity *critical*.
"""

from __future__ import annotations

import dataclasses

PITFALLS = {
    "division-by-batch-size": "Division by batch size",
    "sensitivity-alignment": "Sensitivity alignment",
    "accounting-mismatch": "Accounting and batch selection mismatch",
    "private-metadata": "Public vs. private metadata",
    "neighboring-relation": "Neighboring relation clarity",
    "empty-or-not-finite": "Zero-sized batches and non-finite gradients",
    "gradient-accumulation": "Gradient accumulation",
    "cross-example-operations": "Cross-example operations",
    "auxiliary-information": "Auxiliary information",
}
"""Title of each critical pitfall in the guide."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """A pitfall that a script has, or seems to have.

    Attributes:
        pitfall: key of `PITFALLS`.
        place: file and line, or the object that was seen.
        text: what was found, and why it matters.
    """

    pitfall: str
    place: str
    text: str

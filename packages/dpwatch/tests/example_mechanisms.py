"""The mechanisms of the example, and their audit, as several tests use them."""

import runpy
from pathlib import Path

from dpwatch.audit.anything import audited

EXAMPLE = runpy.run_path(
    str(Path(__file__).parents[1] / "examples" / "check_a_mechanism.py")
)
clip = EXAMPLE["clip"]


def mechanism(name="right", seed=0):
    """Return a mechanism of the example."""
    return getattr(EXAMPLE["Mechanisms"](seed), name)


def audit_at_z_1(release, dimension=200, **options):
    return audited(release, dimension=dimension, noise_multiplier=1.0, **options)

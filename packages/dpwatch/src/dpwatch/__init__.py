"""Ledgers of other libraries' trainings, audits of any mechanism, and a command line.

    import dpwatch

    print(dpwatch.audited(release, dimension=1000, noise_multiplier=1.0, delta=1e-5))

- `dpwatch.adapters` writes ledgers of the releases of Opacus, Flower and pfl, and
  converts ledgers to and from events of dp_accounting.
- `dpwatch.audit` attacks any function that takes contributions and returns a release.
- The command `dpwatch` accounts for ledgers, plans noise and audits.

The package needs only dpsum, numpy and scipy. Each adapter imports its library.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

__all__ = ["audited"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'dpwatch' has no attribute {name!r}")
    from dpwatch.audit.anything import audited

    return audited

"""Privacy of other people's training: ledgers of runs that other libraries make, audits
of any mechanism, and a command line.

    import dpwatch

    print(dpwatch.audited(release, dimension=1000, noise_multiplier=1.0, delta=1e-5))

- `dpwatch.adapters` writes a ledger of what Opacus, Flower or pfl released, and reads
  and writes events of dp_accounting.
- `dpwatch.audit` attacks any function that takes contributions and returns a release.
- `python -m dpwatch` accounts for ledgers, plans noise, compares and audits.

dpsum, numpy and scipy are all that it needs; each adapter imports its library.
"""

from __future__ import annotations

from typing import Any

__all__ = ["audited"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'dpwatch' has no attribute {name!r}")
    from dpwatch.audit.anything import audited

    return audited

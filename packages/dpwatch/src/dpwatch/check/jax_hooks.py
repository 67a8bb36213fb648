"""Hooks in jax_privacy: its trainings are named and refused, since no hook sees compiled
code. A loop that calls `dpwatch.adapters.jax_privacy.watch` is watched.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from dpwatch.check.hooks import Session

_REFUSED = (
    "jax_privacy may add its noise in compiled code, which no hook sees: put"
    " dpwatch.adapters.jax_privacy.watch around the loop, or account for the plan's dp_event by"
    " dpwatch.adapters.dp_event.from_event, which says what is proven if the loop does"
    " what its plan says"
)


def install(module: ModuleType, session: Session) -> None:
    """Note each privatizer that the script makes."""

    def note(name: str) -> None:
        create = getattr(module, name)

        @functools.wraps(create)
        def created(*args: Any, **kwargs: Any) -> Any:
            session.say("refused", library="jax_privacy", text=_REFUSED)
            return create(*args, **kwargs)

        setattr(module, name, created)

    for name in list(vars(module)):
        if name.endswith("_privatizer") and not name.startswith("_"):
            note(name)

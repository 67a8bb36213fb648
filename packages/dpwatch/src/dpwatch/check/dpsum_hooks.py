"""Hooks in dpsum: the ledgers that a script writes itself, by `dpsum.Release`."""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType
from typing import Any

from dpwatch.check.hooks import Session


class ScriptLedger:
    """A ledger of the script's own, with the interface that `accounts` needs of a watch.

    Attributes:
        path: path of the ledger.
        unit, open_ended, on_fault: see `adapters.watch.Watch`.
    """

    unit = ""
    open_ended = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self.on_fault: Any = None

    def releases(self) -> list[Any]:
        """Return the ledger's lines.

        Raises:
            DpsumError: it has none.
        """
        from dpsum.errors import DpsumError
        from dpsum.ledger import read_ledger

        lines = read_ledger(self.path)
        if not lines:
            raise DpsumError(f"{self.path.name} has no release")
        return lines

    def account(self, delta: float, *, units_public: bool = False) -> Any:
        """Return the account of the ledger; its profiles name their adjacency."""
        from dpsum.accounting.account import account

        return account(self.releases(), delta=delta)

    def declared(self, last: Any) -> dict[str, Any]:
        """Return the dimension of the last line."""
        return {"dimension": last.dimension}

    def audit(self, delta: float, **how: Any) -> Any:
        """Refuse: the function that clips and adds noise is the script's own."""
        from dpsum.errors import DpsumError

        raise DpsumError(
            "the check does not know which function of the script clips and adds noise:"
            " audit it by dpwatch.audited"
        )


def hook_ledgers(module: ModuleType, session: Session) -> None:
    """Take each ledger that the script makes, other than those of watches."""
    ledger = module.Ledger
    create = ledger.__init__

    def take(self: Any) -> None:
        path = Path(self.path).resolve()
        if session.folder.resolve() not in path.parents:
            session.add("dpsum", ScriptLedger(path))

    @functools.wraps(create)
    def created(self: Any, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        session.attempt("dpsum", take, self)

    ledger.__init__ = created

"""The account and the audit of a watch at the end of the process that it watched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpsum.accounting.statement import statement
from dpsum.errors import DpsumError
from dpsum.ledger import Ledger
from dpwatch.export import plain

LARGEST_AUDIT = 20_000
"""Most coordinates of a release that is audited without being asked."""


def account_of_watch(
    watch: Any, delta: float, delta_reason: str, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the account and the audit of a watch, as values for JSON.

    Args:
        watch: an adapter's watch; see `adapters.watch.Watch`.
        delta: delta of both.
        delta_reason: where delta is from, as a sentence.
        settings: see `hooks.Session`.

    Returns:
        `account` and its `statement`, or `no_account` with the reason; `audit`, or
        `not_audited`; `reasons`, the distinct reasons in the ledger's lines, with the
        number of lines of each; `releases`, `assumes_rounds`.
    """
    values: dict[str, Any] = {
        "delta": delta,
        "releases": 0,
        "reasons": {},
        "unit": watch.unit,
        "assumes_rounds": watch.open_ended,
    }
    try:
        lines = watch.releases()
    except DpsumError as error:
        return values | {
            "no_account": str(error),
            "not_audited": "nothing was released",
        }
    values["releases"] = len(lines)
    for line in lines:
        if line.reason:
            values["reasons"][line.reason] = values["reasons"].get(line.reason, 0) + 1
    if watch.open_ended:
        _rewrite(watch, lines)
    values |= _audit(watch, lines[-1], delta, settings)
    try:
        account = watch.account(delta, units_public=settings["units_public"])
    except (DpsumError, ArithmeticError, MemoryError, ValueError) as error:
        # Noise far below what one unit moves takes more grid points than memory has.
        return values | {"no_account": str(error)}
    values["account"] = plain(account.to_json())
    values["statement"] = statement(
        account, delta_reason=delta_reason, audit=_audit_sentence(values)
    )
    return values


def _audit_sentence(values: Mapping[str, Any]) -> str:
    if "audit" not in values:
        return f"It was not audited: {values['not_audited']}."
    return f"An audit of the code that ran says: {values['audit']['status']}."


def _rewrite(watch: Any, lines: Any) -> None:
    """Write the ledger again, with the number of rounds that ran."""
    watch.path.unlink()
    watch.ledger = Ledger(watch.path)
    for line in lines:
        watch.ledger.append(line)


def _audit(
    watch: Any, last: Any, delta: float, settings: Mapping[str, Any]
) -> dict[str, Any]:
    calls = settings["audit_calls"]
    if not calls:
        return {"not_audited": "it was not asked for (--audit-calls)"}
    dimension = watch.declared(last)["dimension"]
    if dimension > LARGEST_AUDIT and not settings["audit_any_size"]:
        return {
            "not_audited": (
                f"the release has {dimension:,} coordinates, more than"
                f" {LARGEST_AUDIT:,}: --audit-any-size audits it, which may take long"
            )
        }
    try:
        audit = watch.audit(delta, calls=calls)
    except (DpsumError, RuntimeError, ValueError, TypeError) as error:
        return {"not_audited": " ".join(str(error).split())}
    return {"audit": plain(audit.to_json())}

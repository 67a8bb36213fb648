"""Export of an account and an audit: JSON with a schema, and metrics for trackers.

    mlflow.log_metrics(metrics(report(account=account)))

`report.schema.json`, beside this file, is the schema (JSON Schema, draft 2020-12). It
has infinity as the text "inf", and a missing number as null.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpsum.accounting.account import Account
from dpsum.ledger import chain_of
from dpwatch.audit.anything import Audited

FORMAT = "dpsum report"
VERSION = 1

SCHEMA = Path(__file__).with_name("report.schema.json")
"""Path of the schema."""


def report(
    *,
    account: Account | None = None,
    audit: Audited | None = None,
    ledger: Path | str | None = None,
) -> dict[str, Any]:
    """Return a report of an account, an audit or both, as values for JSON.

    Args:
        account: the account.
        audit: the audit.
        ledger: ledger of the account. The report has its number of lines, and the
            digest of the last line, which covers all lines.
    """
    content: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    if ledger is not None:
        content["ledger"] = chain_of(
            Path(ledger).read_text(encoding="utf-8").splitlines(keepends=True)
        )
    if account is not None:
        content["account"] = account.to_json()
    if audit is not None:
        content["audit"] = audit.to_json()
    return dict(plain(content))


def plain(value: Any) -> Any:
    """Convert a value for JSON: infinity becomes text, and NaN null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def metrics(report: Mapping[str, Any]) -> dict[str, float]:
    """Return a report's numbers by name.

    The names of a second unit or observer contain its number.
    """
    numbers: dict[str, float] = {}
    for count, account in enumerate(_each(report.get("account")), start=1):
        where = "privacy/" if count == 1 else f"privacy_{count}/"
        numbers |= {
            where + name: account[name]
            for name in ("delta", "rounds", "noise_multiplier")
            if account.get(name)
        }
        for name, entry in account["profiles"].items():
            numbers |= {
                f"{where}epsilon_{name}": entry["epsilon_high"],
                f"{where}epsilon_{name}_low": entry["epsilon_low"],
            }
    audit = report.get("audit")
    if audit is not None:
        names = ("epsilon", "claimed", "ideal", "leak", "chance", "refuted", "calls")
        numbers |= {
            f"privacy/audit_{name}": audit[name]
            for name in names
            if audit[name] is not None
        }
    return {name: float(value) for name, value in numbers.items()}


def _each(account: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if account is not None:
        yield account
        for further in account.get("also", ()):
            yield from _each(further)

"""Ledgers as a user's own loop writes them."""

from tests.dpsum.conftest import write_ledger

__all__ = ["write_ledger"]

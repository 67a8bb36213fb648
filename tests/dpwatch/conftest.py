"""Ledgers as a user's own loop writes them."""

import pytest

from tests.dpsum.conftest import write_ledger

__all__ = ["write_ledger"]


@pytest.fixture
def path(tmp_path):
    """Return the path of a ledger that a watch will write."""
    return tmp_path / "ledger.jsonl"

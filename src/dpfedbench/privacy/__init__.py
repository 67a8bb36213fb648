"""Mechanisms, and the ledger of what they released."""

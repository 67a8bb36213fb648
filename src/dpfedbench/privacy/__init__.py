"""Mechanisms, their ledger, and the accountants that read it."""

"""Accountants: from the releases and the sampler in a ledger to epsilon.

Accountants read ledgers only.
"""

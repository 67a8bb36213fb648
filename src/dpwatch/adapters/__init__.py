"""Ledgers of runs that other libraries make: one file a library, which imports it; each
has an extra of its own.
"""

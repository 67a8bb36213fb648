"""Ledgers of other libraries' runs: one file, and one optional extra, for each library.

Each file imports its library.
"""

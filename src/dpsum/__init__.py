"""Private sums: mechanisms, a ledger of what they released, accountants that read it, and audits.

numpy and scipy are all that it needs.
"""

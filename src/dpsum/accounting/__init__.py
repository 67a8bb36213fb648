"""Accountants: from what was released, and how its cohort was drawn, to epsilon. They
read ledgers only.
"""

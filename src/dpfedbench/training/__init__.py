"""The training loop of the federation: client updates, rounds, checkpoints, processes,
accounts.
"""

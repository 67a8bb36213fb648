"""The training loop of the federation: rounds, checkpoints, processes, accounts."""

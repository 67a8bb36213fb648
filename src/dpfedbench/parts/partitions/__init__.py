"""Partitions: how a data set is shared out among clients, one file each."""

"""Partitions of a data set among clients, one file each."""

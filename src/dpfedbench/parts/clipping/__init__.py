"""Clipping rules: how the threshold of a private sum moves, one file each."""

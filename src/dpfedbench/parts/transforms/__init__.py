"""Transformations of single contributions before a sum clips them, one file each."""

"""Optimisers on one flat vector, or on vectors one above the other, one file each."""

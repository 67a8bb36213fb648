"""Optimisers of one flat vector, or of a stack of vectors, one file each."""

"""Evaluation: the meta-test and its intervals."""

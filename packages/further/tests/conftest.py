"""Fixtures of the benchmark's tests: data folders, and small runs."""

# First, so that plugins are imported whole before a test imports a part of this one.
from dpfedbench.papers import METHODS
from tests.conftest import federation, garbage_thresholds, silos

assert METHODS

__all__ = ["federation", "garbage_thresholds", "silos"]

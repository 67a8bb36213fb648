"""Fixtures of the benchmark's tests: data folders, and small runs."""

from tests.conftest import federation, garbage_thresholds, silos

__all__ = ["federation", "garbage_thresholds", "silos"]

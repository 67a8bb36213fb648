"""The small federation of tests/dpfedbench/federation, for methods that train."""

from tests.dpfedbench.federation.conftest import federation

__all__ = ["federation"]

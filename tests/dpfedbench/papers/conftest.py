"""The small federation of the tests of rounds, for those of methods that train."""

from tests.dpfedbench.federation.conftest import federation

__all__ = ["federation"]

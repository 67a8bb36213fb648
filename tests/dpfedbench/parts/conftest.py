"""The small federations of the tests of rounds, for those of parts that need one."""

from tests.dpfedbench.federation.conftest import federation, silos

__all__ = ["federation", "silos"]

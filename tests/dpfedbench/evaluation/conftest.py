"""The small federations of the tests of rounds."""

from tests.dpfedbench.federation.conftest import federation, silos

__all__ = ["federation", "silos"]

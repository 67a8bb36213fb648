"""The small federation of the tests of rounds, for those of accounts that need a
partition.
"""

from tests.dpfedbench.federation.conftest import federation

__all__ = ["federation"]

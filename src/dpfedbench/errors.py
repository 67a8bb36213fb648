"""The one error that is written for users. `dpsum` raises the same class, so a script
has one class to catch.
"""

from dpsum.errors import DpsumError as BenchError

__all__ = ["BenchError"]

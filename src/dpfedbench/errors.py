"""The one error that a user is meant to read: `dpsum` raises the same, so that a script has one class to catch."""

from dpsum.errors import DpsumError as BenchError

__all__ = ["BenchError"]

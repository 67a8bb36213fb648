"""The error and the warning that a user is meant to read."""


class DpsumError(Exception):
    """A fault and its remedy, in one line.

    Everything that a user can cause (a bad value, a missing file, a full disk) is
    raised as this. Scripts print the line and exit with 1, so that a traceback always
    means a fault of the library.
    """

    def __init__(self, message: str) -> None:
        words = str(message).split()
        super().__init__(" ".join(words))


class NoAccountWarning(UserWarning):
    """A mechanism draws noise under a participation that no accountant is of."""

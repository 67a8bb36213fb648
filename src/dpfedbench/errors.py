"""The one error that a user is meant to read."""


class BenchError(Exception):
    """What is wrong and how to mend it, in one line.

    Everything a user can cause (a bad key, a missing file, a full disk) is raised as this, so that
    scripts print one line and exit with 1, and a traceback always means a fault of ours.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(str(message).split()))

"""The library's error and warning for users."""


class DpsumError(Exception):
    """Error that states a fault and its remedy in one line.

    The library raises it for every fault that a user can cause: a bad value, a missing
    file, a full disk. Scripts print the line and exit with code 1, so that a traceback
    always means a fault of the library.
    """

    def __init__(self, message: str) -> None:
        words = str(message).split()
        super().__init__(" ".join(words))


class NoAccountWarning(UserWarning):
    """Warning that no accountant covers a mechanism's noise with its participation."""

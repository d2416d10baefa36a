"""Why a command did not do what it was asked to."""


class CommandError(Exception):
    """The message says what is wrong, what was done all the same, and what to do."""

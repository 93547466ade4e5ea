"""The errors that a user of the command line can put right."""


class UserError(Exception):
    """Something the user asked for cannot be done; the message says what to change.

    Entry points print the message as a single line, without a traceback.
    """


class WorkerError(UserError):
    """A TFF worker did not start, does not answer, or has died."""

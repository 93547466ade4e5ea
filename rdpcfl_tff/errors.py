"""The one kind of error that a user of the command line can put right."""


class UserError(Exception):
    """Something the user asked for cannot be done; the message says what to change.

    Entry points print the message as a single line, without a traceback.
    """

"""How every command starts and ends: flags, log lines, and mistakes told in one line.

Not `absl.app.run`: Keras builds broken models when TensorFlow is first imported inside it, and the
commands import TensorFlow late, so that a wrong flag is told at once.
"""

import logging
import sys
from collections.abc import Callable

from absl import app, flags

from rdpcfl_tff.errors import UserError


def run(command: Callable[[list[str]], None]) -> None:
    """Parses the flags and calls the command with the other arguments; ends the process."""
    app.define_help_flags()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        _, *arguments = flags.FLAGS(sys.argv)
        command(arguments)
    except flags.Error as error:
        sys.exit(f"error: {error} (--help lists the flags)")
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def no_arguments(arguments: list[str]) -> None:
    """Refuses arguments that are no flags, where a command takes none."""
    if arguments:
        raise UserError(f"{arguments[0]!r} is no flag: flags begin with --")

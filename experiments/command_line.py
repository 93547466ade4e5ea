"""How every command starts and ends: flags, log lines, and mistakes told in one line.

Not `absl.app.run`: Keras builds broken models when TensorFlow is first imported inside it, and the
commands import TensorFlow late, so that a wrong flag is told at once.
"""

import logging
import math
import pathlib
import shlex
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from absl import app, flags

from rdpcfl_tff import storage
from rdpcfl_tff.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


def run(command: Callable[[list[str]], None]) -> None:
    """Parses the flags and calls the command with the other arguments; ends the process.

    A request to end (kill, a closed terminal, a batch system's limit) ends it as Ctrl-C does.
    """
    app.define_help_flags()
    for request in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(request) is signal.SIG_DFL:  # nohup has SIGHUP ignored, and is obeyed
            signal.signal(request, signal.default_int_handler)
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


def epsilons(flag: flags.FlagHolder) -> tuple[float, ...]:
    """The budgets that a flag names with commas, from the smallest on."""
    try:
        named = sorted({float(text) for text in flag.value})
    except ValueError:
        named = []
    if not named or not all(0 < epsilon < math.inf for epsilon in named):
        raise UserError(
            f"--{flag.name}={','.join(flag.value)}: positive numbers with commas, for example "
            "3,5,15"
        )
    return tuple(named)


def whole_numbers(flag: flags.FlagHolder) -> tuple[int, ...]:
    """The positive whole numbers that a flag names with commas."""
    try:
        named = tuple(int(text) for text in flag.value)
    except ValueError:
        named = ()
    if not named or min(named) < 1:
        raise UserError(
            f"--{flag.name}={','.join(flag.value)}: positive whole numbers with commas, for "
            "example 3,6,6,6"
        )
    return named


def results_folder(flag: flags.FlagHolder, name: str) -> pathlib.Path:
    """The folder that the flag names, or one by name and time; there must be nothing in it."""
    folder = pathlib.Path(
        flag.value or pathlib.Path("results") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    )
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"--{flag.name}={folder} is not empty: choose another folder")
    return folder


def save_study(folder: pathlib.Path, name: str, rows: "pd.DataFrame", report: str) -> None:
    """Writes and prints what a command has found out by looking at true clusters."""
    command = shlex.join(["python", "-m", f"experiments.{name}", *sys.argv[1:]])
    with storage.explained(folder, "choose another --output_dir"):
        folder.mkdir(parents=True, exist_ok=True)
        for ending, text in (
            ("csv", rows.to_csv(index=False)),
            ("md", f"`{command}`\n\n{report}\n"),
        ):
            storage.write_atomically(folder / f"simulation_{name}.{ending}", [text.encode()])
    print(f"{report}\nresults: {folder}")

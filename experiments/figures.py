"""Draws a finished run again: `python -m experiments.figures results/FOLDER`."""

import pathlib

from experiments import command_line
from rdpcfl_tff.errors import UserError


def main(arguments: list[str]) -> None:
    """Draws the run in the given results folder."""
    if len(arguments) != 1:
        raise UserError("name one results folder, as in `python -m experiments.figures results/X`")
    directory = pathlib.Path(arguments[0])
    if not (directory / "summary.json").exists():
        raise UserError(f"{directory} holds no finished run: summary.json is missing")
    from rdpcfl_tff.training.pictures import draw_run

    print(draw_run(directory))


if __name__ == "__main__":
    command_line.run(main)

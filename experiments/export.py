"""Writes the models of a finished run for others to use: `python -m experiments.export results/X`.

A command of its own, and no part of a run: a sweep makes hundreds of models that nobody will use,
and any finished run can be exported at any time.
"""

import pathlib

from absl import flags

from experiments import command_line
from rdpcfl_tff.errors import UserError

_OUTPUT = flags.DEFINE_string(
    "output", None, "The folder for the models (default: `exported` in the results folder)."
)


def main(arguments: list[str]) -> None:
    """Exports the run in the given results folder."""
    if len(arguments) != 1:
        raise UserError("name one results folder, as in `python -m experiments.export results/X`")
    run = pathlib.Path(arguments[0])
    if not (run / "summary.json").exists():
        raise UserError(f"{run} holds no finished run: summary.json is missing")
    from rdpcfl_tff.training import export

    folder = pathlib.Path(_OUTPUT.value) if _OUTPUT.value else run / "exported"
    for path in export.export(run, folder):
        print(path)
    print(folder / "MODEL_CARD.md")


if __name__ == "__main__":
    command_line.run(main)

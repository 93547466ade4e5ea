"""One HTML file from a results folder: `python -m experiments.report results/FOLDER`.

The folder is that of a run or of a sweep. The file has its pictures in it and opens from disk. It
shows exact accuracies and true clusters, is for simulations only, and named so.
"""

import pathlib

from experiments import command_line, sweep_folder
from rdpcfl_tff import storage
from rdpcfl_tff.errors import UserError

REPORT = "simulation_report.html"


def main(arguments: list[str]) -> None:
    """Writes the report of the given folder into it."""
    if len(arguments) != 1:
        raise UserError("name one results folder, as in `python -m experiments.report results/X`")
    folder = pathlib.Path(arguments[0])
    if sweep_folder.is_sweep(folder):
        from experiments.reporting import sweep

        content = sweep.report(folder)
    elif (folder / "summary.json").exists():
        from experiments.reporting import run

        content = run.report(folder)
    else:
        raise UserError(f"{folder} holds neither a finished run nor a sweep")
    with storage.explained(folder, "free space there, or make the folder writable"):
        storage.write_atomically(folder / REPORT, [content.encode()])
    print(folder / REPORT)


if __name__ == "__main__":
    command_line.run(main)

"""The folder of a sweep: which runs it is made of, where each has its records, how far each is.

Below it, `runs/NAME` is a results folder of experiments.main, and `logs/NAME.log` is what that run
printed. Nothing here looks into what a run found out.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence

from rdpcfl_tff import storage
from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.errors import UserError

RUNS = "runs"

_PLAN = "sweep.json"
_OTHER_FOLDER = "choose another --output_dir"


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a sweep.

    Attributes:
        name: Of its folder.
        flags: Of experiments.main, without the folder.
        config: What the flags amount to.
    """

    name: str
    flags: tuple[str, ...]
    config: RunConfig

    def goal(self, until_round: int | None) -> int:
        """The round that it is to come to: the given one, if it is not the last anyway."""
        return min(until_round or self.config.rounds, self.config.rounds)


def write_plan(folder: pathlib.Path, runs: Sequence[Run], command: Sequence[str]) -> None:
    """Notes which runs the sweep is made of.

    Raises:
        UserError: there are other things in the folder, or runs of the same names but with another
            config.
    """
    if folder.exists() and any(folder.iterdir()) and not is_sweep(folder):
        raise UserError(f"--output_dir={folder} is not empty and holds no sweep: {_OTHER_FOLDER}")
    for run in runs:
        _check_same_config(run_folder(folder, run.name), run.config)
    plan = {
        "command": list(command),
        "runs": [{"name": run.name, "flags": run.flags} for run in runs],
    }
    with storage.explained(folder, _OTHER_FOLDER):
        folder.mkdir(parents=True, exist_ok=True)
        storage.write_atomically(folder / _PLAN, [(json.dumps(plan, indent=2) + "\n").encode()])


def _check_same_config(directory: pathlib.Path, config: RunConfig) -> None:
    path = directory / "config.json"
    if path.exists():
        before, now = json.loads(path.read_text())["config"], config.as_json()
        names = sorted(name for name in before.keys() | now if before.get(name) != now.get(name))
        if names:
            raise UserError(
                f"{directory} holds a run with another {', '.join(names)}: give the flags of that "
                f"sweep to go on with it, or {_OTHER_FOLDER}"
            )


def is_sweep(folder: pathlib.Path) -> bool:
    """Whether a sweep was begun in the folder."""
    return (folder / _PLAN).exists()


def planned_runs(folder: pathlib.Path) -> list[str]:
    """The names of the runs that the sweep, as it was last started, is made of."""
    return [run["name"] for run in json.loads((folder / _PLAN).read_text())["runs"]]


def command(folder: pathlib.Path) -> list[str]:
    """The command that started the sweep last."""
    return json.loads((folder / _PLAN).read_text())["command"]


def run_folder(folder: pathlib.Path, name: str) -> pathlib.Path:
    """The results folder of one run."""
    return folder / RUNS / name


def log_path(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Where all that the run printed is kept."""
    return folder / "logs" / f"{name}.log"


def last_words(folder: pathlib.Path, name: str) -> str:
    """The last line that the run printed: why it failed, if it did."""
    path = log_path(folder, name)
    text = path.read_text(errors="replace") if path.exists() else ""
    lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def finished(folder: pathlib.Path, name: str) -> bool:
    """Whether the run has come to its end."""
    return (run_folder(folder, name) / "summary.json").exists()


def rounds_done(folder: pathlib.Path, name: str) -> int:
    """How many rounds of the run are saved: those that it need not repeat."""
    saved = sorted(run_folder(folder, name).glob("checkpoint_*.npz"))
    return int(saved[-1].stem.removeprefix("checkpoint_")) if saved else 0

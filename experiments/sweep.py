"""Many runs: `python -m experiments.sweep experiments/sweeps/paper_mini.toml --output_dir=FOLDER`.

Runs every combination of --algorithms, --datasets, --shifts, --epsilons and --seeds, which a file
may give, too. All other flags are those of experiments.main and hold for every run. The same
command goes on with a sweep that was interrupted. Its table of exact accuracies is for simulations
only, and named so.
"""

import pathlib
import sys
import tomllib

from absl import flags

from experiments import command_line, sweep_command, sweep_folder, sweep_results
from rdpcfl_tff.config import ALGORITHMS
from rdpcfl_tff.errors import UserError

# The last varies fastest: an interrupted sweep has compared all algorithms as far as it came.
_VARIED = {
    "dataset": flags.DEFINE_list("datasets", ["mnist"], "Data sets."),
    "seed": flags.DEFINE_list("seeds", ["0"], "Seeds."),
    "shift": flags.DEFINE_list("shifts", ["rotation"], "How the clusters' data differ."),
    "eps": flags.DEFINE_list("epsilons", ["3", "5", "15"], "Privacy budgets; inf for none."),
    "algorithm": flags.DEFINE_list("algorithms", list(ALGORITHMS), "Algorithms."),
}


def main(arguments: list[str]) -> None:
    """Runs the sweep that the flags and the file describe."""
    if len(arguments) > 1:
        raise UserError(f"{arguments[1]!r} is one file too many: name at most one")
    from_file = _read_defaults(pathlib.Path(arguments[0])) if arguments else set()
    for name, plural in _VARIED.items():
        if flags.FLAGS[name].present or name in from_file:
            raise UserError(f"--{name}: a sweep has --{plural.name}, a list with commas")
    runs = sweep_command.product(
        {name: plural.value for name, plural in _VARIED.items()}, from_file
    )
    folder = sweep_command.begin(runs, "sweep")
    failed = sweep_command.carry_out(runs, folder)
    finished = sum(sweep_folder.finished(folder, run.name) for run in runs)
    if finished:
        print(sweep_results.as_text(sweep_results.load(folder)))
    print(f"{finished} of {len(runs)} runs are finished: {folder / sweep_results.TABLE}.csv")
    if failed:
        sys.exit(sweep_command.failure_list(folder, failed))


def _read_defaults(path: pathlib.Path) -> set[str]:
    """Makes the values in the file the flags' defaults; returns the names of these flags."""
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is no TOML: {error}") from error
    for name, value in content.items():
        if name not in flags.FLAGS or isinstance(value, dict):
            raise UserError(f"{path}: {name} is no flag of experiments.sweep")
        if not flags.FLAGS[name].present:
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            flags.FLAGS.set_default(name, text)
    return set(content)


if __name__ == "__main__":
    command_line.run(main)

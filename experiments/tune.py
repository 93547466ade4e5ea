"""Tunes as the paper does: `python -m experiments.tune --dataset=mnist --eps=3 --preset=quick`.

Appendix "Tuning hyperparameters": the learning rate and the clip norm with the highest average
accuracy on the clients' validation records at the end of training. All other flags are those of
experiments.main. The accuracies are exact, and choosing by them is a look at private records that
the epsilon of a run does not cover; the command says what it costs.
"""

import csv
import json
import math
import pathlib
import sys
import textwrap
from collections.abc import Sequence

import pandas as pd
from absl import flags

from experiments import command_line, sweep_command, sweep_folder
from experiments.sweep_folder import Run
from rdpcfl_tff import storage
from rdpcfl_tff.errors import UserError

# The paper's grid.
_VARIED = {
    "lr": flags.DEFINE_list(
        "learning_rates",
        ["0.0005", "0.001", "0.002", "0.005", "0.01", "0.02", "0.05", "0.1"],
        "The learning rates to try.",
    ),
    "clip": flags.DEFINE_list("clip_norms", ["1", "2", "3", "4", "5"], "The clip norms to try."),
}
_HALVING = flags.DEFINE_boolean(
    "halving",
    False,
    "Successive halving: all runs go a part of the way, the better half goes on twice as far.",
)


def main(arguments: list[str]) -> None:
    """Tries the grid, and writes and prints what was best and what choosing it costs."""
    command_line.no_arguments(arguments)
    for name, plural in _VARIED.items():
        if flags.FLAGS[name].present:
            raise UserError(f"--{name}: tuning has --{plural.name}, a list with commas")
    runs = sweep_command.product({name: plural.value for name, plural in _VARIED.items()})
    config = runs[0].config
    folder = sweep_command.begin(runs, "tune")
    stops = halving_rounds(config.rounds, config.eval_every, len(runs)) if _HALVING.value else []
    rows: list[dict[str, object]] = []
    failed: list[str] = []
    left = list(runs)
    for stop in [*stops, config.rounds]:
        if stops:
            print(f"{len(left)} runs until round {stop}")
        failed += sweep_command.carry_out(left, folder, stop)
        reached = [run for run in left if run.name not in failed]
        if not reached:
            raise UserError("no run is left: " + sweep_command.failure_list(folder, failed))
        reached.sort(key=lambda run: -validation_accuracy(folder, run.name, stop))
        rows += [
            {
                "round": stop,
                "lr": run.config.learning_rate,
                "clip": run.config.clip_norm,
                "simulation_validation_accuracy": validation_accuracy(folder, run.name, stop),
                "run": run.name,
            }
            for run in reached
        ]
        left = reached[: math.ceil(len(reached) / 2)]
    best = left[0]
    table = pd.DataFrame(rows)
    cost = tuning_cost(folder, best, len(runs))
    with storage.explained(folder, "free space there, then give the same command again"):
        for name, text in (
            ("simulation_tuning.csv", table.to_csv(index=False, lineterminator="\n")),
            ("simulation_tuning_privacy.txt", cost + "\n"),
        ):
            storage.write_atomically(folder / name, [text.encode()])
    last = table[table["round"] == config.rounds]
    print(last.head(10).drop(columns=["round", "run"]).to_string(index=False))
    print(f"best: --lr={best.config.learning_rate:g} --clip={best.config.clip_norm:g}")
    print(f"{cost}\nresults: {folder}")
    if failed:
        sys.exit(sweep_command.failure_list(folder, failed))


def halving_rounds(rounds: int, eval_every: int, runs: int) -> list[int]:
    """The rounds after which the worse half of the runs is left out, the first one first.

    Each is about half of the next, and a round whose accuracy is measured.
    """
    stops: list[int] = []
    stop = rounds
    for _ in range(math.ceil(math.log2(runs))):
        half = math.ceil(stop / 2 / eval_every) * eval_every
        if half >= stop:
            break
        stops.insert(0, half)
        stop = half
    return stops


def validation_accuracy(folder: pathlib.Path, name: str, round_number: int) -> float:
    """The mean over the clients after this round: exact, so for simulations only."""
    path = sweep_folder.run_folder(folder, name) / "simulation_metrics.csv"
    with open(path, newline="") as file:
        return next(
            float(row["mean"]) for row in csv.DictReader(file) if int(row["round"]) == round_number
        )


def tuning_cost(folder: pathlib.Path, run: Run, runs: int) -> str:
    """What so many runs like this one cost in privacy, in words."""
    from rdpcfl_tff.privacy import tuning

    statements = json.loads(
        (sweep_folder.run_folder(folder, run.name) / "privacy.json").read_text()
    )["statements"]
    if not all(statement["private"] for statement in statements):
        return "The runs are not private, and neither is the choice among them."
    delta = run.config.delta

    def epsilon(of: Sequence[float]) -> str:
        # Rounded up: a printed epsilon is never smaller than the true one.
        return f"epsilon {math.ceil(max(of) * 100) / 100:.2f} at delta {delta:g}"

    one = epsilon([statement["epsilon"]["rdp"] for statement in statements])
    everything = epsilon([tuning.epsilon_of_all(statement, runs) for statement in statements])
    best = epsilon([tuning.epsilon_of_best(statement, runs) for statement in statements])
    paragraphs = [
        f"Tuning costs privacy, and the epsilon of the single run ({one}) does not cover it.",
        f"Who sees every update of all {runs} runs, as the server does: {everything}, by composing "
        "the runs.",
        f"Who sees the best run only: a grid of {runs} runs whose best is taken is not accounted. "
        "The published bounds do not cover it, and only the composition is safe. "
        f"If instead each run drew its values at random from the grid, and after each run chance "
        f"decided with probability 1/{runs} that it was the last, the best run would cost "
        f"{best} (Papernot and Steinke, 2022, for a geometric number of runs with this mean).",
        "The validation records are not protected at all: their exact accuracies decide. On data "
        "that must be protected, tune on public data.",
    ]
    return "\n".join(textwrap.fill(paragraph, 100) for paragraph in paragraphs)


if __name__ == "__main__":
    command_line.run(main)

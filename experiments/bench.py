"""Measures speed and memory: `python -m experiments.bench round`, `dp_sgd` or `memory`.

Each benchmark runs everything it compares in one go, and prints a table.
"""

import pathlib
import time

from absl import flags

from experiments import command_line
from rdpcfl_tff.data import sources
from rdpcfl_tff.errors import UserError

_DATASET = flags.DEFINE_enum(
    "dataset", "mnist", sources.DATASETS, "round: the data set of the clients."
)
_DATA_DIR = flags.DEFINE_string("data_dir", None, "round: as for experiments.main.")
_STEPS = flags.DEFINE_integer("steps", 250, "round: steps of a client in the round that is timed.")
_ROUNDS = flags.DEFINE_integer("rounds", 50, "round: rounds over which the memory is watched.")

_MODELS = flags.DEFINE_list("models", ["cnn", "resnet18"], "dp_sgd: the models.")
_THREADINGS = flags.DEFINE_list(
    "threadings", ["two_clients", "two_threads"], "dp_sgd: clients at once, threads of each."
)
_CONTENDERS = flags.DEFINE_list("contenders", [], "dp_sgd: who runs (default: all).")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "dp_sgd: b.")
_REPEATS = flags.DEFINE_integer("repeats", 9, "dp_sgd: measurements of each contender.")
_SECONDS = flags.DEFINE_float("seconds", 1.0, "dp_sgd: how long one measurement takes, about.")
_PEER_PYTHON = flags.DEFINE_string(
    "peer_python",
    ".venv-bench/bin/python",
    "dp_sgd: the interpreter that has requirements-bench.txt.",
)
_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "dp_sgd: where the results go (default: results/bench-dp_sgd-TIME)."
)


def _round() -> None:
    data_dir = pathlib.Path(_DATA_DIR.value) if _DATA_DIR.value else None
    dataset = sources.load(_DATASET.value, data_dir)
    from experiments.benchmarks import round_cost

    round_cost.run(dataset, steps=_STEPS.value, memory_rounds=_ROUNDS.value)


def _dp_sgd() -> None:
    from experiments.benchmarks import dp_sgd_speed

    name = f"bench-dp_sgd-{time.strftime('%Y%m%d-%H%M%S')}"
    settings = dp_sgd_speed.Settings(
        models=_MODELS.value,
        threadings=_THREADINGS.value,
        contenders=_CONTENDERS.value,
        batch_size=_BATCH_SIZE.value,
        repeats=_REPEATS.value,
        seconds=_SECONDS.value,
        peer_python=_PEER_PYTHON.value,
        output_dir=pathlib.Path(_OUTPUT_DIR.value or pathlib.Path("results") / name),
    )
    dp_sgd_speed.run(settings)


def _memory() -> None:
    from experiments.benchmarks import full_batch_memory

    full_batch_memory.run()


BENCHMARKS = {"round": _round, "dp_sgd": _dp_sgd, "memory": _memory}


def main(arguments: list[str]) -> None:
    """Runs the named benchmark."""
    if len(arguments) != 1 or arguments[0] not in BENCHMARKS:
        raise UserError(f"name one benchmark: {', '.join(BENCHMARKS)}")
    BENCHMARKS[arguments[0]]()


if __name__ == "__main__":
    command_line.run(main)

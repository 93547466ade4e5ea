"""Measures speed and memory: `python -m experiments.bench round`, `dp_sgd` and more.

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
_STEPS = flags.DEFINE_integer(
    "steps", 250, "round, personal, workers: steps of a client in the round that is timed."
)
_ROUNDS = flags.DEFINE_integer(
    "rounds", 50, "round: rounds over which the memory is watched; may be 0."
)

_MODEL = flags.DEFINE_enum("model", "cnn", ["cnn", "resnet18"], "round: the model.")
_MODELS = flags.DEFINE_list("models", ["cnn", "resnet18"], "dp_sgd, personal: the models.")
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
_CLIENTS = flags.DEFINE_list("clients", ["21", "100", "500"], "workers: numbers of clients.")
_WORKER_REPEATS = flags.DEFINE_integer("worker_repeats", 3, "workers: rounds of each kind.")
_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "dp_sgd: where the results go (default: results/bench-dp_sgd-TIME)."
)


def _round() -> None:
    data_dir = pathlib.Path(_DATA_DIR.value) if _DATA_DIR.value else None
    dataset = sources.load(_DATASET.value, data_dir)
    from experiments.benchmarks import round_cost

    round_cost.run(dataset, _MODEL.value, steps=_STEPS.value, memory_rounds=_ROUNDS.value)


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


def _personal() -> None:
    from experiments.benchmarks import personal_models

    for model in _MODELS.value:
        personal_models.run(model, steps=_STEPS.value)


def _workers() -> None:
    clients = command_line.whole_numbers(_CLIENTS)
    from experiments.benchmarks import worker_scaling

    worker_scaling.run(clients, _STEPS.value, _WORKER_REPEATS.value)


BENCHMARKS = {
    "round": _round,
    "dp_sgd": _dp_sgd,
    "memory": _memory,
    "personal": _personal,
    "workers": _workers,
}


def main(arguments: list[str]) -> None:
    """Runs the named benchmark."""
    if len(arguments) != 1 or arguments[0] not in BENCHMARKS:
        raise UserError(f"name one benchmark: {', '.join(BENCHMARKS)}")
    BENCHMARKS[arguments[0]]()


if __name__ == "__main__":
    command_line.run(main)

"""What a federated round costs in both runtimes, and whether memory grows.

A round in which no client takes a step costs everything but the training: broadcast, reading the
silos, transport, averaging.
"""

import contextlib
import dataclasses
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping

import numpy as np
import psutil
import tqdm

from rdpcfl_tff.data import silos, sources
from rdpcfl_tff.federated import in_process, rounds, runtime
from rdpcfl_tff.federated.client_data import RecordFormat
from rdpcfl_tff.models.catalogue import build_model
from rdpcfl_tff.models.functional import FunctionalModel
from rdpcfl_tff.privacy import clipping, dp_sgd

# The paper's federation: on MNIST, 21 clients of 8,000 train records.
CLUSTER_SIZES = (3, 6, 6, 6)
BATCH_SIZE = 32
REPEATS = 2

# What can run a round, by the names of --runtime.
RUNTIMES: dict[str, Callable[[], contextlib.AbstractContextManager]] = {
    "worker": runtime.local_worker,
    "in_process": lambda: in_process.in_process(in_process.gpus() or ("CPU:0",)),
}
# Each runtime has its turn so often, because other jobs slow the machine down for a while.
TURNS = 2


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one round took.

    Attributes:
        seconds: Elapsed time.
        cpu_seconds: The time that all threads worked, in Python and in the worker.
    """

    seconds: float
    cpu_seconds: float


def run(dataset: sources.Dataset, model: str, steps: int, memory_rounds: int) -> None:
    """Prints the cost of a round in both runtimes, and the memory of both over many rounds."""
    with tempfile.TemporaryDirectory() as folder:
        store = silos.build_store(
            dataset, silos.SiloConfig(CLUSTER_SIZES), pathlib.Path(folder) / "silos"
        )
        network = build_model(model, store.input_shape, store.num_classes, seed=0)
        engine = clipping.fast_engine(FunctionalModel(network))
        process = rounds.build_round(len(CLUSTER_SIZES), RecordFormat.of(store), engine, True)
        models = np.tile(engine.model.initial_parameters, (len(CLUSTER_SIZES), 1))
        trained: dict[str, list[Cost]] = {name: [] for name in RUNTIMES}
        empty: dict[str, list[Cost]] = {name: [] for name in RUNTIMES}
        for turn in range(TURNS):
            for name, start in RUNTIMES.items():
                with start():
                    process.next(models, _tasks(store, 1))  # the first call compiles
                    for _ in range(REPEATS):
                        empty[name].append(_cost(process, models, _tasks(store, 0)))
                        trained[name].append(_cost(process, models, _tasks(store, steps)))
                    if turn == TURNS - 1 and memory_rounds:
                        _print_memory(name, process, models, store, memory_rounds)
    print(
        f"{model}: {store.num_clients} clients, {engine.model.num_parameters} parameters; medians "
        f"of {TURNS * REPEATS} rounds\n"
        f"{'':43} {'worker':>10} {'in_process':>11} {'ratio':>6}"
    )
    for label, costs in (
        (f"a round of {steps} private steps", trained),
        ("a round without a step (overhead)", empty),
    ):
        _print_row(f"{label}, s", {name: [one.seconds for one in costs[name]] for name in costs})
        _print_row("  CPU s", {name: [one.cpu_seconds for one in costs[name]] for name in costs})


def _print_row(label: str, measured: Mapping[str, list[float]]) -> None:
    worker, here = (statistics.median(measured[name]) for name in RUNTIMES)
    print(f"{label:43} {worker:10.2f} {here:11.2f} {here / worker:6.2f}")


def _tasks(store: silos.SiloStore, steps: int) -> list:
    return [
        rounds.client_task(
            silo,
            cluster,
            dp_sgd.LocalTask(
                records=store.client_sizes["train"][client],
                batch_size=BATCH_SIZE,
                steps=steps,
                learning_rate=0.005,
                clip_norm=1.0,
                noise_multiplier=1.0,
                seed=(0, client),
            ),
        )
        for client, (silo, cluster) in enumerate(
            zip(store.client_directories, store.true_clusters, strict=True)
        )
    ]


def _cost(process, models: np.ndarray, tasks: list) -> Cost:
    cpu_before, start = _cpu_seconds(), time.monotonic()
    process.next(models, tasks)
    return Cost(time.monotonic() - start, _cpu_seconds() - cpu_before)


def _processes() -> list[psutil.Process]:
    """This process, and TFF's worker if it runs."""
    python = psutil.Process()
    workers = [one for one in python.children(recursive=True) if one.name() == "worker_binary"]
    return [python, *workers]


def _cpu_seconds() -> float:
    times = [one.cpu_times() for one in _processes()]
    return sum(one.user + one.system for one in times)


def _print_memory(
    name: str, process, models: np.ndarray, store: silos.SiloStore, memory_rounds: int
) -> None:
    print(f"{name}: round, and MB of Python{' and the worker' if name == 'worker' else ''}")
    for number in tqdm.trange(1, memory_rounds + 1, desc="memory", unit="round", leave=False):
        models, _ = process.next(models, _tasks(store, 2))
        if number % 10 == 0 or number == memory_rounds:
            sizes = [one.memory_info().rss / 1e6 for one in _processes()]
            tqdm.tqdm.write(f"{number:5}" + "".join(f" {size:9.0f}" for size in sizes))

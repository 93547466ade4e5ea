"""What a federated round costs beside the clients' own training, and whether memory grows.

A round in which no client takes a step costs everything but the training: broadcast, reading the
silos, transport, averaging.
"""

import os
import pathlib
import statistics
import tempfile
import time

import numpy as np
import psutil
import tqdm

from rdpcfl_tff.data import silos, sources
from rdpcfl_tff.federated import rounds, runtime
from rdpcfl_tff.federated.client_data import RecordFormat
from rdpcfl_tff.models.cnn import cnn
from rdpcfl_tff.models.functional import FunctionalModel
from rdpcfl_tff.privacy import clipping, dp_sgd

# The paper's federation: on MNIST, 21 clients of 8,000 train records.
CLUSTER_SIZES = (3, 6, 6, 6)
BATCH_SIZE = 32
REPEATS = 5


def run(dataset: sources.Dataset, steps: int, memory_rounds: int) -> None:
    """Prints the cost of a round, and the memory of both processes over many rounds."""
    with tempfile.TemporaryDirectory() as folder:
        store = silos.build_store(
            dataset, silos.SiloConfig(CLUSTER_SIZES), pathlib.Path(folder) / "silos"
        )
        engine = clipping.fast_engine(FunctionalModel(cnn()))
        process = rounds.build_round(len(CLUSTER_SIZES), RecordFormat.of(store), engine, True)
        with runtime.local_worker():
            models = process.initialize()
            process.next(models, _tasks(store, 1))  # the first call compiles
            empty = statistics.median(
                _seconds(process, models, _tasks(store, 0)) for _ in range(REPEATS)
            )
            trained = _seconds(process, models, _tasks(store, steps))
            print(
                f"{store.num_clients} clients, {engine.model.num_parameters} parameters\n"
                f"a round of {steps} private steps per client: {trained:8.2f} s\n"
                f"a round without a step (the overhead):  {empty:8.2f} s"
            )
            _print_memory(process, models, store, memory_rounds)


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


def _seconds(process, models: np.ndarray, tasks: list) -> float:
    start = time.monotonic()
    process.next(models, tasks)
    return time.monotonic() - start


def _print_memory(process, models: np.ndarray, store: silos.SiloStore, memory_rounds: int) -> None:
    python = psutil.Process(os.getpid())
    (worker,) = (
        child for child in python.children(recursive=True) if child.name() == "worker_binary"
    )
    print("round   Python MB   worker MB")
    for number in tqdm.trange(1, memory_rounds + 1, desc="memory", unit="round", leave=False):
        models = process.next(models, _tasks(store, 2))
        if number % 10 == 0 or number == memory_rounds:
            sizes = [one.memory_info().rss / 1e6 for one in (python, worker)]
            tqdm.tqdm.write(f"{number:5} {sizes[0]:11.0f} {sizes[1]:11.0f}")

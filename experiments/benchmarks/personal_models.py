"""How busy the cores are, and how much memory is used, when every client has a model of its own.

Local and MR-MTL carry 21 models through a round, where the other algorithms carry four.
"""

import dataclasses
import os
import tempfile
import threading
import time
from collections.abc import Callable

import numpy as np
import psutil

from rdpcfl_tff.algorithms.base import LocalTraining
from rdpcfl_tff.federated import runtime
from rdpcfl_tff.federated.client_data import RecordFormat
from rdpcfl_tff.federated.federation import Federation
from rdpcfl_tff.models.catalogue import build_model
from rdpcfl_tff.models.functional import FunctionalModel
from rdpcfl_tff.privacy import clipping, randomness
from rdpcfl_tff.privacy.plan import PrivacyPlan

CLIENTS = 21
CLUSTERS = 4
BATCH_SIZE = 32
IMAGE_SHAPES = {"cnn": (28, 28, 1), "resnet18": (32, 32, 3)}


def run(model: str, steps: int) -> None:
    """Prints time, busy cores and peak memory of a round in clusters and of a personal one."""
    cores = runtime.RuntimeConfig().cores
    print(f"{model}, {CLIENTS} clients, {steps} steps each, {cores} cores")
    print("| a round of | seconds | cores busy | peak memory |")
    print("|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory(prefix="rdpcfl_tff-") as silo:
        federation = _federation(model, steps, silo)
        theta = federation.initial_parameters
        shared = np.tile(theta, (CLUSTERS, 1))
        personal = np.tile(theta, (CLIENTS, 1))
        assignment = [client % CLUSTERS for client in range(CLIENTS)]
        for name, one_round in (
            (f"{CLUSTERS} cluster models", lambda: federation.train(shared, assignment, 2)),
            (
                f"{CLIENTS} personal models",
                lambda: federation.train_personal(personal, theta, 1.0, 2),
            ),
        ):
            with runtime.local_worker():
                one_round()  # the first call compiles
                use = _measured(one_round)
            print(
                f"| {name} | {use.seconds:.1f} | {use.cpu_seconds / use.seconds / cores:.0%} "
                f"| {use.peak_bytes / 1e9:.1f} GB |"
            )


@dataclasses.dataclass
class _Use:
    seconds: float
    cpu_seconds: float
    peak_bytes: int


def _federation(model: str, steps: int, silo: str) -> Federation:
    records = RecordFormat(IMAGE_SHAPES[model], mean=0.5, std=0.5)
    records.write_blank(silo, "train", steps * BATCH_SIZE)
    schedule = LocalTraining(2, 1, BATCH_SIZE).schedule(steps * BATCH_SIZE)
    return Federation(
        silos=[silo] * CLIENTS,
        records=records,
        engine=clipping.fast_engine(
            FunctionalModel(build_model(model, IMAGE_SHAPES[model], 10, 0))
        ),
        plan=PrivacyPlan.calibrate([schedule] * CLIENTS, 3.0, 1e-5),
        learning_rate=0.01,
        clip_norm=1.0,
        key=randomness.run_key(0),
    )


def _measured(work: Callable[[], object]) -> _Use:
    """Runs it, and watches this process and its worker meanwhile."""
    processes = [psutil.Process(os.getpid()), *psutil.Process().children(recursive=True)]
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.05):
            peak = max(peak, sum(process.memory_info().rss for process in processes))

    def cpu_seconds() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    watcher = threading.Thread(target=watch)
    watcher.start()
    start, cpu_before = time.monotonic(), cpu_seconds()
    work()
    seconds, cpu = time.monotonic() - start, cpu_seconds() - cpu_before
    done.set()
    watcher.join()
    return _Use(seconds, cpu, peak)

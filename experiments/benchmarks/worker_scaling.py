"""How a round's time and memory grow with the clients, and fall with the workers.

One worker and two, of one core each, on this machine, run the same rounds in turn. The clients have
100 blank records each: training costs the same on any records. CPU seconds are those of the busiest
worker and of the driver: what a round would take on a machine with nothing else to do.
"""

import contextlib
import pathlib
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import psutil

from rdpcfl_tff.federated import remote, rounds, runtime
from rdpcfl_tff.federated.client_data import RecordFormat
from rdpcfl_tff.models.cnn import cnn
from rdpcfl_tff.models.functional import FunctionalModel
from rdpcfl_tff.privacy import clipping, dp_sgd

RECORDS = 100
BATCH_SIZE = 32
NUM_MODELS = 4


def run(client_counts: Sequence[int], steps: int, repeats: int) -> None:
    """Prints one line per number of clients and workers, and what follows from them."""
    records = RecordFormat((28, 28, 1), mean=0.0, std=1.0)
    engine = clipping.fast_engine(FunctionalModel(cnn()))
    process = rounds.build_round(NUM_MODELS, records, engine, True)
    print(
        f"{engine.model.num_parameters} parameters, {NUM_MODELS} models, {steps} steps per client, "
        f"median of {repeats}\n"
        "clients  workers  s/round  without a step  CPU s/round  CPU ms/client  "
        "worker MB  KB/client"
    )
    per_client = {}
    for clients in client_counts:
        with tempfile.TemporaryDirectory() as folder:
            silos = _write_silos(pathlib.Path(folder), records, clients)
            per_client[clients] = _measure(process, folder, silos, steps, repeats)
    fewest, most = min(client_counts), max(client_counts)
    ratios = [one / other for one, other in zip(per_client[most], per_client[fewest], strict=True)]
    print(
        f"{most} clients beside {fewest}: {ratios[0]:.2f}x the CPU time and {ratios[1]:.2f}x the "
        "memory per client"
    )


class _Cost(NamedTuple):
    """Of one round."""

    seconds: float
    empty_seconds: float
    cpu_seconds: float


def _measure(
    process, folder: str, silos: list[str], steps: int, repeats: int
) -> tuple[float, float]:
    """Prints the lines of one number of clients; returns one worker's CPU and memory for each."""
    clients = len(silos)
    costs: dict[int, list[_Cost]] = {1: [], 2: []}
    megabytes: dict[int, float] = {}
    results = []
    with _two_workers(folder) as addresses:
        for _ in range(repeats):
            for workers in (1, 2):
                with remote.remote_workers(addresses[:workers], silos, retries=0, move=False):
                    cost, models = _round_cost(process, silos, steps, addresses[:workers])
                costs[workers].append(cost)
                results.append(models)
                # Of the first worker while it is alone, then of the one that never was.
                megabytes.setdefault(workers, _peak_megabytes(addresses[workers - 1]))
    for models in results:
        np.testing.assert_array_equal(models, results[0])
    medians = {
        workers: _Cost(*(statistics.median(one) for one in zip(*all_, strict=True)))
        for workers, all_ in costs.items()
    }
    for workers, cost in medians.items():
        print(
            f"{clients:7} {workers:8} {cost.seconds:8.2f} {cost.empty_seconds:15.2f} "
            f"{cost.cpu_seconds:12.2f} {1000 * cost.cpu_seconds / clients:14.1f} "
            f"{megabytes[workers]:10.0f} {1000 * megabytes[workers] * workers / clients:10.0f}"
        )
    print(
        f"         two workers: {medians[2].seconds / medians[1].seconds:.2f}x the time of one, "
        f"{medians[2].cpu_seconds / medians[1].cpu_seconds:.2f}x by CPU seconds; the same bits"
    )
    return medians[1].cpu_seconds / clients, megabytes[1] / clients


def _round_cost(
    process, silos: list[str], steps: int, addresses: list[str]
) -> tuple[_Cost, np.ndarray]:
    models = process.initialize()
    process.next(models, _tasks(silos, 0))  # compiles
    start = time.monotonic()
    process.next(models, _tasks(silos, 0))
    empty_seconds = time.monotonic() - start

    workers = [_process(address) for address in addresses]
    start, cpu, own_cpu = (
        time.monotonic(),
        [_cpu_seconds(one) for one in workers],
        time.process_time(),
    )
    after, _ = process.next(models, _tasks(silos, steps))
    seconds = time.monotonic() - start
    busiest = max(_cpu_seconds(one) - before for one, before in zip(workers, cpu, strict=True))
    return _Cost(seconds, empty_seconds, busiest + time.process_time() - own_cpu), after


def _write_silos(folder: pathlib.Path, records: RecordFormat, clients: int) -> list[str]:
    silos = [f"client_{client:03d}" for client in range(clients)]
    for silo in silos:
        (folder / silo).mkdir()
        records.write_blank(str(folder / silo), "train", RECORDS)
    return silos


def _tasks(silos: list[str], steps: int) -> list:
    return [
        rounds.client_task(
            silo,
            client % NUM_MODELS,
            dp_sgd.LocalTask(RECORDS, BATCH_SIZE, steps, 0.005, 1.0, 1.0, (0, client)),
        )
        for client, silo in enumerate(silos)
    ]


@contextlib.contextmanager
def _two_workers(folder: str) -> Iterator[list[str]]:
    """The addresses of two workers of one core, started as `experiments.worker` does."""
    workers = [
        runtime.LocalWorker(runtime.RuntimeConfig(cores=1), directory=pathlib.Path(folder))
        for _ in range(2)
    ]
    try:
        for worker in workers:
            worker.start()
            worker.disconnect()
        yield [worker.address for worker in workers]
    finally:
        for worker in workers:
            worker.stop()


def _process(address: str) -> psutil.Process:
    """The worker at this address."""
    port = f"--port={address.rpartition(':')[2]}"
    (worker,) = (
        child
        for child in psutil.Process().children(recursive=True)
        if child.name() == "worker_binary" and port in child.cmdline()
    )
    return worker


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _peak_megabytes(address: str) -> float:
    """The most memory that the worker at this address has ever had."""
    status = pathlib.Path(f"/proc/{_process(address).pid}/status").read_text()
    (peak,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) / 1000

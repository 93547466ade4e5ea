"""What the runs of a sweep cost on this machine: how many fit at once, and how long they take.

Measured on a few steps before the sweep begins, and told in words that claim no more than that.
"""

import concurrent.futures
import dataclasses
import math
import multiprocessing
import os
import pathlib
import time
from collections.abc import Sequence

from experiments import sweep_folder
from experiments.sweep_folder import Run
from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.data import silos, sources
from rdpcfl_tff.errors import UserError

# Of a run with its worker, at the paper's size. With the CNN 1.2 were measured; for others it is a
# guess on the safe side: 21 updates of ResNet-18 are 0.9, and there are several copies of them.
_GIGABYTES = {"cnn": 2.0}
_GIGABYTES_OF_OTHERS = 8.0


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a run costs on this machine, if it has all cores for itself."""

    start_seconds: float
    round_seconds: float


_FAILS_AT_ONCE = Cost(0.0, 0.0)


def jobs_that_fit(runs: Sequence[Run]) -> int:
    """How many runs fit the cores and the free memory at the same time; at least one.

    One run keeps all cores busy while its clients train, but not while it starts, clusters or
    waits for its last client. A run on a core of its own wastes nothing.
    """
    need = max((_GIGABYTES.get(run.config.model, _GIGABYTES_OF_OTHERS) for run in runs), default=1)
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    free = int(next(line for line in lines if "MemAvailable" in line).split()[1]) / 1e6
    cores = len(os.sched_getaffinity(0))
    return max(1, min(len(runs), cores, int(free // need)))


def measured_costs(
    runs: Sequence[Run], data_dir: pathlib.Path | None, cache_dir: pathlib.Path
) -> dict[str, Cost]:
    """The cost of each run, by its name; runs whose rounds are alike are measured once."""
    costs: dict[tuple[object, ...], Cost] = {}
    for run in runs:
        kind = _kind(run.config)
        if kind not in costs:
            try:
                costs[kind] = _measured_cost(run.config, data_dir, cache_dir)
            except sources.NoSourceError as error:
                print(f"{run.config.dataset}: {error}")
                costs[kind] = _FAILS_AT_ONCE
            except UserError:
                continue  # this run will say so itself; another of its kind may do
    return {run.name: costs.get(_kind(run.config), _FAILS_AT_ONCE) for run in runs}


def _measured_cost(
    config: RunConfig, data_dir: pathlib.Path | None, cache_dir: pathlib.Path
) -> Cost:
    start = time.monotonic()
    # In a process of its own: what TensorFlow takes, it keeps until its process ends.
    with concurrent.futures.ProcessPoolExecutor(
        1, mp_context=multiprocessing.get_context("spawn")
    ) as child:
        round_seconds = child.submit(_seconds_per_round, config, data_dir, cache_dir).result()
    # The child did what a run does before its first round, and hardly more.
    return Cost(time.monotonic() - start, round_seconds)


def _kind(config: RunConfig) -> tuple[object, ...]:
    """All that the cost of a round depends on, but for the few selections of some algorithms."""
    return (
        *(config.dataset, config.model, config.cluster_sizes, config.samples_per_client),
        *(config.batch_size, config.local_epochs, config.dp_engine, math.isinf(config.epsilon)),
        config.eval_every,
    )


def _seconds_per_round(
    config: RunConfig, data_dir: pathlib.Path | None, cache_dir: pathlib.Path
) -> float:
    dataset = sources.load(config.dataset, data_dir, cache_dir)
    store = silos.store_of_run(config, dataset, cache_dir)
    from rdpcfl_tff.training import driver

    return driver.seconds_per_round(config, store)


def forecast(
    runs: Sequence[Run],
    folder: pathlib.Path,
    costs: dict[str, Cost],
    jobs: int,
    until_round: int | None = None,
) -> float:
    """The seconds until all these runs have ended, or have come to the given round.

    Runs that share the cores train as fast as one after the other, but start at the same time.
    """
    return sum(
        costs[run.name].start_seconds / jobs
        + (run.goal(until_round) - sweep_folder.rounds_done(folder, run.name))
        * costs[run.name].round_seconds
        for run in runs
    )


def duration(seconds: float) -> str:
    """In words that claim no more than is known."""
    minutes = math.ceil(seconds / 60)
    if minutes <= 1:
        return "1 minute"
    return f"{minutes} minutes" if minutes < 100 else f"{minutes / 60:.1f} hours"

"""Works off the runs of a sweep: a process for each, as many at once as fit, one progress bar.

A run that was interrupted goes on from its last checkpoint, which experiments.main does by itself;
a run that fails is noted, and the others go on. Nothing here looks into a run's records.
"""

import contextlib
import fcntl
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import tqdm

from experiments import sweep_costs, sweep_folder
from experiments.sweep_costs import Cost
from experiments.sweep_folder import Run
from rdpcfl_tff import storage

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_TO_END = 20.0


def work_off(
    runs: Sequence[Run],
    folder: pathlib.Path,
    jobs: int,
    costs: dict[str, Cost],
    until_round: int | None = None,
) -> list[str]:
    """Runs them, and returns the names of those that failed.

    Args:
        runs: Those that are not as far as they are to come.
        folder: The sweep's folder.
        jobs: How many runs at the same time.
        costs: Of every run, by its name.
        until_round: Where to halt every run, so that it can go on later; None for its end.
    """
    goals = {run.name: run.goal(until_round) for run in runs}
    waiting = list(runs)
    running: dict[int, tuple[Run, subprocess.Popen]] = {}
    failed: list[str] = []
    with _alone(folder) as lock, _Progress(folder, runs, goals, costs) as progress:
        try:
            while waiting or running:
                for slot in range(jobs):
                    if waiting and slot not in running:
                        run = waiting.pop(0)
                        running[slot] = run, _start(folder, run, until_round, slot, jobs, lock)
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                for slot, (run, process) in list(running.items()):
                    if process.poll() is not None:
                        del running[slot]
                        if not reached(folder, run, until_round):
                            failed.append(run.name)
                            progress.give_up(run.name)
                progress.show()
        finally:
            _end([process for _, process in running.values()])
    return failed


def reached(folder: pathlib.Path, run: Run, until_round: int | None) -> bool:
    """Whether the run is finished, or as far as it is to come for now."""
    if sweep_folder.finished(folder, run.name):
        return True
    goal = run.goal(until_round)
    return goal < run.config.rounds and sweep_folder.rounds_done(folder, run.name) >= goal


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[int]:
    """Waits until nobody else works in the folder; yields the lock, for the runs to hold, too.

    So the runs of a sweep that was killed are not begun a second time while they go on.
    """
    with storage.explained(folder, "choose another --output_dir"):
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        lock = open(folder / "sweep.lock", "w")  # noqa: SIM115 - closed below
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(
                f"Another sweep, or runs that a killed one left behind, still work in {folder}: "
                "waiting for their end."
            )
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def _start(
    folder: pathlib.Path, run: Run, until_round: int | None, slot: int, jobs: int, lock: int
) -> subprocess.Popen:
    output_dir = sweep_folder.run_folder(folder, run.name)
    command = ["-m", "experiments.main", *run.flags, f"--output_dir={output_dir}"]
    if until_round is not None and until_round < run.config.rounds:
        command.append(f"--halt_after={until_round}")
    cores = sorted(os.sched_getaffinity(0))
    try:
        # A process has the cores of the one that starts it, and a run uses all that it has.
        os.sched_setaffinity(0, cores[slot::jobs] or cores)
        with open(sweep_folder.log_path(folder, run.name), "ab") as log:
            return subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"TQDM_MININTERVAL": "10"},
                pass_fds=[lock],
                # Ctrl-C reaches the sweep only, which then ends its runs.
                start_new_session=True,
            )
    finally:
        os.sched_setaffinity(0, cores)


def _end(processes: Sequence[subprocess.Popen]) -> None:
    """Asks the runs to end, and kills those that do not: all their checkpoints are whole."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _SECONDS_TO_END
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class _Progress:
    """One bar over all rounds of all runs. The time left follows from the rounds that are done."""

    def __init__(
        self,
        folder: pathlib.Path,
        runs: Sequence[Run],
        goals: dict[str, int],
        costs: dict[str, Cost],
    ):
        self._folder = folder
        self._goals = goals
        self._costs = costs
        self._rounds = {run.name: self._done(run.name) for run in runs}
        self._rounds_before = self._rounds
        self._forecast = self._left()
        self._start = time.monotonic()
        self._bar = tqdm.tqdm(
            total=sum(goals.values()),
            initial=sum(self._rounds.values()),
            unit="round",
            bar_format="{percentage:3.0f}%|{bar}| {n}/{total} rounds [{elapsed}{postfix}]",
            dynamic_ncols=True,
            mininterval=2,
        )

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()

    def show(self) -> None:
        """Looks at what the runs have written down."""
        self._rounds = {name: self._done(name) for name in self._rounds}
        left = self._left()
        done = self._forecast - left
        pace = (time.monotonic() - self._start) / done if done > 0 else 1.0
        self._bar.set_postfix_str(f"about {sweep_costs.duration(left * pace)} left", refresh=False)
        self._bar.update(sum(self._rounds.values()) - self._bar.n)

    def give_up(self, name: str) -> None:
        """The rounds that a failed run lacks will not be run, and tell nothing of the pace."""
        self._forecast -= self._seconds_left(name)
        self._bar.total -= self._goals[name] - self._rounds[name]
        self._goals[name] = self._rounds[name]

    def _left(self) -> float:
        return sum(self._seconds_left(name) for name in self._rounds)

    def _seconds_left(self, name: str) -> float:
        rounds = self._goals[name] - self._rounds[name]
        if rounds == 0:
            return 0.0
        cost = self._costs[name]
        started = self._rounds[name] > self._rounds_before[name]
        return (0.0 if started else cost.start_seconds) + rounds * cost.round_seconds

    def _done(self, name: str) -> int:
        if sweep_folder.finished(self._folder, name):
            return self._goals[name]
        return min(sweep_folder.rounds_done(self._folder, name), self._goals[name])

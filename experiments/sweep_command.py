"""What the commands that start many runs have in common: `sweep` and `tune`.

Every run has the flags of experiments.main that the command was given, and varies some of them.
"""

import itertools
import pathlib
import sys
import time
from collections.abc import Collection, Mapping, Sequence

from absl import flags
from absl.testing import flagsaver

from experiments import main, sweep_costs, sweep_folder, sweep_processes, sweep_results
from experiments.sweep_folder import Run
from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.data import cache, sources
from rdpcfl_tff.errors import UserError

_JOBS = flags.DEFINE_integer(
    "jobs",
    None,
    "Runs at the same time (default: one per core, fewer if the memory is too small).",
    lower_bound=1,
)

_NOT_FOR_MANY = {
    "fallback_dataset": "a run among many is on the data set that its name says",
    "halt_after": "many runs go to their end; `experiments.tune --halving` halts the worse ones",
}


def product(varied: Mapping[str, Sequence[str]], named: Collection[str] = ()) -> list[Run]:
    """A run for every combination of the values of the varied flags.

    All runs have the other flags of experiments.main that were given, or are named.
    """
    for name, values in varied.items():
        if not values:
            raise UserError(f"there is no value to vary --{name} over")
    for name, reason in _NOT_FOR_MANY.items():
        if flags.FLAGS[name].value is not None:
            raise UserError(f"--{name}: {reason}")
    own = flags.FLAGS.flags_by_module_dict()[main.__name__]
    common = [
        flag.serialize()
        for flag in own
        if (flag.present or flag.name in named) and flag.name not in {"output_dir", *varied}
    ]
    runs: dict[str, Run] = {}
    for values in itertools.product(*varied.values()):
        chosen = dict(zip(varied, values, strict=True))
        # In absl's testing package, but made for what is needed here: flags for a while.
        with flagsaver.as_parsed(**chosen):
            config = main.run_config(flags.FLAGS["dataset"].value)
        if config.dataset not in sources.DATASETS:
            raise UserError(f"{config.dataset}: many runs at once need a published data set")
        name = _name(config, chosen)
        runs[name] = Run(
            name, (*(f"--{key}={value}" for key, value in chosen.items()), *common), config
        )
    return list(runs.values())


def _name(config: RunConfig, chosen: Mapping[str, str]) -> str:
    always = {"algorithm", "dataset", "shift", "eps", "seed"}
    more = [f"{name}{value}" for name, value in chosen.items() if name not in always]
    start = (config.algorithm, config.dataset, config.shift)
    return "-".join([*start, f"eps{config.epsilon:g}", f"seed{config.seed}", *more])


def begin(runs: Sequence[Run], kind: str) -> pathlib.Path:
    """Notes the runs in the folder of their results: --output_dir, or a new one."""
    new = pathlib.Path("results") / f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = pathlib.Path(flags.FLAGS["output_dir"].value or new)
    sweep_folder.write_plan(folder, runs, sys.argv)
    return folder


def carry_out(
    runs: Sequence[Run], folder: pathlib.Path, until_round: int | None = None
) -> list[str]:
    """Says how long it will take, works off the runs, and returns the names of those that failed.

    The table of the finished runs is renewed in the end, however it comes.
    """
    to_do = [run for run in runs if not sweep_processes.reached(folder, run, until_round)]
    jobs = _JOBS.value or sweep_costs.jobs_that_fit(to_do)
    print(
        f"{len(runs)} runs, {len(to_do)} of them to do, {jobs} at a time, in {folder}", flush=True
    )
    if not to_do:
        sweep_results.collect(folder)
        return []
    data_dir, cache_dir = (flags.FLAGS[name].value for name in ("data_dir", "cache_dir"))
    costs = sweep_costs.measured_costs(
        to_do,
        pathlib.Path(data_dir) if data_dir else None,
        pathlib.Path(cache_dir) if cache_dir else cache.default_folder(),
    )
    seconds = sweep_costs.forecast(to_do, folder, costs, jobs, until_round)
    print(f"this takes about {sweep_costs.duration(seconds)} on this machine", flush=True)
    try:
        return sweep_processes.work_off(to_do, folder, jobs, costs, until_round)
    finally:
        sweep_results.collect(folder)


def failure_list(folder: pathlib.Path, failed: Sequence[str]) -> str:
    """Each failed run with the last line that it printed."""
    lines = [f"  {name}: {sweep_folder.last_words(folder, name)}" for name in failed]
    return "\n".join([f"failed: {len(failed)} (logs: {folder / 'logs'})", *lines])

"""Holds the plan's forecast against real first rounds: `python -m experiments.plan_check`.

For every N, epsilon and batch size: does round 1 find the exact partition, M given, and did the
plan say so? The signal comes from --proxy, so that the forecast has not seen the data.
True clusters are looked at: for simulations only, in files named `simulation_...`.
"""

import itertools
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd
import tqdm
from absl import flags

from experiments import command_line, presets
from rdpcfl_tff import outlook
from rdpcfl_tff.clustering.forecast import Signal
from rdpcfl_tff.clustering.matching import match_partition
from rdpcfl_tff.clustering.mixture import default_mixture, principal_components
from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.data import cache, silos, sources
from rdpcfl_tff.privacy.plan import PrivacyPlan

if TYPE_CHECKING:  # TensorFlow takes seconds to import: wrong flags are told before it
    from experiments.first_updates import FirstRound

_DATASETS = flags.DEFINE_multi_enum(
    "dataset", ["fashion_mnist"], sources.DATASETS, "The data sets to check on."
)
_PROXY = flags.DEFINE_enum(
    "proxy", "mnist", sources.DATASETS, "The data set that the forecast knows."
)
_RECORDS = flags.DEFINE_list(
    "records", ["250", "500", "1000", "2000", "4000"], "N, train records of a client."
)
_EPS = flags.DEFINE_list("eps", ["1", "3", "5", "10", "15"], "Privacy budgets of a whole run.")
_BATCH_SIZES = flags.DEFINE_list("batch_sizes", ["8", "32", "128"], "b, after round 1.")
_FIRST_ROUND_NOISE = flags.DEFINE_float(
    "first_round_noise_multiplier", None, "z of round 1 (default: that of all rounds)."
)
_SEEDS = flags.DEFINE_integer(
    "seeds", 3, "How many splits, each with initial weights of its own.", lower_bound=1
)
_NOISE_SEEDS = flags.DEFINE_integer(
    "noise_seeds", 2, "How many draws of the noise for each of them.", lower_bound=1
)
_DATA_DIR = flags.DEFINE_string("data_dir", None, "As for experiments.main.")
_CACHE_DIR = flags.DEFINE_string("cache_dir", None, "As for experiments.main.")
_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "The results folder; it must be empty (default: results/<name and time>)."
)


def main(arguments: list[str]) -> None:
    """Measures and forecasts the whole grid, and writes and prints how often they agree."""
    command_line.no_arguments(arguments)
    output_dir = command_line.results_folder(_OUTPUT_DIR, "plan_check")
    epsilons = command_line.epsilons(_EPS)
    batch_sizes = command_line.whole_numbers(_BATCH_SIZES)
    cache_dir = pathlib.Path(_CACHE_DIR.value) if _CACHE_DIR.value else cache.default_folder()
    data_dir = pathlib.Path(_DATA_DIR.value) if _DATA_DIR.value else None
    datasets = {
        name: sources.load(name, data_dir, cache_dir)
        for name in dict.fromkeys([_PROXY.value, *_DATASETS.value])
    }
    configs = [
        RunConfig(
            dataset=dataset,
            shift=shift,
            # A client trains on four fifths of its records.
            samples_per_client=-(-records * 5 // 4),
            seed=seed,
            **presets.settings("paper", "rdpcfl", dataset, shift),
        )
        for dataset, shift, records, seed in itertools.product(
            _DATASETS.value,
            silos.SHIFTS,
            command_line.whole_numbers(_RECORDS),
            range(_SEEDS.value),
        )
    ]

    from experiments import first_updates, proxy

    rows: list[dict[str, object]] = []
    with tqdm.tqdm(total=len(configs), unit="federation", dynamic_ncols=True) as bar:
        num_clusters = len(configs[0].cluster_sizes)
        signals = {
            shift: proxy.measure(datasets[_PROXY.value], shift, num_clusters, cache_dir)
            for shift in silos.SHIFTS
        }
        for config in configs:
            store = silos.store_of_run(config, datasets[config.dataset], cache_dir)
            first_round = first_updates.FirstRound(config, store, cache_dir / "first_round")
            for epsilon, batch_size in itertools.product(epsilons, batch_sizes):
                if batch_size <= min(store.client_sizes["train"]):
                    rows += _compared(first_round, signals[config.shift], epsilon, batch_size)
            bar.update()
    results = pd.DataFrame(rows)
    command_line.save_study(output_dir, "plan_check", results, _report(results))


def _compared(
    first_round: "FirstRound", signal: Signal, epsilon: float, batch_size: int
) -> Iterator[dict[str, object]]:
    """A row for every draw of the noise: what the plan said, and what came."""
    config, store = first_round.config, first_round.store
    schedules = first_round.plan(epsilon, batch_size).schedules
    plan = PrivacyPlan.calibrate(schedules, epsilon, config.delta, _FIRST_ROUND_NOISE.value)
    expected = outlook.PlannedRun(
        schedule=schedules[0],
        epsilon=epsilon,
        delta=config.delta,
        cluster_sizes=config.cluster_sizes,
        num_parameters=first_round.num_parameters,
        signal=signal,
        first_round_noise_multiplier=_FIRST_ROUND_NOISE.value,
    ).forecast()
    for draw in range(_NOISE_SEEDS.value):
        components = principal_components(first_round.updates(plan, draw))
        mixture = default_mixture(components, len(config.cluster_sizes))
        yield {
            "dataset": config.dataset,
            "shift": config.shift,
            "records": schedules[0].records,
            "epsilon": epsilon,
            "batch_size": batch_size,
            "seed": config.seed,
            "noise_seed": draw,
            "noise_multiplier": plan.noise_multipliers[0],
            "first_round_noise_multiplier": plan.first_round_noise_multipliers[0],
            "forecast_exact": expected.exact,
            "forecast_mss": expected.mss,
            "exact": match_partition(mixture.partition.tolist(), store.true_clusters).exact,
            "mss": mixture.mss,
        }


def _report(results: pd.DataFrame) -> str:
    """How often the forecast was right, and what came of every N."""
    results = results.assign(hit=(results["forecast_exact"] >= 0.5) == results["exact"])
    lines = [
        "z of round 1 from {:.3g} to {:.3g}, of the later rounds from {:.3g} to {:.3g}".format(
            *(
                bound
                for column in ("first_round_noise_multiplier", "noise_multiplier")
                for bound in (results[column].min(), results[column].max())
            )
        ),
        f"the forecast is right in {results['hit'].sum()} of {len(results)} first rounds "
        f"({results['hit'].mean():.1%}); the partition is exact in {results['exact'].mean():.1%}",
        "",
        "| data set | shift | N | first rounds | exact | forecast exact | forecast right |",
        "|---|---|---|---|---|---|---|",
    ]
    for names, cell in results.groupby(["dataset", "shift", "records"], sort=False):
        said_exact = (cell["forecast_exact"] >= 0.5).sum()
        counts = (len(cell), cell["exact"].sum(), said_exact, cell["hit"].sum())
        lines.append(" | ".join(["", *map(str, names), *map(str, counts), ""]).strip())
    return "\n".join([*lines, "", *_details(results)])


def _details(results: pd.DataFrame) -> list[str]:
    """When it is right, and how good somebody would be who knows the grid but has no forecast."""
    sure = (results["forecast_exact"] - 0.5).abs() >= 0.45
    likely = results["forecast_exact"] >= outlook.LIKELY
    exact = results[results["exact"]]
    ratios = (exact["forecast_mss"] / exact["mss"]).quantile([0.05, 0.5, 0.95])
    lines = [
        f"nearly sure (at least 95 % of its draws alike): right in {_hits(results[sure])}; "
        f"else in {_hits(results[~sure])}",
        f"should work ({outlook.LIKELY:.0%} and more): did in "
        f"{results[likely]['exact'].sum()} of {likely.sum()}",
        "MSS that was forecast, beside the measured one where exact: median {1:.2f}, nine in ten "
        "from {0:.2f} to {2:.2f}".format(*ratios),
    ]
    for known in (["records", "shift"], ["records", "epsilon"]):
        outcomes = results.groupby(["dataset", *known])["exact"]
        rate = outcomes.transform("mean")
        lines.append(
            f"the most frequent outcome at each {' and '.join(known)}: right in "
            f"{rate.where(rate >= 0.5, 1 - rate).mean():.0%}"
        )
    return lines


def _hits(results: pd.DataFrame) -> str:
    return f"{results['hit'].sum()} of {len(results)}"


if __name__ == "__main__":
    command_line.run(main)

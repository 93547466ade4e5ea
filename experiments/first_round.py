"""Measures stage 1 of R-DPCFL alone: `python -m experiments.first_round --datasets=mnist`.

How often does round 1 find the true clusters with M given, and the right M when it is searched (the
paper's appendix on the number of clusters)? Seed s has the split and the initial weights of
`experiments.main --seed=s`. True clusters are looked at, so all files are named `simulation_...`.
"""

import itertools
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pandas as pd
import tqdm
from absl import flags

from experiments import command_line, presets
from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.data import cache, silos, sources
from rdpcfl_tff.errors import UserError

if TYPE_CHECKING:  # TensorFlow takes seconds to import: wrong flags are told before it
    from experiments.first_updates import FirstRound

MIXTURES = ("default", "paper")

_DATASETS = flags.DEFINE_list(
    "datasets", ["mnist", "fashion_mnist"], f"Data sets: some of {', '.join(sources.DATASETS)}."
)
_SHIFTS = flags.DEFINE_list(
    "shifts", list(silos.SHIFTS), f"How clusters differ: some of {', '.join(silos.SHIFTS)}."
)
_EPS = flags.DEFINE_list("eps", ["3", "4", "5", "10", "15"], "Privacy budgets of a whole run.")
_SEEDS = flags.DEFINE_integer(
    "seeds", 5, "How many splits, each with initial weights of its own.", lower_bound=1
)
_NOISE_SEEDS = flags.DEFINE_integer(
    "noise_seeds", 4, "How many draws of the noise for each split and epsilon.", lower_bound=1
)
_SAMPLES_PER_CLIENT = flags.DEFINE_integer(
    "samples_per_client", None, "Train and validation records per client (default: all)."
)
_OVERLAP = flags.DEFINE_bool("overlap", False, "As for experiments.main.")
_FIRST_BATCH_SIZE = flags.DEFINE_integer(
    "first_batch_size", None, "b1, the batch size of round 1 (default: full batch)."
)
_DATA_DIR = flags.DEFINE_string("data_dir", None, "As for experiments.main.")
_CACHE_DIR = flags.DEFINE_string("cache_dir", None, "As for experiments.main.")
_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "The results folder; it must be empty (default: results/<name and time>)."
)


def main(arguments: list[str]) -> None:
    """Measures every combination that the flags name, and writes and prints the table."""
    command_line.no_arguments(arguments)
    epsilons = command_line.epsilons(_EPS)
    configs = [
        RunConfig(
            algorithm="rdpcfl",
            dataset=dataset,
            shift=shift,
            samples_per_client=_SAMPLES_PER_CLIENT.value,
            overlap=_OVERLAP.value,
            first_batch_size=_FIRST_BATCH_SIZE.value,
            seed=seed,
            **presets.settings("paper", "rdpcfl", dataset, shift),
        )
        for dataset in _names(_DATASETS, sources.DATASETS)
        for shift in _names(_SHIFTS, silos.SHIFTS)
        for seed in range(_SEEDS.value)
    ]
    output_dir = command_line.results_folder(_OUTPUT_DIR, "first_round")
    cache_dir = pathlib.Path(_CACHE_DIR.value) if _CACHE_DIR.value else cache.default_folder()
    data_dir = pathlib.Path(_DATA_DIR.value) if _DATA_DIR.value else None
    datasets = {
        name: sources.load(name, data_dir, cache_dir)
        for name in dict.fromkeys(config.dataset for config in configs)
    }

    from experiments import first_updates

    full_batch = _FIRST_BATCH_SIZE.value is None
    draws = 1 if full_batch else len(epsilons) * _NOISE_SEEDS.value
    num_trainings = draws * sum(sum(config.cluster_sizes) for config in configs)
    rows: list[dict[str, object]] = []
    with tqdm.tqdm(total=num_trainings, unit="client", dynamic_ncols=True) as bar:
        for config in configs:
            bar.set_description(f"{config.dataset}, {config.shift}, seed {config.seed}")
            store = silos.store_of_run(config, datasets[config.dataset], cache_dir)
            first_round = first_updates.FirstRound(
                config, store, cache_dir / "first_round", bar.update
            )
            rows += measurements(first_round, epsilons, _NOISE_SEEDS.value)
    results = pd.DataFrame(rows)
    command_line.save_study(output_dir, "first_round", results, _table(results))


def measurements(
    first_round: "FirstRound", epsilons: Sequence[float], noise_seeds: int
) -> Iterator[dict[str, object]]:
    """Round 1 for every epsilon and draw of the noise: a row for each way to fit the mixture."""
    from rdpcfl_tff.clustering.matching import match_partition
    from rdpcfl_tff.clustering.mixture import principal_components

    config = first_round.config
    true_number = len(config.cluster_sizes)
    for epsilon, noise_seed in itertools.product(epsilons, range(noise_seeds)):
        plan = first_round.plan(epsilon, first_batch_size=config.first_batch_size)
        # Clustering depends on the distances between clients alone, and these coordinates have
        # the same: so a large model is gone through once, not once for every mixture.
        updates = principal_components(first_round.updates(plan, noise_seed)).coordinates
        for mixture in MIXTURES:
            given = first_round.cluster(updates, mixture, true_number)
            searched = first_round.cluster(updates, mixture, None)
            assert given.mixture is not None
            match = match_partition(
                given.mixture.partition.tolist(), first_round.store.true_clusters
            )
            yield {
                "dataset": config.dataset,
                "shift": config.shift,
                "epsilon": epsilon,
                "seed": config.seed,
                "noise_seed": noise_seed,
                "mixture": mixture,
                "noise_multiplier": max(plan.noise_multipliers),
                "exact": match.exact,
                "mss": given.mixture.mss,
                "chosen_clusters": searched.responsibilities.shape[1],
                "right_number": searched.responsibilities.shape[1] == true_number,
                "p_value": searched.count.p_value,
            }


def _table(results: pd.DataFrame) -> str:
    """A line per data set, shift and mixture, a column per epsilon, in markdown."""
    epsilons = results["epsilon"].unique()
    lines = [
        "Exact partition with M given in % / right M when searched in % / median MSS with M given:",
        "",
        " | ".join(["| data set | shift | mixture", *(f"eps {eps:g}" for eps in epsilons)]) + " |",
        "|---" * (3 + len(epsilons)) + "|",
    ]
    for names, group in results.groupby(["dataset", "shift", "mixture"], sort=False):
        cells = [
            f"{cell['exact'].mean():.0%} / {cell['right_number'].mean():.0%} / "
            f"{cell['mss'].median():.1f}".replace("%", "")
            for _, cell in group.groupby("epsilon", sort=False)
        ]
        lines.append(" | ".join(["| " + " | ".join(names), *cells]) + " |")
    return "\n".join(lines)


def _names(flag: flags.FlagHolder, known: Sequence[str]) -> list[str]:
    names = list(dict.fromkeys(flag.value))
    if not names or not set(names) <= set(known):
        raise UserError(f"--{flag.name}={','.join(names)}: name some of {','.join(known)}")
    return names


if __name__ == "__main__":
    command_line.run(main)

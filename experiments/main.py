"""Trains one model per cluster of clients: `python -m experiments.main --dataset=mnist`.

Reads the flags, finds the data, builds the silos, runs, and prints a summary. Every run has its own
results folder.
"""

import math
import pathlib
import sys
import time

from absl import flags

from experiments import command_line, presets
from rdpcfl_tff import config as configs
from rdpcfl_tff.data import cache, silos, sources
from rdpcfl_tff.errors import UserError

_ALGORITHM = flags.DEFINE_enum(
    "algorithm",
    "rdpcfl",
    configs.ALGORITHMS,
    "rdpcfl: the paper's algorithm; ifca, mr_mtl, local, global: its baselines; odpcfl: the "
    "oracle that knows the true clusters.",
)
_DATASET = flags.DEFINE_enum("dataset", "mnist", sources.DATASETS, "The data set.")
_FALLBACK = flags.DEFINE_enum(
    "fallback_dataset",
    None,
    sources.DATASETS,
    "The data set to take if no source of --dataset can be reached.",
)
_DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "A folder with the data set's published files; looked at first."
)
_CACHE_DIR = flags.DEFINE_string(
    "cache_dir", None, "Where downloads and silos are kept (default: ~/.cache/rdpcfl_tff)."
)
_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "The results folder; it must be empty (default: results/<name and time>)."
)
_PRESET = flags.DEFINE_enum(
    "preset",
    "paper",
    presets.PRESETS,
    "paper: the paper's run, hours long; quick: minutes; smoke: only shows that it runs.",
)
_SHIFT = flags.DEFINE_enum(
    "shift", "rotation", ["rotation", "label_flip"], "How the clusters' data differ."
)
_CLUSTER_SIZES = flags.DEFINE_list(
    "cluster_sizes", ["3", "6", "6", "6"], "Clients in each true cluster."
)
_EPS = flags.DEFINE_float(
    "eps", math.inf, "epsilon, each client's privacy budget; inf trains without privacy."
)
_DELTA = flags.DEFINE_float("delta", 1e-4, "delta, the other half of the budget; below 1/N.")
_SEED = flags.DEFINE_integer("seed", 0, "Decides the split, the initial weights and the noise.")
_NOISE_SEED = flags.DEFINE_enum(
    "noise_seed",
    "seed",
    ["seed", "os"],
    "seed: noise that the seed repeats, for simulations; os: noise that nobody can repeat.",
)

# Without a value of its own, each of these takes its preset's.
_OVERRIDES = {
    "samples_per_client": flags.DEFINE_integer(
        "samples_per_client", None, "Train and validation records per client."
    ),
    "rounds": flags.DEFINE_integer("rounds", None, "E, the number of rounds."),
    "local_epochs": flags.DEFINE_integer("local_epochs", None, "K, local epochs per round."),
    "batch_size": flags.DEFINE_integer("batch_size", None, "b, the expected batch size."),
    "first_batch_size": flags.DEFINE_integer(
        "first_batch_size", None, "b1, the batch size of R-DPCFL's round 1 (default: full batch)."
    ),
    "num_clusters": flags.DEFINE_integer(
        "num_clusters", None, "M, the number of clusters (default: R-DPCFL finds it)."
    ),
    "mixture": flags.DEFINE_enum(
        "mixture", None, ["default", "paper"], "How R-DPCFL's mixture is fitted (default: ours)."
    ),
    "eps_select_ratio": flags.DEFINE_float(
        "eps_select_ratio", None, "The epsilon of one private selection, as a part of --eps."
    ),
    "selection_ratio": flags.DEFINE_float(
        "selection_ratio", None, "The part of all rounds that begin with a private selection."
    ),
    "dp_engine": flags.DEFINE_enum(
        "dp_engine",
        None,
        ["fast", "tf_privacy"],
        "fast: our clipping; tf_privacy: TF Privacy's optimizer, the same result, much slower.",
    ),
    "mr_mtl_lambda": flags.DEFINE_float(
        "mr_mtl_lambda", None, "The strength of MR-MTL's pull to the mean of all models."
    ),
    "learning_rate": flags.DEFINE_float("lr", None, "eta, the clients' learning rate."),
    "clip_norm": flags.DEFINE_float("clip", None, "c, the L2 norm that gradients are clipped to."),
    "eval_every": flags.DEFINE_integer(
        "eval_every", None, "Rounds between two looks at the validation accuracy."
    ),
}


def run_config(dataset: str) -> configs.RunConfig:
    """The config that the flags and their preset describe, for this data set."""
    given = {name: flag.value for name, flag in _OVERRIDES.items() if flag.value is not None}
    return configs.RunConfig(
        algorithm=_ALGORITHM.value,
        dataset=dataset,
        shift=_SHIFT.value,
        cluster_sizes=_cluster_sizes(_CLUSTER_SIZES.value),
        epsilon=_EPS.value,
        delta=_DELTA.value,
        seed=_SEED.value,
        noise_seed=_NOISE_SEED.value,
        **(presets.settings(_PRESET.value, _ALGORITHM.value, dataset, _SHIFT.value) | given),
    )


def _cluster_sizes(texts: list[str]) -> tuple[int, ...]:
    try:
        return tuple(int(text) for text in texts)
    except ValueError as error:
        raise UserError(
            f"--cluster_sizes={','.join(texts)}: whole numbers with commas, for example 3,6,6,6"
        ) from error


def main(arguments: list[str]) -> None:
    """Runs what the flags describe."""
    command_line.no_arguments(arguments)
    config = run_config(_DATASET.value)
    cache_dir = pathlib.Path(_CACHE_DIR.value) if _CACHE_DIR.value else cache.default_folder()
    data_dir = pathlib.Path(_DATA_DIR.value) if _DATA_DIR.value else None
    # TensorFlow takes seconds to import: wrong flags and missing data are told before it.
    try:
        dataset = sources.load(config.dataset, data_dir, cache_dir)
    except sources.NoSourceError:
        if _FALLBACK.value is None:
            raise
        print(f"No source of {config.dataset} can be reached: running on {_FALLBACK.value}.")
        config = run_config(_FALLBACK.value)
        dataset = sources.load(config.dataset, data_dir, cache_dir)
    name = f"{config.algorithm}-{config.dataset}-{config.shift}-{time.strftime('%Y%m%d-%H%M%S')}"
    output_dir = pathlib.Path(_OUTPUT_DIR.value or pathlib.Path("results") / name)

    silo_config = silos.SiloConfig(
        config.cluster_sizes, config.shift, config.samples_per_client, config.seed
    )
    store = silos.build_store(dataset, silo_config, cache_dir / "silos" / silo_config.name(dataset))
    if _PRESET.value == "paper":
        print("This is the paper's full run; --preset=quick takes minutes.")
    from rdpcfl_tff.training import driver

    summary = driver.run(config, store, output_dir, sys.argv)
    _print_summary(summary, output_dir)


def _print_summary(summary: dict, output_dir: pathlib.Path) -> None:
    accuracy = summary["simulation_test_accuracy"]
    privacy = f"epsilon {summary['epsilon_spent']:.3f}" if summary["private"] else "NOT private"
    print(
        f"{summary['algorithm']} on {summary['dataset']}, {summary['rounds']} rounds, {privacy}\n"
        f"test accuracy: mean {accuracy['mean']:.4f}, worst client {accuracy['worst']:.4f}, "
        f"minority cluster {accuracy['minority']:.4f}\n"
        f"models: {summary['models_in_use']} of {summary['models']} in use; "
        f"clients in a wrong cluster: {summary['simulation_partition']['misplaced_clients']}\n"
        f"results: {output_dir}"
    )


if __name__ == "__main__":
    command_line.run(main)

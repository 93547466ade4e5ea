"""Measures stage 1 of R-DPCFL alone: `python -m experiments.first_round --datasets=mnist`.

How often does round 1 find the true clusters with M given, and the right M when it is searched (the
paper's appendix on the number of clusters)? What a client's full batch sums up to depends neither
on epsilon nor on the noise: it is computed once and cached, and only the noise is drawn again.
The cached sums are UNNOISED and private: for simulations only, in files named `simulation_...`.
"""

import dataclasses
import hashlib
import json
import math
import pathlib
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import tqdm
from absl import flags

from experiments import command_line, presets
from rdpcfl_tff import storage
from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.data import cache, silos, sources
from rdpcfl_tff.errors import UserError
from rdpcfl_tff.privacy.plan import PrivacyPlan

if TYPE_CHECKING:  # TensorFlow takes seconds to import: wrong flags are told before it
    from rdpcfl_tff.algorithms.rdpcfl import RDPCFL
    from rdpcfl_tff.privacy.clipping import Engine

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
_DATA_DIR = flags.DEFINE_string("data_dir", None, "As for experiments.main.")
_CACHE_DIR = flags.DEFINE_string("cache_dir", None, "As for experiments.main.")
_OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "The results folder; it must be empty (default: results/<name and time>)."
)


def main(arguments: list[str]) -> None:
    """Measures every combination that the flags name, and writes and prints the table."""
    command_line.no_arguments(arguments)
    epsilons = _epsilons()
    configs = [
        RunConfig(
            algorithm="rdpcfl",
            dataset=dataset,
            shift=shift,
            samples_per_client=_SAMPLES_PER_CLIENT.value,
            seed=seed,
            **presets.settings("paper", "rdpcfl", dataset, shift),
        )
        for dataset in _names(_DATASETS, sources.DATASETS)
        for shift in _names(_SHIFTS, silos.SHIFTS)
        for seed in range(_SEEDS.value)
    ]
    name = f"first_round-{time.strftime('%Y%m%d-%H%M%S')}"
    output_dir = pathlib.Path(_OUTPUT_DIR.value or pathlib.Path("results") / name)
    if output_dir.exists() and any(output_dir.iterdir()):
        raise UserError(f"--output_dir={output_dir} is not empty: choose another folder")
    cache_dir = pathlib.Path(_CACHE_DIR.value) if _CACHE_DIR.value else cache.default_folder()
    data_dir = pathlib.Path(_DATA_DIR.value) if _DATA_DIR.value else None
    datasets = {
        name: sources.load(name, data_dir, cache_dir)
        for name in dict.fromkeys(config.dataset for config in configs)
    }

    rows: list[dict[str, object]] = []
    num_clients = sum(sum(config.cluster_sizes) for config in configs)
    with tqdm.tqdm(total=num_clients, unit="client", dynamic_ncols=True) as bar:
        for config in configs:
            bar.set_description(f"{config.dataset}, {config.shift}, seed {config.seed}")
            store = _store(config, datasets[config.dataset], cache_dir)
            sums = _cached_sums(config, store, cache_dir / "first_round", bar)
            rows += measurements(config, store, sums, epsilons, _NOISE_SEEDS.value)
    results = pd.DataFrame(rows)
    table = _table(results)
    command = shlex.join(["python", "-m", "experiments.first_round", *sys.argv[1:]])
    with storage.explained(output_dir, "choose another --output_dir"):
        output_dir.mkdir(parents=True, exist_ok=True)
        for name, text in (
            ("simulation_first_round.csv", results.to_csv(index=False)),
            ("simulation_first_round.md", f"`{command}`\n\n{table}\n"),
        ):
            storage.write_atomically(output_dir / name, [text.encode()])
    print(f"{table}\nresults: {output_dir}")


def measurements(
    config: RunConfig,
    store: silos.SiloStore,
    sums: np.ndarray,
    epsilons: Sequence[float],
    noise_seeds: int,
) -> Iterator[dict[str, object]]:
    """Round 1 for every epsilon and draw of the noise: a row for each way to fit the mixture."""
    from rdpcfl_tff.clustering.matching import match_partition
    from rdpcfl_tff.clustering.mixture import principal_components

    true_number = len(config.cluster_sizes)
    for epsilon in epsilons:
        private = dataclasses.replace(config, epsilon=epsilon)
        schedule = _algorithm(private, "default", None).schedule
        plan = PrivacyPlan.calibrate(
            [schedule(records) for records in store.client_sizes["train"]], epsilon, config.delta
        )
        for noise_seed in range(noise_seeds):
            # The seed is text, so that no two rows share their noise.
            stream = f"{config.dataset} {config.shift} {epsilon:g} {config.seed} {noise_seed}"
            updates = noised_updates(sums, plan, config, np.random.default_rng([*stream.encode()]))
            # Clustering depends on the distances between clients alone, and these coordinates have
            # the same: so a large model is gone through once, not once for every mixture.
            updates = principal_components(updates).coordinates
            for mixture in MIXTURES:
                given = _algorithm(private, mixture, true_number).cluster(updates)
                searched = _algorithm(private, mixture, None).cluster(updates)
                assert given.mixture is not None
                match = match_partition(given.mixture.partition.tolist(), store.true_clusters)
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


def noised_updates(
    sums: np.ndarray, plan: PrivacyPlan, config: RunConfig, generator: np.random.Generator
) -> np.ndarray:
    """What the server gets in round 1: -(lr / b1) (sum + c z N(0, I)) of each client, [n, p]."""
    z = np.array(plan.noise_multipliers, np.float32)[:, np.newaxis]
    b1 = np.array([schedule.first_batch_size for schedule in plan.schedules], np.float32)
    # In place: with ResNet-18 each such array takes a gigabyte.
    updates = generator.standard_normal(sums.shape, np.float32)
    updates *= config.clip_norm * z
    updates += sums
    updates *= -config.learning_rate / b1[:, np.newaxis]
    return updates


def _cached_sums(
    config: RunConfig, store: silos.SiloStore, folder: pathlib.Path, bar: tqdm.tqdm
) -> np.ndarray:
    """Each client's sum of clipped gradients over its full batch, float32 [n, p]: UNNOISED."""
    from rdpcfl_tff.models.catalogue import build_model
    from rdpcfl_tff.models.functional import FunctionalModel
    from rdpcfl_tff.privacy import clipping

    model = FunctionalModel(
        build_model(config.model, store.image_shape, store.num_classes, config.seed)
    )
    # The manifest has a digest of each client's records.
    digest = hashlib.sha256(
        json.dumps(store.manifest).encode() + model.initial_parameters.tobytes()
    )
    path = folder / (
        f"simulation_{store.path.name}-{config.model}-clip{config.clip_norm}-"
        f"{digest.hexdigest()[:16]}.float32"
    )
    shape = (store.num_clients, model.num_parameters)
    with storage.locked(path, cache.WAY_OUT):
        if path.exists():
            bar.update(store.num_clients)
            return np.fromfile(path, np.float32).reshape(shape)
        sums = np.zeros(shape, np.float32)
        for client, total in enumerate(
            _clipped_sums(store, clipping.fast_engine(model), config.clip_norm)
        ):
            sums[client] = total
            bar.update()
        with storage.explained(folder, cache.WAY_OUT):
            storage.write_atomically(path, [sums])
    return sums


def _clipped_sums(
    store: silos.SiloStore, engine: "Engine", clip_norm: float
) -> Iterator[np.ndarray]:
    """The sum of clipped gradients at theta_init over all train records, client by client."""
    import tensorflow as tf

    from rdpcfl_tff.federated.client_data import RecordFormat
    from rdpcfl_tff.privacy.dp_sgd import LARGEST_CHUNK

    theta_init = tf.constant(engine.model.initial_parameters)
    scale = RecordFormat.of(store).scale

    @tf.function(autograph=False)
    def chunk_sum(images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        return engine.gradient_sum(theta_init, scale(images), labels, weights, clip_norm)

    for client in range(store.num_clients):
        images, labels = store.read(client, "train")
        total = np.zeros(engine.model.num_parameters, np.float32)
        for start in range(0, len(labels), LARGEST_CHUNK):
            # The last chunk is filled up with a record of weight 0, so that all have one shape.
            indices = np.arange(start, start + LARGEST_CHUNK)
            weights = (indices < len(labels)).astype(np.float32)
            indices = indices.clip(max=len(labels) - 1)
            total += chunk_sum(images[indices], labels[indices].astype(np.int32), weights)
        yield total


def _store(config: RunConfig, dataset: sources.Dataset, cache_dir: pathlib.Path) -> silos.SiloStore:
    silo_config = silos.SiloConfig(
        config.cluster_sizes, config.shift, config.samples_per_client, config.seed
    )
    return silos.build_store(dataset, silo_config, cache_dir / "silos" / silo_config.name(dataset))


def _algorithm(config: RunConfig, mixture: str, num_clusters: int | None) -> "RDPCFL":
    """The algorithm as a run with this config would have it; None searches the number."""
    from rdpcfl_tff.algorithms.base import LocalTraining
    from rdpcfl_tff.algorithms.rdpcfl import RDPCFL
    from rdpcfl_tff.training.driver import LARGEST_CANDIDATE

    searched = tuple(range(2, LARGEST_CANDIDATE + 1))
    return RDPCFL(
        training=LocalTraining(config.rounds, config.local_epochs, config.batch_size),
        first_batch_size=config.first_batch_size,
        num_clusters=num_clusters,
        candidates=searched if num_clusters is None else (num_clusters,),
        mixture_mode=mixture,
        selection_rounds=config.selection_rounds,
        epsilon_select=config.epsilon_select,
        seed=config.seed,
    )


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


def _epsilons() -> list[float]:
    try:
        epsilons = sorted({float(text) for text in _EPS.value})
    except ValueError:
        epsilons = []
    if not epsilons or not all(0 < epsilon < math.inf for epsilon in epsilons):
        raise UserError(
            f"--eps={','.join(_EPS.value)}: positive numbers with commas, for example 3,5,15"
        )
    return epsilons


if __name__ == "__main__":
    command_line.run(main)

"""What the figures on round 1 are measured on: one data set, many splits, many draws of the noise.

Knows the true clusters, so everything that comes from here is for simulations only.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from rdpcfl_tff.clustering import mixture
from rdpcfl_tff.clustering.matching import Match, match_partition
from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.data import silos, sources

if TYPE_CHECKING:  # TensorFlow takes seconds to import, and many figures do without
    from experiments.first_updates import FirstRound

MIXTURES = ("paper", "default")


@dataclasses.dataclass(frozen=True)
class Study:
    """One data set, and how much of it to measure.

    Attributes:
        config: An R-DPCFL run at full size, with seed 0.
        dataset: Its data.
        cache_dir: Where silos and updates are kept.
        epsilons: Budgets of a whole run.
        seeds: How many splits, each with initial weights of its own.
        draws: How many draws of the noise for each setting.
        small_samples: Records per client where silos are to be small.
        client_done: Called after each client's training, for a progress bar.
    """

    config: RunConfig
    dataset: sources.Dataset
    cache_dir: pathlib.Path
    epsilons: tuple[float, ...]
    seeds: int
    draws: int
    small_samples: int
    client_done: Callable[[], object] = lambda: None

    @functools.cache  # noqa: B019 (a study lives as long as its command)
    def first_round(self, seed: int = 0, small: bool = False) -> "FirstRound":
        """Round 1 of one split, with all records of the data set or with small silos."""
        from experiments import first_updates

        config = dataclasses.replace(
            self.config,
            seed=seed,
            samples_per_client=self.small_samples if small else self.config.samples_per_client,
        )
        store = silos.store_of_run(config, self.dataset, self.cache_dir)
        return first_updates.FirstRound(
            config, store, self.cache_dir / "first_round", self.client_done
        )


def fit(
    updates: np.ndarray, first_round: "FirstRound"
) -> Iterator[tuple[str, mixture.Mixture, Match]]:
    """Both mixtures with the true number of clusters, each with its match to the truth."""
    components = mixture.principal_components(updates)
    for name in MIXTURES:
        fitted = fit_one(
            name, components, len(first_round.config.cluster_sizes), first_round.config.seed
        )
        truth = first_round.store.true_clusters
        yield name, fitted, match_partition(fitted.partition.tolist(), truth)


def fit_one(
    name: str,
    components: mixture.PrincipalComponents,
    num_clusters: int,
    seed: int,
) -> mixture.Mixture:
    """The mixture of this name; only the paper's needs the seed."""
    if name == "paper":
        return mixture.paper_mixture(components, num_clusters, seed)
    return mixture.default_mixture(components, num_clusters)

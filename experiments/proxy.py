"""How clusters differ, measured on a public data set that stands in for the private ones.

A few clients per cluster compute the mean of their clipped gradients at theta_init. They are
clipped but not noised: this is for public data only.
"""

import pathlib

from experiments import first_updates, presets
from rdpcfl_tff.clustering.forecast import Signal
from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.data import silos, sources

# Enough to tell the spread of records from the distance of clusters, and seconds of work.
_CLIENTS_PER_CLUSTER = 8
_SAMPLES_PER_CLIENT = 640


def measure(
    dataset: sources.Dataset, shift: str, num_clusters: int, cache_dir: pathlib.Path
) -> Signal:
    """The signal of clusters that the shift makes of this data set."""
    share = len(dataset.train_labels) // _CLIENTS_PER_CLUSTER
    config = RunConfig(
        algorithm="rdpcfl",
        dataset=dataset.name,
        shift=shift,
        cluster_sizes=(_CLIENTS_PER_CLUSTER,) * num_clusters,
        samples_per_client=min(_SAMPLES_PER_CLIENT, share),
        **presets.settings("paper", "rdpcfl", dataset.name, shift),
    )
    store = silos.store_of_run(config, dataset, cache_dir)
    sums = first_updates.FirstRound(config, store, cache_dir / "first_round").sums
    records = store.client_sizes["train"][0]
    return Signal.measured(sums / (records * config.clip_norm), store.true_clusters, records)

"""Splits a data set into clients: how the paper's experiments fill the silo store.

The paper's data split (appendix, "Data split"): every cluster has its own copy of the data set,
shifted; the clients of a cluster share it without overlap. Which client is in which cluster is
known to the simulation alone.
"""

import itertools
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rdpcfl_tff import storage
from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.data import shifts, store
from rdpcfl_tff.data.dataset import Dataset
from rdpcfl_tff.data.store import SiloStore
from rdpcfl_tff.errors import UserError

SHIFTS = ("rotation", "label_flip")


@dataclass(frozen=True)
class SiloConfig:
    """How to split: clients per cluster, what differs between clusters, records per client."""

    cluster_sizes: tuple[int, ...] = (3, 6, 6, 6)
    shift: str = "rotation"
    """One of `SHIFTS`."""
    samples_per_client: int | None = None
    """Train and validation records of a client; None for all that disjoint clients can have."""
    seed: int = 0
    overlap: bool = False
    """Whether the clients of a cluster draw their records independently, as in the authors' code;
    they can then have more of them."""

    def __post_init__(self) -> None:
        sizes = ",".join(map(str, self.cluster_sizes))
        if not self.cluster_sizes:
            raise UserError("--cluster_sizes is empty: zero clients; give e.g. 3,6,6,6")
        if min(self.cluster_sizes) < 1:
            raise UserError(f"--cluster_sizes={sizes}: every cluster needs at least one client")
        if self.shift not in SHIFTS:
            raise UserError(f"--shift={self.shift}: unknown; use one of {', '.join(SHIFTS)}")
        if self.samples_per_client is not None and self.samples_per_client < 2:
            raise UserError(
                f"--samples_per_client={self.samples_per_client}: a client needs at least 2, "
                "one to train on and one to validate with"
            )
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed={self.seed}: must be between 0 and 2^32 - 1")

    def name(self, dataset: Dataset) -> str:
        """A folder name that says what is in the store; another config has another name."""
        sizes = "_".join(map(str, self.cluster_sizes))
        samples = "all" if self.samples_per_client is None else self.samples_per_client
        overlap = "-overlap" if self.overlap else ""
        return f"{dataset.name}-{self.shift}-{sizes}-{samples}-seed{self.seed}{overlap}"


def store_of_run(config: RunConfig, dataset: Dataset, cache_dir: Path) -> SiloStore:
    """The store that a run with this config trains on, built or found below the cache folder."""
    split = SiloConfig(
        config.cluster_sizes,
        config.shift,
        config.samples_per_client,
        config.seed,
        config.overlap,
    )
    return build_store(dataset, split, cache_dir / "silos" / split.name(dataset))


def build_store(dataset: Dataset, config: SiloConfig, directory: Path) -> SiloStore:
    """Builds the store `directory`, or opens and verifies it if the same store is there already.

    The same data set and config give the same files, byte for byte.

    Raises:
        UserError: the config does not fit the data, `directory` holds something else or
            a damaged store, or it cannot be written.
    """
    sizes = _records_per_client(dataset, config)
    with storage.locked(directory, store.WAY_OUT):
        if directory.is_dir() and any(directory.iterdir()):
            return _reopen(dataset, config, directory)
        store.make(directory, lambda building: _write_store(dataset, config, sizes, building))
    return SiloStore.open(directory)


def _records_per_client(dataset: Dataset, config: SiloConfig) -> dict[str, int]:
    """Records per split, the same for every client: the largest cluster sets the share."""
    largest = max(config.cluster_sizes)
    share = len(dataset.train_labels) // largest
    test_share = len(dataset.test_labels) // largest
    if share < 2 or test_share < 1:
        raise UserError(
            f"--cluster_sizes={','.join(map(str, config.cluster_sizes))}: {dataset.name} has "
            f"{len(dataset.train_labels)} train and {len(dataset.test_labels)} test records, too "
            f"few for {largest} disjoint clients in one cluster; make the largest cluster smaller"
        )
    samples = share if config.samples_per_client is None else config.samples_per_client
    if config.overlap and samples > len(dataset.train_labels):
        raise UserError(
            f"--samples_per_client={samples}: {dataset.name} has {len(dataset.train_labels)} train "
            "records"
        )
    if samples > share and not config.overlap:
        raise UserError(
            f"--samples_per_client={samples}: {dataset.name} has {len(dataset.train_labels)} train "
            f"records, so the {largest} disjoint clients of the largest cluster in "
            f"--cluster_sizes can have at most {share} each (more with --overlap)"
        )
    if config.shift == "label_flip" and len(config.cluster_sizes) > dataset.num_classes:
        raise UserError(
            f"--shift=label_flip: {dataset.num_classes} classes make at most as many different "
            f"clusters, --cluster_sizes has {len(config.cluster_sizes)}"
        )
    train = samples * 4 // 5
    return {
        "train": train,
        "validation": samples - train,
        "test": min(test_share, max(1, test_share * samples // share)),
    }


def _write_store(
    dataset: Dataset, config: SiloConfig, sizes: dict[str, int], building: Path
) -> None:
    # The config, too, would tell a server which clients belong together.
    simulation = {"config": asdict(config), "true_clusters": _true_clusters(config)}
    records = (_records(dataset, config, sizes, *place) for place in _places(config))
    header = _manifest_header(dataset)
    store.write(building, header, zip(itertools.repeat({}), records, strict=False), simulation)


def _records(
    dataset: Dataset, config: SiloConfig, sizes: dict[str, int], cluster: int, position: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The shifted records, per split, of the client at `position` of its cluster."""
    train_validation = sizes["train"] + sizes["validation"]
    chosen = _share(config, cluster, 0, len(dataset.train_labels), train_validation, position)
    test = _share(config, cluster, 1, len(dataset.test_labels), sizes["test"], position)
    picked = {
        "train": (dataset.train_images, dataset.train_labels, chosen[: sizes["train"]]),
        "validation": (dataset.train_images, dataset.train_labels, chosen[sizes["train"] :]),
        "test": (dataset.test_images, dataset.test_labels, test),
    }
    result = {}
    for split, (all_images, all_labels, indices) in picked.items():
        images, labels = all_images[indices], all_labels[indices]
        if config.shift == "rotation":
            images = shifts.rotate(images, cluster, len(config.cluster_sizes))
        else:
            labels = shifts.flip_labels(labels, cluster, dataset.num_classes)
        result[split] = images, labels
    return result


def _share(
    config: SiloConfig, cluster: int, half: int, total: int, records: int, position: int
) -> np.ndarray:
    """Indices of one client: its piece of the cluster's permutation of the train or test half."""
    # RandomState, because NumPy promises never to change its stream.
    words = [config.seed, cluster, half]
    if config.overlap:
        return np.random.RandomState([*words, position]).permutation(total)[:records]
    permutation = np.random.RandomState(words).permutation(total)
    return permutation[position * records : (position + 1) * records]


def _places(config: SiloConfig) -> list[tuple[int, int]]:
    """Per client: its cluster, and its position among the clients of that cluster."""
    return [(k, i) for k, size in enumerate(config.cluster_sizes) for i in range(size)]


def _manifest_header(dataset: Dataset) -> dict[str, Any]:
    normalisation = store.public_normalisation("images", dataset.image_shape)
    common = store.header(
        dataset.name, "images", dataset.image_shape, dataset.num_classes, normalisation
    )
    return common | {"dataset_sha256": dataset.sha256}


def _true_clusters(config: SiloConfig) -> tuple[int, ...]:
    return tuple(cluster for cluster, _ in _places(config))


def _reopen(dataset: Dataset, config: SiloConfig, directory: Path) -> SiloStore:
    if not store.is_store(directory):
        raise UserError(f"{directory} is not empty and no silo store: choose another folder")
    opened = SiloStore.open(directory)
    clusters = {"true_clusters": _true_clusters(config)}
    expected = _manifest_header(dataset) | asdict(config) | clusters
    clusters = {"true_clusters": opened.true_clusters}
    found = opened.manifest | asdict(_config_of(opened)) | clusters
    different = [
        f"{key} {found.get(key)}, now {value}"
        for key, value in expected.items()
        if found.get(key) != value
    ]
    if different:
        raise UserError(
            f"{directory} holds another silo store ({'; '.join(different)}): "
            "choose another folder, or delete it"
        )
    opened.verify()
    return opened


def _config_of(opened: SiloStore) -> SiloConfig:
    """How the store was split; known to the simulation only."""
    try:
        config = opened.simulation["config"]
        return SiloConfig(**config | {"cluster_sizes": tuple(config["cluster_sizes"])})
    except (KeyError, TypeError) as error:
        raise store.damaged(opened.path, f"its config is damaged: {error}") from None

"""Splits a data set into clients and keeps each client's records on disk: the silo store.

The paper's data split (appendix, "Data split"): every cluster has its own copy of the data set,
shifted; the clients of a cluster share it without overlap. What lies in a client's folder is
private to that client. `manifest.json` is what a server may know. `simulation.json` (the true
clusters and how the split was made) is known to the simulation alone.
"""

import itertools
import json
import math
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rdpcfl_tff import storage
from rdpcfl_tff.data import shifts
from rdpcfl_tff.data.dataset import Dataset, sha256
from rdpcfl_tff.errors import UserError

SPLITS = ("train", "validation", "test")
SHIFTS = ("rotation", "label_flip")

_FORMAT_VERSION = 1
_MANIFEST = "manifest.json"
_SIMULATION = "simulation.json"
_WAY_OUT = "free space there, or choose another folder for the silo store"


@dataclass(frozen=True)
class Normalisation:
    """A client feeds its model (pixel / 255 - mean) / std."""

    mean: float
    std: float


# Public constants, never computed from the clients' records: that would leak. Mean and deviation
# of MNIST's pixels as they are commonly published, here for every grey set; [-1, 1] for colour.
_GREY = Normalisation(mean=0.1307, std=0.3081)
_COLOUR = Normalisation(mean=0.5, std=0.5)


@dataclass(frozen=True)
class SiloConfig:
    """How to split: clients per cluster, what differs between clusters, records per client."""

    cluster_sizes: tuple[int, ...] = (3, 6, 6, 6)
    shift: str = "rotation"
    """One of `SHIFTS`."""
    samples_per_client: int | None = None
    """Train and validation records of a client; None for all that disjoint clients can have."""
    seed: int = 0

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
        return f"{dataset.name}-{self.shift}-{sizes}-{samples}-seed{self.seed}"


@dataclass(frozen=True)
class SiloStore:
    """An opened store. Client i's records are the raw uint8 files of `client_directory(i)`."""

    path: Path
    dataset: str
    image_shape: tuple[int, int, int]
    num_classes: int
    normalisation: Normalisation
    client_sizes: dict[str, tuple[int, ...]]
    """Records per split and client, e.g. `client_sizes["train"][0]`."""
    true_clusters: tuple[int, ...]
    """The cluster of each client. For the simulation only: no algorithm but the oracle reads it."""
    config: SiloConfig
    """How the split was made. For the simulation only, too."""
    manifest: dict[str, Any]

    @property
    def num_clients(self) -> int:
        """The number of clients of all clusters together."""
        return len(self.true_clusters)

    @property
    def client_directories(self) -> tuple[str, ...]:
        """The folder of each client, as the TFF worker reads it."""
        return tuple(str(self.path / client_directory(i)) for i in range(self.num_clients))

    @classmethod
    def open(cls, path: Path) -> "SiloStore":
        """Opens a store without reading its records; `verify` does that."""
        manifest = _read_json(path / _MANIFEST)
        simulation = _read_json(path / _SIMULATION)
        if manifest.get("format_version") != _FORMAT_VERSION:
            raise UserError(
                f"{path / _MANIFEST}: format version {manifest.get('format_version')}, this "
                f"program reads {_FORMAT_VERSION}; delete the folder {path} and run again"
            )
        try:
            height, width, channels = manifest["image_shape"]
            config = simulation["config"]
            if len(manifest["clients"]) != len(simulation["true_clusters"]):
                raise ValueError("number of clients")
            return cls(
                path=path,
                dataset=manifest["dataset"],
                image_shape=(height, width, channels),
                num_classes=manifest["num_classes"],
                normalisation=Normalisation(**manifest["normalisation"]),
                client_sizes={
                    split: tuple(client[split]["records"] for client in manifest["clients"])
                    for split in SPLITS
                },
                true_clusters=tuple(simulation["true_clusters"]),
                config=SiloConfig(**config | {"cluster_sizes": tuple(config["cluster_sizes"])}),
                manifest=manifest,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(path, f"{_MANIFEST} or {_SIMULATION} is damaged: {error}") from None

    def verify(self) -> None:
        """Raises a `UserError` that names the first file whose bytes are not the manifest's."""
        record_sizes = {"images": math.prod(self.image_shape), "labels": 1}
        for client, splits in enumerate(self.manifest["clients"]):
            for split, (kind, size) in itertools.product(SPLITS, record_sizes.items()):
                path = self.path / client_directory(client) / f"{split}.{kind}"
                try:
                    content = np.fromfile(path, np.uint8)
                except OSError as error:
                    raise _damaged(path, error.strerror) from None
                expected = splits[split]
                if content.size != size * expected["records"]:
                    raise _damaged(path, f"{content.size} bytes for {expected['records']} records")
                if sha256(content) != expected[f"{kind}_sha256"]:
                    raise _damaged(path, "changed since the store was built")

    def read(self, client: int, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Images [N, H, W, C] and labels [N] of one client, both uint8."""
        folder = self.path / client_directory(client)
        images = np.fromfile(folder / f"{split}.images", np.uint8)
        labels = np.fromfile(folder / f"{split}.labels", np.uint8)
        return images.reshape(-1, *self.image_shape), labels


def client_directory(client: int) -> str:
    """The name of a client's folder in a store."""
    return f"client_{client:03d}"


def build_store(dataset: Dataset, config: SiloConfig, directory: Path) -> SiloStore:
    """Builds the store `directory`, or opens and verifies it if the same store is there already.

    The same data set and config give the same files, byte for byte.

    Raises:
        UserError: the config does not fit the data, `directory` holds something else or
            a damaged store, or it cannot be written.
    """
    sizes = _records_per_client(dataset, config)
    with storage.locked(directory, _WAY_OUT):
        if directory.is_dir() and any(directory.iterdir()):
            return _reopen(dataset, config, directory)
        building = storage.partial(directory)
        with storage.explained(directory.parent, _WAY_OUT):
            shutil.rmtree(building, ignore_errors=True)  # left by a process that was killed
            try:
                _write_store(dataset, config, sizes, building)
                os.replace(building, directory)
            except BaseException:
                shutil.rmtree(building, ignore_errors=True)
                raise
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
    if samples > share:
        raise UserError(
            f"--samples_per_client={samples}: {dataset.name} has {len(dataset.train_labels)} train "
            f"records, so the {largest} disjoint clients of the largest cluster in "
            f"--cluster_sizes can have at most {share} each"
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
        "test": max(1, test_share * samples // share),
    }


def _write_store(
    dataset: Dataset, config: SiloConfig, sizes: dict[str, int], building: Path
) -> None:
    manifest = _manifest_header(dataset) | {"clients": []}
    for cluster, position in _places(config):
        client = len(manifest["clients"])
        folder = building / client_directory(client)
        folder.mkdir(parents=True)
        records = _records(dataset, config, sizes, cluster, position)
        entry: dict[str, dict[str, object]] = {}
        for split, (images, labels) in records.items():
            storage.write_file(folder / f"{split}.images", [images])
            storage.write_file(folder / f"{split}.labels", [labels])
            entry[split] = {
                "records": len(labels),
                "images_sha256": sha256(images),
                "labels_sha256": sha256(labels),
            }
        manifest["clients"].append(entry)
    storage.write_file(building / _MANIFEST, [_to_json(manifest)])
    # The config, too, would tell a server which clients belong together.
    simulation = {"config": asdict(config), "true_clusters": _true_clusters(config)}
    storage.write_file(building / _SIMULATION, [_to_json(simulation)])


def _records(
    dataset: Dataset, config: SiloConfig, sizes: dict[str, int], cluster: int, position: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The shifted records, per split, of the client at `position` of its cluster."""
    train_validation = sizes["train"] + sizes["validation"]
    chosen = _share(config.seed, cluster, 0, len(dataset.train_labels), train_validation, position)
    test = _share(config.seed, cluster, 1, len(dataset.test_labels), sizes["test"], position)
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
    seed: int, cluster: int, half: int, total: int, records: int, position: int
) -> np.ndarray:
    """Indices of one client: its piece of the cluster's permutation of the train or test half."""
    # RandomState, because NumPy promises never to change its stream.
    permutation = np.random.RandomState([seed, cluster, half]).permutation(total)
    return permutation[position * records : (position + 1) * records]


def _places(config: SiloConfig) -> list[tuple[int, int]]:
    """Per client: its cluster, and its position among the clients of that cluster."""
    return [(k, i) for k, size in enumerate(config.cluster_sizes) for i in range(size)]


def _manifest_header(dataset: Dataset) -> dict[str, Any]:
    return {
        "format_version": _FORMAT_VERSION,
        "dataset": dataset.name,
        "dataset_sha256": dataset.sha256,
        "image_shape": list(dataset.image_shape),
        "num_classes": dataset.num_classes,
        "normalisation": asdict(_GREY if dataset.image_shape[-1] == 1 else _COLOUR),
    }


def _true_clusters(config: SiloConfig) -> tuple[int, ...]:
    return tuple(cluster for cluster, _ in _places(config))


def _reopen(dataset: Dataset, config: SiloConfig, directory: Path) -> SiloStore:
    if not (directory / _MANIFEST).exists():
        raise UserError(f"{directory} is not empty and no silo store: choose another folder")
    store = SiloStore.open(directory)
    clusters = {"true_clusters": _true_clusters(config)}
    expected = _manifest_header(dataset) | asdict(config) | clusters
    found = store.manifest | asdict(store.config) | {"true_clusters": store.true_clusters}
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
    store.verify()
    return store


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise _damaged(path, error.strerror) from None
    except ValueError as error:
        raise _damaged(path, f"not JSON: {error}") from None


def _to_json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _damaged(path: Path, fault: str) -> UserError:
    return UserError(f"{path}: {fault}. Delete this silo store and run again to rebuild it")

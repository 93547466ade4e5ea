"""The silo store: every client's records on disk, as the client's own computation reads them.

What lies in a client's folder is private to that client. `manifest.json` is what a server may know.
`simulation.json` (the true clusters, and how the records were split) is known to the simulation
alone.
"""

import itertools
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rdpcfl_tff import storage
from rdpcfl_tff.data.dataset import sha256
from rdpcfl_tff.errors import UserError

SPLITS = ("train", "validation", "test")

# Per split: inputs [N, ...] and labels [N].
Records = Mapping[str, tuple[np.ndarray, np.ndarray]]

# What the inputs are, and how a file holds them: raw numbers in C order, little-endian.
INPUT_TYPES: Mapping[str, np.dtype[Any]] = {
    "images": np.dtype("u1"),
    "features": np.dtype("<f4"),
}

FORMAT_VERSION = 2
WAY_OUT = "free space there, or choose another folder for the silo store"
_MANIFEST = "manifest.json"
_SIMULATION = "simulation.json"


@dataclass(frozen=True)
class Normalisation:
    """A client feeds its model (pixel / 255 - mean) / std, or (feature - mean) / std.

    Both are public constants, never computed from the clients' records: that would leak.
    """

    mean: float
    std: float


# Mean and deviation of MNIST's pixels as they are commonly published, here for every grey set.
_GREY = Normalisation(mean=0.1307, std=0.3081)
_COLOUR = Normalisation(mean=0.5, std=0.5)  # to [-1, 1]
_UNCHANGED = Normalisation(mean=0.0, std=1.0)


def public_normalisation(kind: str, shape: tuple[int, ...]) -> Normalisation:
    """The constants where nobody has given better ones; features stay as they are."""
    if kind == "features":
        return _UNCHANGED
    return _GREY if shape[-1] == 1 else _COLOUR


@dataclass(frozen=True)
class ClientBudget:
    """What one client spends if it differs from the others; None stands for the run's value."""

    epsilon: float | None = None
    delta: float | None = None
    batch_size: int | None = None


@dataclass(frozen=True)
class SiloStore:
    """An opened store. Client i's records are the raw files in `client_directories[i]`."""

    path: Path
    dataset: str
    kind: str
    """What the inputs are: "images" (uint8) or "features" (float32)."""
    input_shape: tuple[int, ...]
    num_classes: int
    normalisation: Normalisation
    client_names: tuple[str, ...]
    client_sizes: dict[str, tuple[int, ...]]
    """Records per split and client, e.g. `client_sizes["train"][0]`."""
    budgets: tuple[ClientBudget, ...]
    true_clusters: tuple[int, ...]
    """The cluster of each client; empty if nobody knows it. For the simulation only: no algorithm
    but the oracle reads it."""
    manifest: dict[str, Any]
    simulation: dict[str, Any]

    @property
    def num_clients(self) -> int:
        """The number of clients of all clusters together."""
        return len(self.client_names)

    @property
    def client_directories(self) -> tuple[str, ...]:
        """The folder of each client, as the TFF worker reads it."""
        path = self.path.absolute()
        return tuple(str(path / client_directory(i)) for i in range(self.num_clients))

    @property
    def sha256(self) -> str:
        """The digest of all that decides a run on this store: records, shape, budgets."""
        return _digest(self.manifest)

    @classmethod
    def open(cls, path: Path) -> "SiloStore":
        """Opens a store without reading its records; `verify` does that."""
        manifest = _read_sealed(path / _MANIFEST)
        simulation = _read_sealed(path / _SIMULATION)
        try:
            clients = manifest["clients"]
            true_clusters = tuple(simulation["true_clusters"])
            if true_clusters and len(true_clusters) != len(clients):
                raise ValueError("number of clients")
            kind = _kind(manifest)
            return cls(
                path=path,
                dataset=manifest["dataset"],
                kind=kind,
                input_shape=tuple(manifest[_SHAPES[kind]]),
                num_classes=manifest["num_classes"],
                normalisation=Normalisation(**manifest["normalisation"]),
                client_names=tuple(client.get("name", str(i)) for i, client in enumerate(clients)),
                client_sizes={
                    split: tuple(client[split]["records"] for client in clients) for split in SPLITS
                },
                budgets=tuple(ClientBudget(**client.get("budget", {})) for client in clients),
                true_clusters=true_clusters,
                manifest=manifest,
                simulation=simulation,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(path, f"{_MANIFEST} or {_SIMULATION} is damaged: {error}") from None

    def verify(self) -> None:
        """Raises a `UserError` that names the first file whose bytes are not the manifest's."""
        input_size = math.prod(self.input_shape) * INPUT_TYPES[self.kind].itemsize
        record_sizes = {self.kind: input_size, "labels": 1}
        for client, splits in enumerate(self.manifest["clients"]):
            for split, (kind, size) in itertools.product(SPLITS, record_sizes.items()):
                path = self.path / client_directory(client) / f"{split}.{kind}"
                try:
                    content = np.fromfile(path, np.uint8)
                except OSError as error:
                    raise damaged(path, error.strerror) from None
                expected = splits[split]
                if content.size != size * expected["records"]:
                    raise damaged(path, f"{content.size} bytes for {expected['records']} records")
                if sha256(content) != expected[f"{kind}_sha256"]:
                    raise damaged(path, "changed since the store was built")

    def read(self, client: int, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Inputs [N, ...] and labels [N] (uint8) of one client."""
        folder = self.path / client_directory(client)
        inputs = np.fromfile(folder / f"{split}.{self.kind}", INPUT_TYPES[self.kind])
        labels = np.fromfile(folder / f"{split}.labels", np.uint8)
        return inputs.reshape(-1, *self.input_shape), labels


# A manifest has one of these two keys.
_SHAPES = {"images": "image_shape", "features": "feature_shape"}


def _kind(manifest: Mapping[str, Any]) -> str:
    return "images" if "image_shape" in manifest else "features"


def client_directory(client: int) -> str:
    """The name of a client's folder in a store."""
    return f"client_{client:03d}"


def header(
    dataset: str,
    kind: str,
    shape: tuple[int, ...],
    num_classes: int,
    normalisation: Normalisation,
) -> dict[str, Any]:
    """What a manifest says about all clients together."""
    return {
        "format_version": FORMAT_VERSION,
        "dataset": dataset,
        _SHAPES[kind]: list(shape),
        "num_classes": num_classes,
        "normalisation": {"mean": normalisation.mean, "std": normalisation.std},
    }


def write(
    building: Path,
    manifest_header: Mapping[str, Any],
    clients: Iterable[tuple[Mapping[str, Any], Records]],
    simulation: Mapping[str, Any],
) -> None:
    """Writes the files of a store; of each client what its entry says beside its records."""
    kind = _kind(manifest_header)
    entries: list[dict[str, Any]] = []
    for about, records in clients:
        folder = building / client_directory(len(entries))
        folder.mkdir(parents=True)
        entry = dict(about)
        for split, (inputs, labels) in records.items():
            storage.write_file(folder / f"{split}.{kind}", [inputs])
            storage.write_file(folder / f"{split}.labels", [labels])
            entry[split] = {
                "records": len(labels),
                f"{kind}_sha256": sha256(inputs),
                "labels_sha256": sha256(labels),
            }
        entries.append(entry)
    _write_sealed(building / _MANIFEST, {**manifest_header, "clients": entries})
    _write_sealed(building / _SIMULATION, {"format_version": FORMAT_VERSION, **simulation})


def make(directory: Path, write_into: Callable[[Path], None]) -> None:
    """Makes the folder complete or not at all; the caller holds its lock."""
    building = storage.partial(directory)
    with storage.explained(directory.parent, WAY_OUT):
        shutil.rmtree(building, ignore_errors=True)  # left by a process that was killed
        try:
            write_into(building)
            os.replace(building, directory)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise


def is_store(directory: Path) -> bool:
    """Whether a store lies there, whole or damaged."""
    return (directory / _MANIFEST).exists()


def _write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """Writes JSON together with its own digest, so that an edit is noticed."""
    storage.write_file(path, [_to_json({**content, "sha256": _digest(content)})])


def _read_sealed(path: Path) -> dict[str, Any]:
    """What `_write_sealed` wrote; a UserError if it is not."""
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise damaged(path, error.strerror) from None
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"not JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format_version") != FORMAT_VERSION:
        raise damaged(path, f"not of format version {FORMAT_VERSION}, which this program reads")
    digest = content.pop("sha256", None)
    if digest != _digest(content):
        raise damaged(path, "edited or damaged")
    return content


def _digest(content: Mapping[str, Any]) -> str:
    return sha256(np.frombuffer(_to_json(content), np.uint8))


def _to_json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def damaged(path: Path, fault: str) -> UserError:
    """The error for a store whose files are not what they were."""
    return UserError(f"{path}: {fault}. Delete this silo store and run again to rebuild it")

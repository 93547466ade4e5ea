"""A silo store from records of your own: checked client by client, split, written once.

Not part of the paper. The records go into the clients' silos and nowhere else; a wrong one is
refused with the name of the file or the client that has it. What a client has of its own beside
its records (its budget) is public; its true cluster is the simulation's knowledge.
"""

import dataclasses
import math
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rdpcfl_tff import storage
from rdpcfl_tff.data import store
from rdpcfl_tff.data.store import ClientBudget, Normalisation, Records, SiloStore
from rdpcfl_tff.errors import UserError

# A client's records that nobody has split yet.
UNSPLIT = "all"

# Labels are kept as one byte each.
LARGEST_NUM_CLASSES = 256


@dataclasses.dataclass(frozen=True)
class Description:
    """What all clients' records have in common; public.

    Attributes:
        dataset: A name for the records of all clients together.
        kind: "images" (uint8) or "features" (float32).
        shape: Of one record; height, width and channels for images.
        num_classes: Labels are whole numbers below it.
        normalisation: None for the usual constants.
        class_names: In the order of the labels; empty if the labels are all the names there are.
    """

    dataset: str
    kind: str
    shape: tuple[int, ...]
    num_classes: int
    normalisation: Normalisation | None = None
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.shape or not all(_is_count(size) for size in self.shape):
            raise UserError(
                f"{self.dataset}: {list(self.shape)} is no shape of a record: give a list of "
                "positive whole numbers, such as [28, 28, 1]"
            )
        if self.kind == "images" and len(self.shape) != 3:
            raise UserError(
                f"{self.dataset}: image_shape {list(self.shape)} must be height, width and "
                "channels, such as [28, 28, 1]; records of another kind have a feature_shape"
            )
        if not _is_count(self.num_classes) or not 2 <= self.num_classes <= LARGEST_NUM_CLASSES:
            raise UserError(
                f"{self.dataset}: num_classes is {self.num_classes!r}, and must be a whole number "
                f"from 2 to {LARGEST_NUM_CLASSES} (there is no regression)"
            )


@dataclasses.dataclass(frozen=True)
class ClientSettings:
    """What one client has beside its records."""

    true_cluster: int | None = None
    budget: ClientBudget = dataclasses.field(default_factory=ClientBudget)

    @classmethod
    def checked(cls, origin: str, values: Mapping[str, Any]) -> "ClientSettings":
        """From fields of the user's, refused with `origin` and the name of a field if wrong."""
        unknown = set(values) - {"true_cluster", *ClientBudget.__annotations__}
        if unknown:
            raise UserError(
                f"{origin}: unknown field {sorted(unknown)[0]!r}; a client can have true_cluster, "
                "epsilon, delta and batch_size"
            )
        given = {name: value for name, value in values.items() if value is not None}
        for name, value, is_right, right in (
            ("true_cluster", given.get("true_cluster", 0), _is_index, "a whole number from 0 on"),
            ("epsilon", given.get("epsilon", 1), _is_positive, "a number above 0"),
            ("delta", given.get("delta", 0.5), _is_share, "a number between 0 and 1"),
            ("batch_size", given.get("batch_size", 1), _is_count, "a whole number above 0"),
        ):
            if not is_right(value):
                raise UserError(f"{origin}: {name} is {value!r}, and must be {right}")
        true_cluster = given.pop("true_cluster", None)
        return cls(true_cluster, ClientBudget(**given))


def build(
    description: Description,
    clients: Mapping[str, ClientSettings],
    read: Callable[[str], Records],
    seed: int,
    directory: Path,
) -> SiloStore:
    """Builds the store, or opens and verifies it if it is there; `directory` names its contents.

    Args:
        description: What all records have in common.
        clients: The settings of each client, by its name.
        read: A client's records by its name: of `UNSPLIT`, or of every split.
        seed: Decides the splits, one client's without regard to the others.
        directory: Where the store is, or will be. Only its owner may look into it.
    """
    with storage.locked(directory, store.WAY_OUT):
        if not store.is_store(directory):
            simulation = {
                "true_clusters": _true_clusters(description, clients),
                "split_seed": seed,
            }
            entries = (
                (
                    {"name": name, "budget": _given(settings.budget)},
                    _split(_checked(description, f"client {name}", read(name)), seed, name),
                )
                for name, settings in clients.items()
            )

            def write(building: Path) -> None:
                building.mkdir(mode=0o700)
                store.write(building, _header(description), entries, simulation)

            store.make(directory, write)
            return SiloStore.open(directory)
    opened = SiloStore.open(directory)
    opened.verify()
    return opened


def default_model(kind: str) -> str:
    """The model for clients' records when none is asked for."""
    return "cnn" if kind == "images" else "mlp"


def _header(description: Description) -> dict[str, Any]:
    normalisation = description.normalisation or store.public_normalisation(
        description.kind, description.shape
    )
    common = store.header(
        description.dataset,
        description.kind,
        description.shape,
        description.num_classes,
        normalisation,
    )
    return common | {"class_names": list(description.class_names)}


def _true_clusters(description: Description, clients: Mapping[str, ClientSettings]) -> list[int]:
    """All of them, numbered from 0 without gaps; empty if no client has one."""
    known = {
        name: settings.true_cluster
        for name, settings in clients.items()
        if settings.true_cluster is not None
    }
    without = sorted(set(clients) - set(known))
    if known and without:
        raise UserError(
            f"{description.dataset}: client {without[0]} has no true_cluster, and others have: "
            "give all clients one, or none"
        )
    numbers = sorted(set(known.values()))
    return [numbers.index(cluster) for cluster in known.values()]


def _checked(description: Description, origin: str, records: Records) -> Records:
    return {
        split: (
            _checked_inputs(description, origin, np.asarray(inputs)),
            _checked_labels(description, origin, np.asarray(labels), len(inputs)),
        )
        for split, (inputs, labels) in records.items()
    }


def _checked_inputs(description: Description, origin: str, inputs: np.ndarray) -> np.ndarray:
    shape = description.shape
    if description.kind == "images" and inputs.shape[1:] == shape[:2] and shape[2] == 1:
        inputs = inputs[..., np.newaxis]  # grey images are often kept without a channel
    if inputs.shape[1:] != shape or inputs.ndim != len(shape) + 1:
        raise UserError(
            f"{origin}: x has shape {inputs.shape}, and must be [N, {', '.join(map(str, shape))}]: "
            "correct the array, or the shape in the manifest"
        )
    if description.kind == "images":
        if inputs.dtype != np.uint8:
            raise UserError(
                f"{origin}: x holds {inputs.dtype}, and images are uint8 from 0 to 255: convert "
                "them, or give a feature_shape in place of the image_shape"
            )
        return inputs
    if inputs.dtype.kind not in "biuf":
        raise UserError(f"{origin}: x holds {inputs.dtype}, and features must be numbers")
    # A number that is too large for float32 becomes infinite, and is told so below.
    with np.errstate(over="ignore"):
        features = inputs.astype(store.INPUT_TYPES["features"])
    if not np.isfinite(features).all():
        record = int(np.argwhere(~np.isfinite(features))[0][0])
        raise UserError(
            f"{origin}: x has a NaN or an infinite number in record {record}: fill it in, or "
            "leave the record out"
        )
    return features


def _checked_labels(
    description: Description, origin: str, labels: np.ndarray, num_records: int
) -> np.ndarray:
    if labels.dtype.kind not in "iu":
        raise UserError(
            f"{origin}: y holds {labels.dtype}, and labels must be whole numbers from 0 to "
            f"{description.num_classes - 1}: there is no regression"
        )
    if labels.shape != (num_records,):
        raise UserError(
            f"{origin}: y has shape {labels.shape}, and x has {num_records} records: y must be "
            f"[{num_records}]"
        )
    wrong = labels[(labels < 0) | (labels >= description.num_classes)]
    if wrong.size:
        raise UserError(
            f"{origin}: y has the label {wrong[0]}, and must be from 0 to "
            f"{description.num_classes - 1}: correct it, or num_classes"
        )
    return labels.astype(np.uint8)


def _split(records: Records, seed: int, client: str) -> Records:
    """70 % to train on, 10 % to validate and 20 % to test with, unless they are split already."""
    if UNSPLIT not in records:
        for split in store.SPLITS:
            if len(records[split][1]) < (2 if split == "train" else 1):
                raise UserError(
                    f"client {client}: {len(records[split][1])} records to {split} with; a client "
                    "needs at least 2 to train and 1 to validate and to test with"
                )
        return records
    inputs, labels = records[UNSPLIT]
    validation, test = max(1, len(labels) // 10), max(1, len(labels) // 5)
    if len(labels) < validation + test + 2:
        raise UserError(
            f"client {client}: has {len(labels)} records; a client needs at least 4: add records, "
            "or leave the client out"
        )
    # The name, so that a client's split does not depend on who else takes part. RandomState,
    # because NumPy promises never to change its stream.
    random = np.random.RandomState([seed, zlib.crc32(client.encode())])
    order = random.permutation(len(labels))
    parts = {
        "train": order[validation + test :],
        "validation": order[:validation],
        "test": order[validation : validation + test],
    }
    return {split: (inputs[chosen], labels[chosen]) for split, chosen in parts.items()}


def _given(budget: ClientBudget) -> dict[str, Any]:
    return {name: value for name, value in vars(budget).items() if value is not None}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0 and math.isfinite(value)


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 < value < 1


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_count(value: Any) -> bool:
    return _is_index(value) and value > 0

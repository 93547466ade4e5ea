"""Training on clients' records from Python: `rdpcfl_tff.run(clients, ...)`.

Not part of the paper: the same store, driver and results folder as `experiments.main`. The records
are private; they go into the clients' silos and nowhere else.
"""

import dataclasses
import hashlib
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.data import cache, own_store
from rdpcfl_tff.data.own_store import UNSPLIT, ClientSettings, Description
from rdpcfl_tff.data.store import SiloStore
from rdpcfl_tff.errors import UserError

if TYPE_CHECKING:
    import tensorflow as tf

_NAMES_OF_LABELS = ("y", "label")


@dataclasses.dataclass(frozen=True, eq=False)
class Client:
    """One client's records, and what it has of its own.

    Attributes:
        x: [N, ...]: uint8 images, or features of any shape.
        y: Labels [N], whole numbers from 0 on.
        true_cluster: For simulations that know it; all clients have one, or none.
        epsilon: Its own budget; None for the run's.
        delta: The other half of its own budget.
        batch_size: Its own b.
    """

    x: Any
    y: Any
    true_cluster: int | None = None
    epsilon: float | None = None
    delta: float | None = None
    batch_size: int | None = None


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What came out of a run.

    Attributes:
        path: The results folder, with everything that the run has written.
        summary: As in `summary.json`; what only a simulation may look at begins with `simulation_`.
    """

    path: pathlib.Path
    summary: dict[str, Any]

    @property
    def assignment(self) -> dict[str, int]:
        """The number of each client's model, by the client's name."""
        return self.summary["assignment"]

    @property
    def models(self) -> "list[tf.keras.Model]":
        """The cluster models, ready for use: raw records in, probabilities of the classes out."""
        from rdpcfl_tff.training import export

        return export.cluster_models(self.path)

    def export(self, folder: str | pathlib.Path) -> None:
        """Writes the models that are in use as SavedModels, with a model card."""
        from rdpcfl_tff.training import export

        export.export(self.path, pathlib.Path(folder))


def run(
    clients: Any,
    model: Any = None,
    config: RunConfig | None = None,
    output_dir: str | pathlib.Path | None = None,
    *,
    num_classes: int | None = None,
    cache_dir: str | pathlib.Path | None = None,
) -> RunResult:
    """Trains one model per cluster of the clients; the same call goes on with an interrupted run.

    Args:
        clients: A list, or a mapping from names, of `(x, y)` arrays, `Client`s or finite tf.data
            datasets of `(x, y)`; or a TFF `ClientData`.
        model: A Keras model that gives logits, a function from (input shape, number of classes,
            seed) to one, or a name as for `--model`; by default the CNN for images, and a small
            dense network for other records.
        config: Everything else; its `dataset` is a name of your choice.
        output_dir: The results folder; by default a new one below `results`.
        num_classes: By default one more than the largest label of any client. Give it if even that
            must not be learnt from the records.
        cache_dir: Where the silos are kept; by default where `experiments.main` keeps them.
    """
    config = config or RunConfig()
    store = _store(_named(clients), config, num_classes, cache_dir)
    # TensorFlow takes seconds to import: wrong records are told before it.
    import tensorflow as tf

    from rdpcfl_tff.models import catalogue
    from rdpcfl_tff.training import driver

    if model is None:
        model = own_store.default_model(store.kind)
    elif not isinstance(model, str):
        if config.algorithm == "ifca" and isinstance(model, tf.keras.Model):
            raise UserError(
                "IFCA begins with several models: give a function that builds one from a seed"
            )
        model = catalogue.register(model)
    config = dataclasses.replace(
        config, model=model, cluster_sizes=(), shift="none", data_sha256=store.sha256
    )
    name = f"{config.algorithm}-{config.dataset}-{time.strftime('%Y%m%d-%H%M%S')}"
    path = pathlib.Path(output_dir) if output_dir else pathlib.Path("results") / name
    summary = driver.run(config, store, path, ["rdpcfl_tff.run"])
    assert summary is not None  # only a run that was to halt has none
    return RunResult(path, summary)


def _store(
    clients: Mapping[str, Client],
    config: RunConfig,
    num_classes: int | None,
    cache_dir: str | pathlib.Path | None,
) -> SiloStore:
    first = next(iter(clients.values()))
    is_images = first.x.dtype == np.uint8 and first.x.ndim in (3, 4)
    shape = first.x.shape[1:] if first.x.ndim != 3 or not is_images else (*first.x.shape[1:], 1)
    if num_classes is None:
        num_classes = 1 + max(1, *(int(client.y.max()) for client in clients.values()))
    description = Description(
        config.dataset, "images" if is_images else "features", shape, num_classes
    )
    settings = {
        name: ClientSettings.checked(
            f"client {name}",
            {
                field: _plain(getattr(client, field))
                for field in ("true_cluster", "epsilon", "delta", "batch_size")
            },
        )
        for name, client in clients.items()
    }
    digest = hashlib.sha256(repr((description, settings, config.seed)).encode())
    for client in clients.values():
        digest.update(np.ascontiguousarray(client.x).data)
        digest.update(np.ascontiguousarray(client.y).data)
    stores = pathlib.Path(cache_dir) if cache_dir else cache.default_folder()
    return own_store.build(
        description,
        settings,
        lambda name: {UNSPLIT: (clients[name].x, clients[name].y)},
        config.seed,
        stores / "silos" / f"own-{digest.hexdigest()[:16]}",
    )


def _plain(value: Any) -> Any:
    """A number of NumPy's as Python's own."""
    return value.item() if isinstance(value, np.generic) else value


def _named(clients: Any) -> dict[str, Client]:
    """Every client as arrays, under its name or its number."""
    if hasattr(clients, "create_tf_dataset_for_client"):  # a TFF ClientData
        named = {
            str(name): clients.create_tf_dataset_for_client(name) for name in clients.client_ids
        }
    elif isinstance(clients, Mapping):
        named = {str(name): client for name, client in clients.items()}
    elif isinstance(clients, Sequence):
        named = {str(number): client for number, client in enumerate(clients)}
    else:
        raise UserError(
            f"clients is a {type(clients).__name__}, and must be a list, a mapping or a ClientData"
        )
    if not named:
        raise UserError("there is no client")
    return {name: _as_arrays(name, client) for name, client in named.items()}


def _as_arrays(name: str, client: Any) -> Client:
    if hasattr(client, "as_numpy_iterator"):
        client = Client(*_from_dataset(name, client))
    elif not isinstance(client, Client):
        try:
            x, y = client
            client = Client(x, y)
        except (TypeError, ValueError):
            raise UserError(
                f"client {name} is a {type(client).__name__}, and must be (x, y), a Client or a "
                "tf.data dataset"
            ) from None
    x, y = np.asarray(client.x), np.asarray(client.y)
    if x.dtype.kind not in "biuf" or y.dtype.kind not in "biuf" or not x.ndim or not y.size:
        raise UserError(f"client {name}: x and y must be arrays of numbers, of at least 4 records")
    return dataclasses.replace(client, x=x, y=y)


def _from_dataset(name: str, dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    """All records of a tf.data dataset, of single records or of batches."""
    if int(dataset.cardinality()) == -1:  # tf.data.INFINITE_CARDINALITY
        raise UserError(f"client {name}: its dataset never ends; remove repeat()")
    pairs = [_pair(name, element) for element in dataset.as_numpy_iterator()]
    if not pairs:
        raise UserError(f"client {name}: its dataset is empty")
    inputs, labels = zip(*pairs, strict=True)
    batched = np.ndim(labels[0]) > 0
    if batched:
        return np.concatenate(inputs), np.concatenate(labels)
    return np.stack(inputs), np.stack(labels)


def _pair(name: str, element: Any) -> tuple[Any, Any]:
    """(x, y) from a pair, or from a mapping that has a label and one thing more."""
    if isinstance(element, Mapping) and len(element) == 2:
        labels = [key for key in element if key in _NAMES_OF_LABELS]
        if len(labels) == 1:
            (inputs,) = [value for key, value in element.items() if key != labels[0]]
            return inputs, element[labels[0]]
    elif isinstance(element, tuple) and len(element) == 2:
        return element
    raise UserError(
        f"client {name}: the elements of its dataset must be (x, y), or mappings of two of which "
        f"one is named {' or '.join(_NAMES_OF_LABELS)}"
    )

"""The cluster models of a finished run as Keras models that anybody can load and apply.

Not part of the paper. Raw records go in, probabilities come out: the public normalisation is a
layer. The models and the card are made from noised updates only; exact accuracies are private, and
stand in a file named `simulation_metrics.md`.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import tensorflow as tf

from rdpcfl_tff import storage
from rdpcfl_tff.errors import UserError
from rdpcfl_tff.federated.client_data import RecordFormat
from rdpcfl_tff.models.catalogue import build_model

_WAY_OUT = "choose another folder for the models"


def cluster_models(run: pathlib.Path) -> list[tf.keras.Model]:
    """All models of the run in the results folder `run`, by their number."""
    about = _read_json(run / "model.json")
    with np.load(run / "models.npz", allow_pickle=False) as saved:
        return [_keras_model(about, row, number) for number, row in enumerate(saved["models"])]


def export(run: pathlib.Path, folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes each model that a client uses as a SavedModel into a new folder, and the card."""
    summary = _read_json(run / "summary.json")
    models = cluster_models(run)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: choose another folder for the models")
    paths = []
    with storage.explained(folder, _WAY_OUT):
        folder.mkdir(parents=True, exist_ok=True)
        for number in sorted(set(summary["assignment"].values())):
            paths.append(folder / models[number].name)
            models[number].save(paths[-1], save_format="tf", include_optimizer=False)
        storage.write_atomically(folder / "MODEL_CARD.md", [_card(run, summary).encode()])
        storage.write_atomically(folder / "simulation_metrics.md", [_metrics(run).encode()])
    return paths


def _keras_model(about: Mapping[str, Any], parameters: np.ndarray, number: int) -> tf.keras.Model:
    records = RecordFormat(**about["records"])
    shape = tuple(records.input_shape)
    model = build_model(about["model"], shape, about["num_classes"], seed=0)
    sizes = [int(tf.size(weight)) for weight in model.trainable_weights]
    parts = np.split(parameters, np.cumsum(sizes)[:-1])
    for weight, part in zip(model.trainable_weights, parts, strict=True):
        weight.assign(part.reshape(weight.shape))
    dtype = "uint8" if records.kind == "images" else "float32"
    inputs = tf.keras.Input(shape, dtype=dtype, name=records.kind)
    scaled = tf.keras.layers.Rescaling(
        1 / (records.largest * records.std), -records.mean / records.std, name="normalisation"
    )(inputs)
    probabilities = tf.keras.layers.Softmax(name="probabilities")(model(scaled))
    return tf.keras.Model(inputs, probabilities, name=f"cluster_{number}")


def _card(run: pathlib.Path, summary: Mapping[str, Any]) -> str:
    config = _read_json(run / "config.json")["config"]
    about = _read_json(run / "model.json")
    clusters: dict[int, list[str]] = {}
    for client, number in summary["assignment"].items():
        clusters.setdefault(number, []).append(client)
    records = about["records"]
    scale = "255 x" if records["kind"] == "images" else ""
    inputs = "uint8 images" if records["kind"] == "images" else "float32 features"
    rows = [
        f"| `cluster_{number}` | {len(clusters[number])} | {', '.join(clusters[number])} |"
        for number in sorted(clusters)
    ]
    names = ", ".join(about["class_names"]) or "their numbers"
    return "\n".join(
        [
            f"# Model card: {config['algorithm']} on {config['dataset']}",
            "",
            f"{len(clusters)} models of the kind `{config['model']}`, one per cluster of clients, "
            f"trained by federated learning in {summary['rounds']} rounds.",
            "",
            "## Clusters",
            "| model | clients | which |",
            "|---|---|---|",
            *rows,
            "",
            "The clusters were found on noised updates and private selections. Whether they are "
            "the true ones, this card cannot say.",
            "",
            "## Data",
            f"- data set: `{config['dataset']}`, {len(summary['assignment'])} clients, seed "
            f"{config['seed']}",
            f"- SHA-256 of the silos: `{config.get('data_sha256') or 'a published data set'}`",
            f"- input: {inputs} of shape {records['input_shape']}, raw: the models themselves "
            f"subtract {scale} {records['mean']:g} and divide by {scale} {records['std']:g}",
            f"- output: probabilities of {about['num_classes']} classes; their names: {names}",
            "",
            "## Privacy",
            "```",
            (run / "privacy.txt").read_text().rstrip(),
            "```",
            "",
            "## Metrics",
            "In `simulation_metrics.md`. They are for simulations only: exact accuracies on the "
            "clients' own test records, which no budget covers. Keep that file back when the "
            "records are real.",
            "",
            "## Use",
            "```python",
            "import tensorflow as tf",
            f'model = tf.keras.models.load_model("cluster_{min(clusters)}")',
            f"probabilities = model(x)  # {inputs}, [N, "
            f"{', '.join(map(str, records['input_shape']))}]",
            "```",
            f"or `python -m experiments.predict --model=cluster_{min(clusters)} --data=FILE.npz`.",
            "",
            "A model is for clients whose data is like that of its cluster. It is a classifier, "
            "not calibrated, and not tested on anybody else.",
            "",
        ]
    )


def _metrics(run: pathlib.Path) -> str:
    clients = pd.read_csv(run / "simulation_clients.csv")
    rows = [
        f"| `cluster_{model}` | {len(group)} | {group['test_accuracy'].mean():.4f} | "
        f"{group['test_accuracy'].min():.4f} |"
        for model, group in clients.groupby("model")
    ]
    return "\n".join(
        [
            "# Metrics, for simulations only",
            "",
            "Exact test accuracies, computed on the clients' records without noise: private.",
            "",
            "| model | clients | mean test accuracy | worst client |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except OSError:
        raise UserError(
            f"{path} is missing: name the results folder of a finished run (one that an older "
            "version has written cannot be exported)"
        ) from None

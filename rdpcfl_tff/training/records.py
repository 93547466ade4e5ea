"""The results folder of one run: what was asked for, what happened, what came out.

What only a simulation may look at, exact accuracies and true clusters, has a name that begins with
`simulation_`: a file's, or a field's in the summary. All the rest a real server would know, too.
"""

import csv
import dataclasses
import importlib.metadata
import io
import json
import os
import pathlib
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rdpcfl_tff import storage
from rdpcfl_tff.algorithms.base import Clustering
from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.errors import UserError
from rdpcfl_tff.privacy import statement
from rdpcfl_tff.training.checkpoint import WAY_OUT

_PER_ROUND = ("metrics.csv", "assignments.csv", "simulation_metrics.csv")


class RunRecords:
    """Reads and writes one results folder; each row is written as soon as it is known."""

    def __init__(
        self,
        directory: pathlib.Path,
        config: RunConfig,
        command: Sequence[str],
        runtime: str = "worker",
    ):
        """Begins a new folder, or opens that of the same run to go on with it."""
        self.directory = directory
        written = {"runtime": runtime, "config": config.as_json()}
        if (directory / "config.json").exists():
            _check_same_run(directory, written)
        else:
            if directory.exists() and any(directory.iterdir()):
                raise UserError(
                    f"--output_dir={directory} is not empty and holds no run: choose another folder"
                )
            with storage.explained(directory, "choose another --output_dir"):
                directory.mkdir(parents=True, exist_ok=True)
            self._write_json(
                "config.json",
                {"command": list(command), "versions": _versions()} | written,
            )
        self._tensorboard = tf.summary.create_file_writer(str(directory / "simulation_tensorboard"))

    @property
    def key_path(self) -> pathlib.Path:
        """Where a noise key from the operating system is kept: beside the results, not in them."""
        return self.directory.with_name(self.directory.name + ".noise_key")

    @property
    def summary(self) -> dict[str, Any] | None:
        """What came out, if the run is finished."""
        path = self.directory / "summary.json"
        return json.loads(path.read_text()) if path.exists() else None

    def write_privacy(self, statements: Sequence[dict[str, Any]]) -> None:
        """What is promised to each client, for programs and for people."""
        self._write_json("privacy.json", {"statements": list(statements)})
        texts = [
            f"Clients {', '.join(map(str, one['clients']))}:\n{statement.as_text(one)}\n"
            for one in statements
        ]
        self._write("privacy.txt", "\n".join(texts).encode())

    def write_clustering(self, clustering: Clustering) -> None:
        """What the server made of round 1: the scores, the mixture, and the updates themselves."""
        content: dict[str, Any] = {
            "finding": clustering.count.sentence,
            "sure": clustering.confidence.sure,
            "ambiguous_clients": clustering.confidence.ambiguous_clients,
            "count": dataclasses.asdict(clustering.count),
            "switch_round": clustering.switch_round,
            "principal_components": clustering.components.coordinates[:, :2].tolist(),
            "responsibilities": clustering.responsibilities.tolist(),
        }
        if clustering.mixture is not None:
            content["mixture"] = {
                name: value.tolist() if isinstance(value, np.ndarray) else value
                for name, value in dataclasses.asdict(clustering.mixture).items()
                if name not in ("responsibilities", "separation_scores")
            }
        self._write_json("mixture.json", content)
        self._write_arrays("first_updates.npz", updates=clustering.updates)

    def first_updates(self) -> np.ndarray:
        """The updates that `write_clustering` kept."""
        with np.load(self.directory / "first_updates.npz", allow_pickle=False) as saved:
            return saved["updates"]

    def add_round(self, row: Mapping[str, object]) -> None:
        """One row of what the server knows after a round."""
        self._append("metrics.csv", row)

    def add_assignment(self, round_number: int, assignment: Sequence[int]) -> None:
        """The model that each client trained in the round."""
        models = {f"client_{client}": model for client, model in enumerate(assignment)}
        self._append("assignments.csv", {"round": round_number} | models)

    def add_simulation_round(self, row: Mapping[str, float]) -> None:
        """One row of what only a simulation knows after a round."""
        self._append("simulation_metrics.csv", row)
        with self._tensorboard.as_default(step=int(row["round"])):
            for name, value in row.items():
                if name != "round":
                    tf.summary.scalar(f"validation_accuracy/{name}", value)
        self._tensorboard.flush()

    def forget_after(self, round_number: int) -> None:
        """Drops the rows of rounds that a resumed run will write again."""
        for name in _PER_ROUND:
            path = self.directory / name
            if path.exists():
                with open(path, newline="") as file:
                    rows = list(csv.DictReader(file))
                self._write(
                    name, _table([row for row in rows if int(row["round"]) <= round_number])
                )

    def write_simulation_clients(self, rows: Sequence[Mapping[str, object]]) -> None:
        """The final state of every client, with its true cluster and its test accuracy."""
        self._write("simulation_clients.csv", _table(rows))

    def write_models(self, models: np.ndarray, about: Mapping[str, object]) -> None:
        """The final cluster models, one flat row of parameters each, and how to use them."""
        self._write_arrays("models.npz", models=models)
        self._write_json("model.json", about)

    def write_summary(self, summary: Mapping[str, object]) -> None:
        """What came out; the same command gives the same bytes."""
        self._write_json("summary.json", summary)

    def _write_json(self, name: str, content: Mapping[str, object]) -> None:
        self._write(name, (json.dumps(content, indent=2) + "\n").encode())

    def _write_arrays(self, name: str, **arrays: np.ndarray) -> None:
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        self._write(name, buffer.getvalue())

    def _write(self, name: str, content: bytes) -> None:
        with storage.explained(self.directory, WAY_OUT):
            storage.write_atomically(self.directory / name, [content])

    def _append(self, name: str, row: Mapping[str, object]) -> None:
        path = self.directory / name
        with storage.explained(self.directory, WAY_OUT), open(path, "ab") as file:
            file.write(_table([row], header=file.tell() == 0))


def _versions() -> dict[str, str]:
    """What decides the last bits of a result, beside the config."""
    distributions = (
        "tensorflow",
        "tensorflow-federated",
        "tensorflow-privacy",
        "dp-accounting",
        "scikit-learn",
        "numpy",
    )
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "TensorFlow's default"),
    } | {name: importlib.metadata.version(name) for name in distributions}


def _check_same_run(directory: pathlib.Path, written: Mapping[str, Any]) -> None:
    before = json.loads((directory / "config.json").read_text())
    different = [
        f"{name} was {before['config'].get(name)}, now {value}"
        for name, value in written["config"].items()
        if before["config"].get(name) != value
    ]
    # Runtimes agree to float accuracy, and a run that is gone on with is to agree in every bit.
    if before.get("runtime") != written["runtime"]:
        different.append(f"runtime was {before.get('runtime')}, now {written['runtime']}")
    if different:
        raise UserError(
            f"--output_dir={directory} holds another run ({'; '.join(different)}): give its "
            "flags to go on with it, or choose another folder"
        )


def _table(rows: Sequence[Mapping[str, object]], header: bool = True) -> bytes:
    text = io.StringIO(newline="")
    if rows:
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        if header:
            writer.writeheader()
        writer.writerows(rows)
    return text.getvalue().encode()

"""The table of a sweep: one row per finished run, for figures, tables and the report.

The sweep keeps it as `simulation_sweep.parquet` and, for people, `simulation_sweep.csv`. It holds
exact accuracies, which only a simulation may look at: hence the names.
"""

import hashlib
import json
import math
import pathlib

import pandas as pd

from experiments.sweep_folder import RUNS
from rdpcfl_tff import storage
from rdpcfl_tff.config import ALGORITHMS
from rdpcfl_tff.errors import UserError

TABLE = "simulation_sweep"

# Only these two look for clusters.
CLUSTERING = ("rdpcfl", "ifca")

_ACCURACIES = ("mean", "minority", "worst")


def load(folder: pathlib.Path) -> pd.DataFrame:
    """The table of the sweep in `folder`, a row per finished run, sorted by the run's folder.

    Columns:
        algorithm, dataset, shift, epsilon (inf: not private), seed: what the sweep varies.
        model, cluster_sizes (text such as "3,6,6,6"), samples_per_client, delta, rounds,
            batch_size, learning_rate, clip_norm, ...: every other field of `RunConfig`, by its
            name there; a field that is None in all runs is None here, one that is None in some is
            NaN there.
        test_accuracy_mean, test_accuracy_worst, test_accuracy_minority: over the clients, exact.
        exact (bool), misplaced_clients, minority_found (bool): the final partition against the
            true clusters; misplaced_clients is 0 if exact.
        stopped: only if a run was told to end after round 1 if in doubt, and did; its
            accuracies are then NaN.
        models, models_in_use, private (bool), epsilon_spent (inf: not private).
        run_folder: where the run's records are, relative to `folder`.
        hash: SHA-256 of the run's summary.json.
    """
    path = folder / f"{TABLE}.parquet"
    if not path.exists():
        raise UserError(f"{folder} holds no finished run of a sweep: {path.name} is missing")
    return pd.read_parquet(path)


def collect(folder: pathlib.Path) -> pd.DataFrame:
    """Reads the records of every finished run below `folder`, and writes the table of them."""
    rows = [_row(folder, path.parent) for path in sorted((folder / RUNS).glob("*/summary.json"))]
    table = pd.DataFrame(rows)
    if rows:
        with storage.explained(folder, "free space there, then give the same command again"):
            storage.write_atomically(folder / f"{TABLE}.parquet", [table.to_parquet(index=False)])
            storage.write_atomically(
                folder / f"{TABLE}.csv", [table.to_csv(index=False, lineterminator="\n").encode()]
            )
    return table


def spread(values: pd.Series) -> str:
    """The mean and, of several values, their standard deviation."""
    return f"{values.mean():.3f}" + (f" ± {values.std():.3f}" if len(values) > 1 else "")


def as_text(runs: pd.DataFrame) -> str:
    """A line per setting and algorithm over its seeds, in markdown."""
    header = ["data set", "shift", "epsilon", "algorithm", "runs"]
    rows = [[*header, "mean of clients", "minority", "worst client", "true clusters"]]
    ordered = runs.assign(algorithm=pd.Categorical(runs["algorithm"], ALGORITHMS))
    for (dataset, shift, epsilon, algorithm), group in ordered.groupby(
        ["dataset", "shift", "epsilon", "algorithm"], observed=True
    ):
        found = f"{group['exact'].sum()} of {len(group)}" if algorithm in CLUSTERING else ""
        rows.append(
            [
                *(dataset, shift, f"{epsilon:g}", algorithm, str(len(group))),
                *(spread(group[f"test_accuracy_{name}"]) for name in _ACCURACIES),
                found,
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |"
        for row in rows
    )


def run_hash(run_folder: pathlib.Path) -> str:
    """What a number in a table is traced back by: the SHA-256 of the run's summary.

    It holds no path and no time, so that the same run in another folder has the same hash.
    """
    return hashlib.sha256((run_folder / "summary.json").read_bytes()).hexdigest()


def _row(folder: pathlib.Path, run_folder: pathlib.Path) -> dict[str, object]:
    config = json.loads((run_folder / "config.json").read_text())["config"]
    summary = json.loads((run_folder / "summary.json").read_text())
    accuracy = summary.pop("simulation_test_accuracy") or {}  # none if the run was stopped
    partition = summary.pop("simulation_partition", {})
    return (
        config
        | {
            "epsilon": float(config["epsilon"]),
            "cluster_sizes": ",".join(map(str, config["cluster_sizes"])),
        }
        | {f"test_accuracy_{name}": accuracy.get(name, math.nan) for name in _ACCURACIES}
        | partition
        | summary
        | {"epsilon_spent": summary["epsilon_spent"] if summary["private"] else float("inf")}
        | {
            "run_folder": run_folder.relative_to(folder).as_posix(),
            "hash": run_hash(run_folder),
        }
    )

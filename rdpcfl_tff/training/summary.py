"""What comes out of a run, for `summary.json` and the files beside it.

Exact accuracies and true clusters are for simulations only; they have names that begin with
`simulation_`.
"""

import dataclasses

import numpy as np

from rdpcfl_tff.algorithms.base import State
from rdpcfl_tff.clustering.matching import match_partition
from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.data.store import SiloStore
from rdpcfl_tff.federated.client_data import RecordFormat
from rdpcfl_tff.federated.federation import Federation

_UNKNOWN_CLUSTERS = (
    "the true clusters are not known: whether the right ones were found, and the accuracy of the "
    "smallest one, are left out"
)


def summary_of(
    config: RunConfig,
    store: SiloStore,
    federation: Federation,
    state: State,
    accuracies: np.ndarray | None = None,
    stopped: bool = False,
) -> dict[str, object]:
    """What came out; without accuracies if the run stopped after round 1."""
    plan = federation.plan
    client_rounds = sum(done.first_round + done.later_rounds for done in federation.done)
    summary: dict[str, object] = {
        "algorithm": config.algorithm,
        "dataset": config.dataset,
        "rounds": state.round_number,
        "private": plan.private,
        "epsilon_spent": (plan.epsilon_spent(federation.done) if plan.private else None),
        "models": len(state.models),
        "models_in_use": len(set(state.assignment)),
        "collapsed": len(set(state.assignment)) == 1 < len(state.models),
        "missed_client_rounds": state.round_number * federation.num_clients - client_rounds,
        "stopped": stopped,
        "assignment": dict(zip(store.client_names, state.assignment, strict=True)),
        "simulation_test_accuracy": (
            None if accuracies is None else accuracy_summary(store, accuracies)
        ),
    }
    if not store.true_clusters:
        return summary | {"simulation_note": _UNKNOWN_CLUSTERS}
    found = match_partition(state.assignment, store.true_clusters)
    return summary | {
        "simulation_partition": {
            "exact": found.exact,
            "misplaced_clients": found.misplaced,
            "minority_found": found.minority_found,
        },
    }


def accuracy_summary(store: SiloStore, accuracies: np.ndarray) -> dict[str, float]:
    """Mean, worst client, and mean of the minority: the clients of the smallest true cluster."""
    summary = {"mean": float(np.nanmean(accuracies)), "worst": float(np.nanmin(accuracies))}
    if store.true_clusters:
        clusters = np.array(store.true_clusters)
        minority = np.argmin(np.bincount(clusters))
        summary["minority"] = float(np.nanmean(accuracies[clusters == minority]))
    return summary


def about_model(config: RunConfig, store: SiloStore) -> dict[str, object]:
    """What it takes to build the model again, and to feed it; public."""
    return {
        "model": config.model,
        "num_classes": store.num_classes,
        "class_names": store.manifest.get("class_names", []),
        "records": dataclasses.asdict(RecordFormat.of(store)),
    }


def client_rows(
    store: SiloStore, state: State, test_accuracies: np.ndarray
) -> list[dict[str, object]]:
    """The final state of every client."""
    rows: list[dict[str, object]] = [{"client": client} for client in range(store.num_clients)]
    for row, true_cluster in zip(rows, store.true_clusters, strict=False):
        row["true_cluster"] = true_cluster  # left out where nobody knows it
    for row, model, accuracy in zip(rows, state.assignment, test_accuracies, strict=True):
        row.update(model=model, test_accuracy=accuracy)
    return rows

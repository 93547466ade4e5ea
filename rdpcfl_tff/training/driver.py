"""The loop over rounds: from a config and its silos to trained cluster models and their records.

Asks the algorithm for one round after the other. Accuracies are looked at here because this is a
simulation; none of them reaches the algorithm.
"""

import collections
import dataclasses
import logging
import math
import pathlib
from collections.abc import Sequence

import numpy as np
import tqdm

from rdpcfl_tff.algorithms.base import Algorithm, LocalTraining, State
from rdpcfl_tff.algorithms.global_model import Global
from rdpcfl_tff.algorithms.ifca import IFCA
from rdpcfl_tff.algorithms.local import Local
from rdpcfl_tff.algorithms.mr_mtl import MRMTL
from rdpcfl_tff.algorithms.odpcfl import ODPCFL
from rdpcfl_tff.algorithms.rdpcfl import RDPCFL
from rdpcfl_tff.clustering.matching import match_partition
from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.data.silos import SiloStore
from rdpcfl_tff.federated import runtime
from rdpcfl_tff.federated.client_data import RecordFormat
from rdpcfl_tff.federated.federation import Federation
from rdpcfl_tff.models.catalogue import build_model
from rdpcfl_tff.models.functional import FunctionalModel
from rdpcfl_tff.privacy import accounting, clipping, randomness
from rdpcfl_tff.privacy.plan import PrivacyPlan
from rdpcfl_tff.privacy.statement import NoiseSource
from rdpcfl_tff.privacy.tf_privacy import TFPrivacyEngine
from rdpcfl_tff.training import checkpoint
from rdpcfl_tff.training.pictures import draw_run
from rdpcfl_tff.training.records import RunRecords

_LOG = logging.getLogger(__name__)

# Up to this many clusters are looked for when the number is not given.
LARGEST_CANDIDATE = 8


def run(
    config: RunConfig, store: SiloStore, output_dir: pathlib.Path, command: Sequence[str]
) -> dict[str, object]:
    """Trains, writes the records of every round to `output_dir`, and returns the summary.

    A folder of the same run is gone on with: the result is the unbroken run's, bit for bit.
    """
    algorithm = _algorithm(config, store)
    plan = PrivacyPlan.calibrate(
        [algorithm.schedule(size) for size in store.client_sizes["train"]],
        config.epsilon,
        config.delta,
    )
    records = RunRecords(output_dir, config, command)
    if records.summary is not None:
        _LOG.info("%s holds this run, and it is finished", output_dir)
        return records.summary
    records.write_privacy(plan.statements(config.clip_norm, NoiseSource(config.noise_seed)))
    federation = _federation(config, store, plan, _client_key(config, records))
    with runtime.local_worker(), _progress_bar(config) as bar:
        state = _resume(algorithm, records)
        if state is None:
            bar.write(f"this takes about {_forecast(federation)} on this machine")
            bar.unpause()
            state = algorithm.first_round(federation)
            if state.clustering is not None:
                records.write_clustering(state.clustering)
                bar.write(state.clustering.count.sentence)
            _record_round(config, store, federation, records, state, bar)
        else:
            bar.write(f"going on after round {state.round_number}")
            bar.update(state.round_number)
        while state.round_number < config.rounds:
            state = algorithm.next_round(state, federation)
            _record_round(config, store, federation, records, state, bar)
        accuracies = federation.evaluate(state.models, state.assignment, "test")
    records.write_models(state.models)
    records.write_simulation_clients(
        [
            {"client": client, "true_cluster": true, "model": model, "test_accuracy": accuracy}
            for client, (true, model, accuracy) in enumerate(
                zip(store.true_clusters, state.assignment, accuracies, strict=True)
            )
        ]
    )
    summary = _summary(config, store, federation.plan, state, accuracies)
    records.write_summary(summary)
    draw_run(output_dir)
    return summary


def _algorithm(config: RunConfig, store: SiloStore) -> Algorithm:
    training = LocalTraining(config.rounds, config.local_epochs, config.batch_size)
    match config.algorithm:
        case "rdpcfl":
            return RDPCFL(
                training=training,
                first_batch_size=config.first_batch_size,
                num_clusters=config.num_clusters,
                candidates=_candidates(config, store.num_clients),
                mixture_mode=config.mixture,
                selection_rounds=config.selection_rounds,
                epsilon_select=config.epsilon_select,
                seed=config.seed,
            )
        case "ifca":
            num_models = config.num_clusters or len(config.cluster_sizes)
            models = [_model(config, store, index) for index in range(num_models)]
            return IFCA(
                training=training,
                initial_models=np.stack([model.initial_parameters for model in models]),
                selection_rounds=config.selection_rounds,
                epsilon_select=config.epsilon_select,
            )
        case "mr_mtl":
            return MRMTL(training, config.mr_mtl_lambda)
        case "local":
            return Local(training)
        case "global":
            return Global(training)
        case "odpcfl":
            return ODPCFL(training, store.true_clusters)
        case unknown:
            raise ValueError(unknown)


def _model(config: RunConfig, store: SiloStore, index: int = 0) -> FunctionalModel:
    """The model with its initial weights; IFCA starts from several."""
    words = randomness.stream_seed(
        randomness.run_key(config.seed), randomness.Purpose.INITIAL_MODEL, client=index
    )
    seed = words[0] % 2**32
    return FunctionalModel(build_model(config.model, store.image_shape, store.num_classes, seed))


def _candidates(config: RunConfig, num_clients: int) -> tuple[int, ...]:
    """Where the number of clusters is searched; a given one is only tested."""
    if config.num_clusters is not None and config.num_clusters > 1:
        return (config.num_clusters,)
    return tuple(range(2, min(LARGEST_CANDIDATE, num_clients - 2) + 1))


def _client_key(config: RunConfig, records: RunRecords) -> bytes:
    """The key of all sampling and noise on the clients."""
    if NoiseSource(config.noise_seed) is NoiseSource.SEED:
        return randomness.run_key(config.seed)
    if records.key_path.exists():
        return randomness.load_key(records.key_path)
    key = randomness.os_key()
    randomness.save_key(records.key_path, key)
    return key


def _federation(
    config: RunConfig, store: SiloStore, plan: PrivacyPlan, client_key: bytes
) -> Federation:
    build_engine = {"fast": clipping.fast_engine, "tf_privacy": TFPrivacyEngine}[config.dp_engine]
    return Federation(
        silos=store.client_directories,
        records=RecordFormat.of(store),
        engine=build_engine(_model(config, store)),
        plan=plan,
        learning_rate=config.learning_rate,
        clip_norm=config.clip_norm,
        key=client_key,
    )


def _resume(algorithm: Algorithm, records: RunRecords) -> State | None:
    """The state that an interrupted run left; None if the run begins."""
    state = checkpoint.load(records.directory)
    records.forget_after(0 if state is None else state.round_number)
    if state is not None and isinstance(algorithm, RDPCFL):
        clustering = algorithm.cluster(records.first_updates())
        state = dataclasses.replace(state, clustering=clustering)
    return state


def _forecast(federation: Federation) -> str:
    """The time that the training will take: every round has the first client's number of steps."""
    schedule = federation.plan.schedules[0]
    steps = schedule.rounds * accounting.steps_per_round(
        schedule.records, schedule.batch_size, schedule.local_epochs
    )
    minutes = steps * federation.seconds_per_step() / 60
    return f"{minutes / 60:.1f} hours" if minutes > 100 else f"{math.ceil(minutes)} minutes"


def _progress_bar(config: RunConfig) -> tqdm.tqdm:
    privacy = "NOT private" if math.isinf(config.epsilon) else f"eps {config.epsilon:g}"
    return tqdm.tqdm(
        total=config.rounds,
        unit="round",
        desc=f"{config.algorithm} on {config.dataset}, {privacy}",
        dynamic_ncols=True,
    )


def _record_round(
    config: RunConfig,
    store: SiloStore,
    federation: Federation,
    records: RunRecords,
    state: State,
    bar: tqdm.tqdm,
) -> None:
    cluster_sizes = [state.assignment.count(model) for model in range(len(state.models))]
    epsilon = federation.plan.epsilon_spent(state.round_number, state.selections)
    records.add_round(
        {
            "round": state.round_number,
            "stage": state.stage,
            "cluster_sizes": " ".join(map(str, cluster_sizes)),
            "epsilon_spent": epsilon,
        }
    )
    records.add_assignment(state.round_number, state.assignment)
    shown = collections.OrderedDict(stage=state.stage, clusters=cluster_sizes)
    if state.round_number % config.eval_every == 0 or state.round_number == config.rounds:
        accuracies = federation.evaluate(state.models, state.assignment, "validation")
        row = _accuracy_summary(store, accuracies)
        records.add_simulation_round({"round": state.round_number} | row)
        shown["accuracy"] = f"{np.mean(accuracies):.3f}"
    if federation.plan.private:
        shown["spent"] = f"{epsilon:.2f}"
    # Last, so that all records of a round that is saved are there.
    checkpoint.save(records.directory, state)
    bar.set_postfix(shown, refresh=False)
    bar.update()


def _summary(
    config: RunConfig,
    store: SiloStore,
    plan: PrivacyPlan,
    state: State,
    test_accuracies: np.ndarray,
) -> dict[str, object]:
    found = match_partition(state.assignment, store.true_clusters)
    return {
        "algorithm": config.algorithm,
        "dataset": config.dataset,
        "rounds": state.round_number,
        "private": plan.private,
        "epsilon_spent": (
            plan.epsilon_spent(state.round_number, state.selections) if plan.private else None
        ),
        "models": len(state.models),
        "models_in_use": len(set(state.assignment)),
        "simulation_test_accuracy": _accuracy_summary(store, test_accuracies),
        "simulation_partition": {
            "exact": found.exact,
            "misplaced_clients": found.misplaced,
            "minority_found": found.minority_found,
        },
    }


def _accuracy_summary(store: SiloStore, accuracies: np.ndarray) -> dict[str, float]:
    """Mean, worst client, and mean of the minority: the clients of the smallest true cluster."""
    clusters = np.array(store.true_clusters)
    minority = np.argmin(np.bincount(clusters))
    return {
        "mean": float(np.mean(accuracies)),
        "worst": float(np.min(accuracies)),
        "minority": float(np.mean(accuracies[clusters == minority])),
    }

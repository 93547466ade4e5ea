"""From a config and its silos to the parts of a run: algorithm, model, privacy plan, federation.

The training asks for each of them once; experiments on round 1 alone use the same parts.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np

from rdpcfl_tff import outlook
from rdpcfl_tff.algorithms.base import Algorithm, LocalTraining
from rdpcfl_tff.algorithms.global_model import Global
from rdpcfl_tff.algorithms.ifca import IFCA
from rdpcfl_tff.algorithms.local import Local
from rdpcfl_tff.algorithms.mr_mtl import MRMTL
from rdpcfl_tff.algorithms.odpcfl import ODPCFL
from rdpcfl_tff.algorithms.rdpcfl import RDPCFL
from rdpcfl_tff.clustering.forecast import MNIST_DISTANCE, Signal
from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.data.store import ClientBudget, SiloStore
from rdpcfl_tff.errors import UserError
from rdpcfl_tff.execution import ON_THIS_MACHINE, Execution
from rdpcfl_tff.federated import in_process, remote, runtime
from rdpcfl_tff.federated.client_data import RecordFormat
from rdpcfl_tff.federated.federation import Federation
from rdpcfl_tff.models.catalogue import build_model
from rdpcfl_tff.models.functional import FunctionalModel
from rdpcfl_tff.privacy import accounting, clipping, randomness
from rdpcfl_tff.privacy.plan import PrivacyPlan
from rdpcfl_tff.privacy.tf_privacy import TFPrivacyEngine

# Up to this many clusters are looked for when the number is not given.
LARGEST_CANDIDATE = 8


def algorithm_of(config: RunConfig, store: SiloStore) -> Algorithm:
    """The algorithm, as a run with this config has it."""
    training = LocalTraining(config.rounds, config.local_epochs, config.batch_size)
    match config.algorithm:
        case "rdpcfl":
            return RDPCFL(
                training=training,
                first_batch_size=config.first_batch_size,
                num_clusters=config.num_clusters,
                candidates=_candidates(config, store.num_clients),
                mixture_mode=config.mixture,
                selection_rounds=config.selections,
                epsilon_select=config.epsilon_select,
                seed=config.seed,
            )
        case "ifca":
            num_models = config.num_clusters or len(set(store.true_clusters))
            if num_models == 0:
                raise UserError(
                    "--algorithm=ifca needs --num_clusters: nobody knows these clients' clusters"
                )
            models = [model_of(config, store, index) for index in range(num_models)]
            return IFCA(
                training=training,
                initial_models=np.stack([model.initial_parameters for model in models]),
                selection_rounds=config.selections,
                epsilon_select=config.epsilon_select,
            )
        case "mr_mtl":
            return MRMTL(training, config.mr_mtl_lambda, config.mr_mtl_clip_proximal)
        case "local":
            return Local(training)
        case "global":
            return Global(training)
        case "odpcfl":
            if not store.true_clusters:
                raise UserError(
                    "--algorithm=odpcfl is the oracle, and nobody knows these clients' clusters: "
                    "give every client a true_cluster, or choose another algorithm"
                )
            return ODPCFL(training, store.true_clusters)
        case unknown:
            raise ValueError(unknown)


def model_of(config: RunConfig, store: SiloStore, index: int = 0) -> FunctionalModel:
    """The model with its initial weights; IFCA starts from several."""
    words = randomness.stream_seed(
        randomness.run_key(config.seed), randomness.Purpose.INITIAL_MODEL, client=index
    )
    seed = words[0] % 2**32
    return FunctionalModel(build_model(config.model, store.input_shape, store.num_classes, seed))


def _candidates(config: RunConfig, num_clients: int) -> tuple[int, ...]:
    """Where the number of clusters is searched; a given one is only tested."""
    if config.num_clusters is not None and config.num_clusters > 1:
        return (config.num_clusters,)
    return tuple(range(2, min(LARGEST_CANDIDATE, num_clients - 2) + 1))


def plan_of(config: RunConfig, store: SiloStore, algorithm: Algorithm) -> PrivacyPlan:
    """What every client does in this run, and the noise that pays for it."""
    own_configs = [_own_config(config, budget) for budget in store.budgets]
    schedules = _schedules(config, own_configs, store, algorithm)
    first = config.first_round_noise_multiplier
    if isinstance(first, str):
        # Public numbers only. How the clusters differ is not known, so MNIST stands in for them.
        num_clusters = config.num_clusters or outlook.EXPECTED_CLUSTERS
        num_clusters = max(2, min(num_clusters, store.num_clients // 2))
        first = outlook.first_round_noise_multiplier(
            outlook.PlannedRun(
                schedule=min(schedules, key=lambda schedule: schedule.records),
                epsilon=min(own.epsilon for own in own_configs),
                delta=config.delta,
                cluster_sizes=outlook.even_clusters(store.num_clients, num_clusters),
                num_parameters=model_of(config, store).num_parameters,
                signal=Signal.from_distance(MNIST_DISTANCE, num_clusters),
            )
        )
    return PrivacyPlan.calibrate(
        schedules,
        [own.epsilon for own in own_configs],
        [own.delta for own in own_configs],
        first,
        names=store.client_names,
    )


def _own_config(config: RunConfig, budget: ClientBudget) -> RunConfig:
    """The run as a client with a budget of its own sees it."""
    own = {name: value for name, value in vars(budget).items() if value is not None}
    return dataclasses.replace(config, **own)


def _schedules(
    config: RunConfig, own_configs: Sequence[RunConfig], store: SiloStore, algorithm: Algorithm
) -> list[accounting.Schedule]:
    algorithms = {config: algorithm}
    schedules = []
    clients = zip(store.client_names, store.client_sizes["train"], own_configs, strict=True)
    for name, records, own in clients:
        if own not in algorithms:
            algorithms[own] = algorithm_of(own, store)
        try:
            schedules.append(algorithms[own].schedule(records))
        except UserError as error:
            raise UserError(f"client {name}: {error}") from None
    return schedules


def engine_of(config: RunConfig, store: SiloStore) -> clipping.Engine:
    """Built before anything is written, so that nothing is left of a model that is refused."""
    build_engine = {"fast": clipping.fast_engine, "tf_privacy": TFPrivacyEngine}[config.dp_engine]
    return build_engine(model_of(config, store))


def federation_of(
    config: RunConfig,
    store: SiloStore,
    plan: PrivacyPlan,
    engine: clipping.Engine,
    client_key: bytes,
    execution: Execution = ON_THIS_MACHINE,
) -> Federation:
    """All clients, bound to their silos and to the plan."""
    # A worker on another machine has the clients' folders in a place of its own.
    silos = store.client_directories
    if execution.workers:
        silos = tuple(pathlib.Path(silo).name for silo in silos)
    return Federation(
        silos=silos,
        records=RecordFormat.of(store),
        engine=engine,
        plan=plan,
        learning_rate=config.learning_rate,
        clip_norm=config.clip_norm,
        key=client_key,
        dropout=config.client_dropout,
        weighted=config.weighted_averages,
    )


def runtime_of(execution: Execution, federation: Federation) -> contextlib.AbstractContextManager:
    """What runs the TFF computations, to be entered by `with`."""
    if execution.client_devices:
        return in_process.in_process(execution.client_devices)
    if execution.workers:
        move = execution.dead_worker == "move"
        return remote.remote_workers(
            execution.workers, federation.silos, execution.worker_retries, move
        )
    return runtime.local_worker(runtime.RuntimeConfig(retries=execution.worker_retries))

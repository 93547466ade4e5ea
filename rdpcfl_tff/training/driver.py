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

from rdpcfl_tff.algorithms.base import Algorithm, State
from rdpcfl_tff.algorithms.rdpcfl import RDPCFL
from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.data.store import SiloStore
from rdpcfl_tff.execution import ON_THIS_MACHINE, Execution
from rdpcfl_tff.federated import runtime
from rdpcfl_tff.federated.federation import Federation
from rdpcfl_tff.outlook import EXPECTED_CLUSTERS
from rdpcfl_tff.privacy import accounting, randomness
from rdpcfl_tff.privacy.plan import PrivacyPlan
from rdpcfl_tff.privacy.statement import NoiseSource
from rdpcfl_tff.training import assembly, checkpoint
from rdpcfl_tff.training import summary as summaries
from rdpcfl_tff.training.pictures import draw_run
from rdpcfl_tff.training.records import RunRecords

_LOG = logging.getLogger(__name__)

# To score a record takes about this part of a private training step's time for it: 0.21 was
# measured with the CNN.
_SCORING = 0.25


def run(
    config: RunConfig,
    store: SiloStore,
    output_dir: pathlib.Path,
    command: Sequence[str],
    checkpoint_every: int = 1,
    stop_if_unsure: bool = False,
    halt_after: int | None = None,
    execution: Execution = ON_THIS_MACHINE,
) -> dict[str, object] | None:
    """Trains, writes the records of every round to `output_dir`, and returns the summary.

    A folder of the same run is gone on with: the result is the unbroken run's, bit for bit. At most
    `checkpoint_every` rounds are lost when a run is interrupted. With `stop_if_unsure` it ends
    after a round 1 that leaves the clusters in doubt; without, it goes on from there, and pays
    nothing twice. With `halt_after` it ends after this round, if that is not its last one, and
    returns None: there is no summary yet.
    """
    last_round = min(halt_after or config.rounds, config.rounds)
    config.check_num_clients(store.num_clients)
    algorithm = assembly.algorithm_of(config, store)
    plan = assembly.plan_of(config, store, algorithm)
    engine = assembly.engine_of(config, store)
    records = RunRecords(output_dir, config, command, execution.runtime)
    if records.summary is not None and (stop_if_unsure or not records.summary.get("stopped")):
        _LOG.info("%s holds this run, and it is finished", output_dir)
        return records.summary
    records.write_privacy(plan.statements(config.clip_norm, NoiseSource(config.noise_seed)))
    federation = assembly.federation_of(
        config, store, plan, engine, _client_key(config, records), execution
    )
    with assembly.runtime_of(execution, federation), _progress_bar(config, plan) as bar:
        state = _resume(algorithm, federation, records)
        if state is None:
            if not execution.workers:
                steps = last_round * steps_of_a_round(config, plan, store)
                minutes = steps * federation.seconds_per_step() / 60
                bar.write(f"this takes about {_forecast(minutes)} on this machine")
            bar.unpause()
            state = algorithm.first_round(federation)
            if state.clustering is not None:
                records.write_clustering(state.clustering)
                bar.write(state.clustering.confidence.words)
            _record_round(config, store, federation, records, state, bar)
            checkpoint.save(output_dir, state, federation.done)
        else:
            bar.write(f"going on after round {state.round_number}")
            bar.update(state.round_number)
        if stop_if_unsure and state.round_number == 1 and _unsure(state):
            summary = summaries.summary_of(config, store, federation, state, stopped=True)
            records.write_summary(summary)
            return summary
        while state.round_number < last_round:
            state = algorithm.next_round(state, federation)
            _record_round(config, store, federation, records, state, bar)
            if state.round_number % checkpoint_every == 0 or state.round_number == last_round:
                checkpoint.save(output_dir, state, federation.done)
        if last_round < config.rounds:
            return None
        accuracies = federation.evaluate(state.models, state.assignment, "test")
    records.write_models(state.models, summaries.about_model(config, store))
    records.write_simulation_clients(summaries.client_rows(store, state, accuracies))
    draw_run(output_dir)
    summary = summaries.summary_of(config, store, federation, state, accuracies=accuracies)
    # Last, for it says that the run is finished.
    records.write_summary(summary)
    return summary


def seconds_per_round(config: RunConfig, store: SiloStore) -> float:
    """How long a round of this run will take on this machine, measured."""
    plan = assembly.plan_of(config, store, assembly.algorithm_of(config, store))
    key = randomness.run_key(config.seed)
    federation = assembly.federation_of(config, store, plan, assembly.engine_of(config, store), key)
    with runtime.local_worker():
        return federation.seconds_per_step() * steps_of_a_round(config, plan, store)


def _client_key(config: RunConfig, records: RunRecords) -> bytes:
    """The key of all sampling and noise on the clients."""
    if NoiseSource(config.noise_seed) is NoiseSource.SEED:
        return randomness.run_key(config.seed)
    if records.key_path.exists():
        return randomness.load_key(records.key_path)
    key = randomness.os_key()
    randomness.save_key(records.key_path, key)
    return key


def _resume(algorithm: Algorithm, federation: Federation, records: RunRecords) -> State | None:
    """The state that an interrupted run left; None if the run begins."""
    saved = checkpoint.load(records.directory)
    records.forget_after(0 if saved is None else saved.state.round_number)
    if saved is None:
        return None
    state, federation.done = saved
    if isinstance(algorithm, RDPCFL):
        noise = federation.plan.noise_of_updates(round_number=1)
        clustering = algorithm.cluster(records.first_updates(), noise)
        state = dataclasses.replace(state, clustering=clustering)
    return state


def steps_of_a_round(config: RunConfig, plan: PrivacyPlan, store: SiloStore) -> float:
    """What a client does in an average round, counted in training steps.

    Every client is taken to have as many records as the first one.
    """
    schedule = plan.schedules[0]
    steps = accounting.steps_per_round(schedule.records, schedule.batch_size, schedule.local_epochs)
    num_models = config.num_clusters or EXPECTED_CLUSTERS
    selections = schedule.selections / schedule.rounds
    evaluations = 1 / config.eval_every
    scored = (
        selections * num_models * schedule.records
        + evaluations * store.client_sizes["validation"][0]
    )
    return steps + _SCORING * scored / schedule.batch_size


def _forecast(minutes: float) -> str:
    """The time that the training will take, in words."""
    if minutes <= 1:
        return "a minute"
    return f"{minutes / 60:.1f} hours" if minutes > 100 else f"{math.ceil(minutes)} minutes"


def _progress_bar(config: RunConfig, plan: PrivacyPlan) -> tqdm.tqdm:
    privacy = f"eps {max(plan.epsilons):g}" if plan.private else "NOT private"
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
    epsilon = federation.plan.epsilon_spent(federation.done)
    records.add_round(
        {
            "round": state.round_number,
            "stage": state.stage,
            "cluster_sizes": " ".join(map(str, cluster_sizes)),
            "clients": federation.trained,
            "diverged_clients": federation.left_out,
            "epsilon_spent": epsilon,
        }
    )
    records.add_assignment(state.round_number, state.assignment)
    shown = collections.OrderedDict(stage=state.stage, clusters=cluster_sizes)
    if state.round_number % config.eval_every == 0 or state.round_number == config.rounds:
        accuracies = federation.evaluate(state.models, state.assignment, "validation")
        row = summaries.accuracy_summary(store, accuracies)
        records.add_simulation_round({"round": state.round_number} | row)
        shown["accuracy"] = f"{np.nanmean(accuracies):.3f}"
    if federation.plan.private:
        shown["spent"] = f"{epsilon:.2f}"
    bar.set_postfix(shown, refresh=False)
    bar.update()


def _unsure(state: State) -> bool:
    return state.clustering is not None and not state.clustering.confidence.sure

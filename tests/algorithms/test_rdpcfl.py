"""R-DPCFL on a real federation of digits: its stages, and that it pays for what it does."""

import math

import numpy as np
import pytest

from rdpcfl_tff.algorithms.base import LocalTraining
from rdpcfl_tff.algorithms.rdpcfl import RDPCFL
from rdpcfl_tff.clustering.matching import match_partition
from rdpcfl_tff.clustering.mixture import switch_round
from rdpcfl_tff.data import silos, sources
from rdpcfl_tff.errors import UserError
from rdpcfl_tff.federated.client_data import RecordFormat
from rdpcfl_tff.federated.federation import Federation
from rdpcfl_tff.models.cnn import cnn
from rdpcfl_tff.models.functional import FunctionalModel
from rdpcfl_tff.privacy import clipping, randomness
from rdpcfl_tff.privacy.accounting import Done
from rdpcfl_tff.privacy.plan import PrivacyPlan

ROUNDS = 20


def algorithm(**changes):
    settings = {
        "training": LocalTraining(ROUNDS, local_epochs=1, batch_size=32),
        "first_batch_size": None,
        "num_clusters": None,
        "candidates": (2, 3, 4),
        "mixture_mode": "default",
        "selection_rounds": 2,
        "epsilon_select": math.inf,
        "seed": 0,
    }
    return RDPCFL(**(settings | changes))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    config = silos.SiloConfig(cluster_sizes=(2, 3, 3, 3), shift="label_flip")
    folder = tmp_path_factory.mktemp("silos") / "store"
    return silos.build_store(sources.load("digits"), config, folder)


@pytest.fixture(scope="module")
def federation(store):
    return Federation(
        silos=store.client_directories,
        records=RecordFormat.of(store),
        engine=clipping.fast_engine(FunctionalModel(cnn(seed=1))),
        plan=PrivacyPlan.calibrate(
            [algorithm().schedule(size) for size in store.client_sizes["train"]], math.inf, 1e-4
        ),
        learning_rate=0.05,
        clip_norm=1.0,
        key=randomness.run_key(0),
    )


@pytest.fixture(scope="module")
def states(worker, federation):
    """The states of a whole run, round after round."""
    run = algorithm()
    states = [run.first_round(federation)]
    while states[-1].round_number < ROUNDS:
        states.append(run.next_round(states[-1], federation))
    return states


def test_round_1_finds_the_clusters_and_goes_back_to_theta_init(states, store, federation):
    first = states[0]
    assert first.clustering.count.default_choice == 4
    assert match_partition(first.clustering.mixture.partition, store.true_clusters).exact
    np.testing.assert_array_equal(first.models, np.tile(federation.initial_parameters, (4, 1)))


def test_the_stages_follow_each_other_as_in_algorithm_1(states):
    clustering = states[0].clustering
    assert clustering.switch_round == switch_round(clustering.mixture.mpo, ROUNDS)
    soft = clustering.switch_round - 1
    assert [state.stage for state in states] == (
        ["clustering"]
        + ["soft clustering"] * soft
        + ["private selection"] * 2
        + ["fixed clusters"] * (ROUNDS - 3 - soft)
    )


def test_all_that_was_done_was_in_the_schedule(states, federation):
    assert len(states) == ROUNDS
    assert set(federation.done) == {Done(True, ROUNDS - 1, selections=2)}
    assert federation.plan.schedules[0].selections == 2


def test_clusters_are_frozen_after_the_last_selection(states):
    last = max(i for i, state in enumerate(states) if state.stage == "private selection")
    assert {state.assignment for state in states[last:]} == {states[last].assignment}


def test_the_models_learn_their_clusters(states, federation, store):
    last = states[-1]
    assert match_partition(last.assignment, store.true_clusters).exact
    assert federation.evaluate(last.models, last.assignment, "test").mean() > 0.7


def test_the_same_state_gives_the_same_next_state(states, federation):
    again = algorithm().next_round(states[4], federation)
    assert again.assignment == states[5].assignment
    np.testing.assert_array_equal(again.models, states[5].models)


def test_clusters_are_drawn_from_the_posterior():
    responsibilities = np.tile([0.2, 0.0, 0.5, 0.3], (5000, 1))
    draws = np.array(algorithm()._draw(responsibilities, round_number=2))
    counts = np.bincount(draws, minlength=4)
    assert counts[1] == 0
    # Four standard deviations of a binomial count.
    expected = 5000 * responsibilities[0]
    assert np.all(np.abs(counts - expected) <= 4 * np.sqrt(expected))
    assert algorithm()._draw(responsibilities, 2) != algorithm()._draw(responsibilities, 3)


def test_a_client_that_missed_round_1_is_drawn_by_the_clusters_sizes():
    updates = clustered_updates()
    updates[[0, 7]] = np.nan
    clustering = algorithm().cluster(updates)
    others = np.delete(np.arange(len(updates)), [0, 7])
    assert clustering.components.coordinates.shape[0] == len(others)
    np.testing.assert_allclose(
        clustering.responsibilities[0], clustering.responsibilities[others].mean(axis=0)
    )
    whole = algorithm().cluster(clustered_updates())
    assert clustering.responsibilities.shape == whole.responsibilities.shape


def test_too_few_updates_are_not_clustered():
    updates = clustered_updates()
    updates[3:] = np.nan
    with pytest.raises(UserError, match="only 3 of 12 clients"):
        algorithm().cluster(updates)


def clustered_updates():
    centres = np.repeat(np.eye(3, 500) * 200, 4, axis=0)
    return (centres + updates_without_clusters()).astype(np.float32)


def updates_without_clusters():
    return np.random.default_rng(3).standard_normal((12, 500)).astype(np.float32)


def test_without_structure_one_model_is_trained():
    clustering = algorithm().cluster(updates_without_clusters())
    assert clustering.responsibilities.shape == (12, 1)
    assert "no cluster structure detected" in clustering.count.sentence


def test_a_given_number_of_clusters_is_insisted_on_but_trusted_less():
    updates = updates_without_clusters()
    default = algorithm(num_clusters=3, candidates=(3,)).cluster(updates)
    paper = algorithm(num_clusters=3, candidates=(3,), mixture_mode="paper").cluster(updates)
    assert default.responsibilities.shape == paper.responsibilities.shape == (12, 3)
    assert paper.switch_round == switch_round(paper.mixture.mpo, ROUNDS)
    assert default.switch_round < paper.switch_round


def test_the_schedule_is_the_papers():
    schedule = algorithm(epsilon_select=0.09).schedule(records=8000)
    assert schedule.first_batch_size == 8000
    assert (schedule.batch_size, schedule.selections, schedule.epsilon_select) == (32, 2, 0.09)

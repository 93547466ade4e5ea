"""Plans before training: their prices are the accountant's, their limits are where it turns."""

import dataclasses

import pytest

from rdpcfl_tff import outlook
from rdpcfl_tff.clustering.forecast import MNIST_DISTANCE, Signal
from rdpcfl_tff.errors import UserError
from rdpcfl_tff.privacy import accounting


def planned(records=8000, epsilon=3.0, batch_size=32, **changes):
    return outlook.PlannedRun(
        schedule=accounting.Schedule(
            records, 200, batch_size, records, selections=20, epsilon_select=0.03 * epsilon
        ),
        epsilon=epsilon,
        delta=1e-4,
        cluster_sizes=(3, 6, 6, 6),
        num_parameters=28_938,
        signal=Signal.from_distance(MNIST_DISTANCE, 4),
        **changes,
    )


def test_the_papers_mnist_run():
    run = planned()
    assert run.noise_multiplier == pytest.approx(1.911, abs=1e-3)
    assert run.first_noise == pytest.approx(1.911 / 8000, rel=1e-3)
    # z sqrt(250 steps) / 32.
    assert run.later_noise == pytest.approx(1.911 * 250**0.5 / 32, rel=1e-3)
    assert run.should_work()


def test_round_1_can_bear_more_noise_and_the_later_rounds_gain():
    run = planned()
    first = outlook.first_round_noise_multiplier(run)
    own = dataclasses.replace(run, first_round_noise_multiplier=first)
    assert first == pytest.approx(8.75, abs=0.05)
    assert own.noise_multiplier == pytest.approx(1.425, abs=1e-3)
    assert own.should_work()
    spent = accounting.epsilon_spent(own.schedule, own.noise_multiplier, own.delta, first)
    assert 2.99 < spent <= 3.0


def test_the_noise_of_round_1_ends_where_nearer_clusters_would_be_lost():
    run = planned(records=3000, epsilon=4.0)
    first = outlook.first_round_noise_multiplier(run)
    cautious = dataclasses.replace(run.signal, centres=run.signal.centres / outlook.CAUTION)

    def works(noise_multiplier):
        changes = {"signal": cautious, "first_round_noise_multiplier": noise_multiplier}
        return dataclasses.replace(run, **changes).should_work()

    assert works(first) and not works(1.05 * first)


def test_round_1_is_never_quieter_than_the_noise_that_all_rounds_would_share():
    hopeless = planned(records=500)
    assert not hopeless.should_work()
    first = outlook.first_round_noise_multiplier(hopeless)
    assert first == pytest.approx(hopeless.noise_multiplier)


def test_limits_are_where_clustering_begins_to_work():
    run = planned(records=1000)
    assert not run.should_work()
    records = outlook.smallest_records(run)
    assert run.changed(records=records).should_work()
    assert not run.changed(records=round(records / 1.1)).should_work()
    epsilon = outlook.smallest_epsilon(run)
    assert run.with_epsilon(epsilon).should_work()
    assert not run.with_epsilon(epsilon / 1.1).should_work()
    batch_size = outlook.largest_batch_size(run)
    assert run.changed(batch_size=batch_size).should_work()
    assert not run.changed(batch_size=2 * batch_size).should_work()


def test_there_is_no_limit_where_nothing_helps():
    run = dataclasses.replace(planned(records=500), signal=Signal.from_distance(0.001, 4))
    assert outlook.smallest_records(run) is None
    assert outlook.smallest_epsilon(run) is None
    assert outlook.largest_batch_size(run) is None


def test_a_smaller_batch_is_proposed_where_it_helps():
    run = planned(records=1000)
    proposed = outlook.optimised(run)
    assert proposed.schedule.batch_size < run.schedule.batch_size
    assert proposed.should_work()


def test_another_epsilon_has_the_selections_of_that_epsilon():
    other = planned().with_epsilon(6.0)
    assert other.schedule.epsilon_select == pytest.approx(0.18)
    assert other.noise_multiplier == pytest.approx(planned(epsilon=6.0).noise_multiplier)


def test_even_clusters():
    assert outlook.even_clusters(12, 3) == (4, 4, 4)
    assert outlook.even_clusters(11, 4) == (2, 3, 3, 3)
    with pytest.raises(UserError, match="7 clusters of 12"):
        outlook.even_clusters(12, 7)


def test_a_plan_is_for_a_full_first_batch_and_a_finite_budget():
    with pytest.raises(UserError, match="--first_batch_size"):
        dataclasses.replace(planned(), schedule=accounting.Schedule(8000, 200, 32, 32))
    with pytest.raises(UserError, match="--eps=inf"):
        planned(epsilon=float("inf"))

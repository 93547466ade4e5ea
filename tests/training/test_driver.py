"""What the driver says before a run."""

import pytest

from rdpcfl_tff.config import RunConfig
from rdpcfl_tff.training import assembly, driver


@pytest.mark.parametrize(
    ("algorithm", "scored"),
    [
        # 2 selections in 20 rounds, each of 2 models on 48 records; 12 validation records in every
        # fourth round.
        ("rdpcfl", 2 / 20 * 2 * 48 + 12 / 4),
        ("local", 12 / 4),
    ],
)
def test_selections_and_evaluations_count_in_the_forecast(digits_store, algorithm, scored):
    config = RunConfig(
        algorithm=algorithm,
        dataset="digits",
        cluster_sizes=(1, 2),
        samples_per_client=60,
        epsilon=8.0,
        delta=1e-3,
        rounds=20,
        batch_size=8,
        num_clusters=2,
        eval_every=4,
    )
    plan = assembly.plan_of(config, digits_store, assembly.algorithm_of(config, digits_store))
    steps = driver.steps_of_a_round(config, plan, digits_store)
    # A batch is 8 records, and to score a record takes a quarter of training on it.
    assert steps == pytest.approx(6 + scored / 8 / 4)

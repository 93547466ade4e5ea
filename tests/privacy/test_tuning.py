"""The cost of tuning, against formulas computed by other means."""

import math
import pathlib

import dp_accounting
import numpy as np
import pytest

from rdpcfl_tff.errors import UserError
from rdpcfl_tff.privacy import accounting, tuning
from rdpcfl_tff.privacy.accounting import Schedule
from rdpcfl_tff.privacy.statement import NoiseSource, privacy_statement

DELTA = 1e-4


def statement(schedule: Schedule, noise_multiplier: float) -> dict:
    return privacy_statement(
        schedule,
        delta=DELTA,
        noise_multiplier=noise_multiplier,
        clip_norm=1.0,
        clients=21,
        noise_source=NoiseSource.SEED,
    )


def paper_run(epsilon: float) -> dict:
    """One client of the paper's run."""
    schedule = Schedule(
        records=8000,
        rounds=200,
        batch_size=32,
        first_batch_size=8000,
        selections=20,
        epsilon_select=0.03 * epsilon,
    )
    return statement(schedule, accounting.noise_multiplier(schedule, epsilon, DELTA))


@pytest.fixture(scope="module")
def paper():
    return paper_run(3.0)


def test_one_run_costs_what_its_statement_says(paper):
    assert tuning.epsilon_of_all(paper, 1) == pytest.approx(paper["epsilon"]["rdp"], rel=1e-4)


def test_all_runs_cost_their_composition():
    """k full-batch Gaussians are one with a noise multiplier smaller by sqrt(k)."""
    one = statement(Schedule(1000, rounds=1, batch_size=1000, first_batch_size=1000), 8.0)
    same = statement(Schedule(1000, rounds=1, batch_size=1000, first_batch_size=1000), 2.0)
    assert tuning.epsilon_of_all(one, 16) == pytest.approx(same["epsilon"]["rdp"], rel=1e-6)


def test_the_best_run_costs_what_the_theorem_says():
    """Theorem 2 of Papernot and Steinke, with eta = 1, for one Gaussian: RDP rho * order."""
    z, mean = 4.0, 40
    one = statement(Schedule(1000, rounds=1, batch_size=1000, first_batch_size=1000), z)
    orders = accounting.ORDERS
    rdp = orders / (2 * z**2)
    stopping = math.log(mean)  # log(1/gamma): a geometric law with this mean has gamma = 1/mean
    constant = 2 * np.min((1 - 1 / orders) * rdp + stopping / orders)
    best = rdp + constant + math.log(mean) / (orders - 1)
    expected, _ = dp_accounting.rdp.compute_epsilon(orders, best, DELTA)
    assert tuning.epsilon_of_best(one, mean) == pytest.approx(expected, rel=1e-6)


def test_the_best_costs_more_than_one_run_and_less_than_all(paper):
    best = tuning.epsilon_of_best(paper, 40)
    assert paper["epsilon"]["rdp"] < best < tuning.epsilon_of_all(paper, 40)
    assert best < tuning.epsilon_of_best(paper, 80)


def test_the_documents_table_is_computed():
    text = (pathlib.Path(__file__).parents[2] / "docs" / "reproduce.md").read_text()
    for epsilon in (3, 5, 15):
        run = paper_run(epsilon)
        costs = [tuning.epsilon_of_best(run, 40), tuning.epsilon_of_all(run, 40)]
        cells = [f"epsilon {epsilon}", *(f"{math.ceil(cost * 100) / 100:.2f}" for cost in costs)]
        assert f"| {' | '.join(cells)} |" in text


def test_without_a_bound_none_is_claimed(paper):
    with pytest.raises(UserError, match="add_or_remove_one only"):
        tuning.epsilon_of_best(paper | {"adjacency": "replace_one"}, 40)

"""Noise multipliers and epsilons, by value: the paper's setting, closed forms, other routes."""

import contextlib
import dataclasses
import doctest
import io
import itertools
import math
import pathlib
import re

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from rdpcfl_tff.errors import UserError
from rdpcfl_tff.privacy import accounting
from rdpcfl_tff.privacy.accounting import (
    ORDERS,
    Adjacency,
    Done,
    Schedule,
    dp_sgd_steps,
    epsilon_and_order,
    epsilon_spent,
    noise_multiplier,
    steps_per_round,
)
from tests.privacy.schedules import DELTA, REPLACE, full_batch, paper


@st.composite
def schedules(draw):
    records = draw(st.integers(50, 20000))
    sizes = st.integers(1, records // 5)
    return Schedule(
        records=records,
        rounds=draw(st.integers(1, 300)),
        batch_size=draw(st.one_of(sizes, st.just(records))),
        first_batch_size=draw(st.one_of(sizes, st.just(records))),
        local_epochs=draw(st.integers(1, 3)),
        selections=draw(st.integers(0, 10)),
        epsilon_select=draw(st.floats(0.001, 0.05)),
        adjacency=draw(st.sampled_from(Adjacency)),
    )


# --- the paper's setting ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "first_batch_size", "selections", "expected"),
    [
        (3, 8000, 20, 1.911),
        (4, 8000, 20, 1.528),
        (5, 8000, 20, 1.299),
        (10, 8000, 20, 0.853),
        (15, 8000, 20, 0.714),
        (3, 32, 0, 1.374),
        (5, 32, 0, 1.012),
        (15, 32, 0, 0.652),
        (3, 32, 20, 1.414),
        (5, 32, 20, 1.040),
        (15, 32, 20, 0.669),
    ],
)
def test_noise_multiplier_of_the_papers_setting(epsilon, first_batch_size, selections, expected):
    schedule = paper(first_batch_size, selections, epsilon)
    z = noise_multiplier(schedule, epsilon, DELTA)
    assert z == pytest.approx(expected, rel=5e-3)
    assert epsilon * (1 - 1e-3) <= epsilon_spent(schedule, z, DELTA) <= epsilon


@pytest.mark.parametrize("selections", [0, 20])
@pytest.mark.parametrize("epsilon", [3.0, 15.0])
def test_equals_one_event_composed_by_hand(epsilon, selections):
    schedule, z = paper(epsilon=epsilon, selections=selections), 0.9
    one_round = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(32 / 8000, dp_accounting.GaussianDpEvent(z)), 250
    )
    run = dp_accounting.ComposedDpEvent(
        [
            dp_accounting.GaussianDpEvent(z),
            dp_accounting.SelfComposedDpEvent(one_round, 199),
            dp_accounting.SelfComposedDpEvent(
                dp_accounting.GaussianDpEvent(2 / (0.03 * epsilon)), selections
            ),
        ]
    )
    accountant = dp_accounting.rdp.RdpAccountant(ORDERS).compose(run)
    by_hand, order = accountant.get_epsilon_and_optimal_order(DELTA)
    assert epsilon_and_order(schedule, z, DELTA) == (pytest.approx(by_hand, rel=1e-6), order)
    assert epsilon_spent(schedule, z, DELTA) >= by_hand


def test_orders_are_fine_enough():
    finer = np.arange(1.05, 30, 0.02)
    for epsilon in (3.0, 15.0):
        z = noise_multiplier(paper(32, 0), epsilon, DELTA)
        step = dp_accounting.PoissonSampledDpEvent(0.004, dp_accounting.GaussianDpEvent(z))
        accountant = dp_accounting.rdp.RdpAccountant(finer).compose(step, 50000)
        assert accountant.get_epsilon(DELTA) > epsilon * (1 - 1e-3)


# --- closed forms ----------------------------------------------------------------------------


def _converted(rho, delta):
    """The paper's conversion lemma for RDP rho * alpha, over a fine grid of orders."""
    orders = np.linspace(1.1, 1024, 1_000_000)
    return np.min(
        rho * orders + np.log(1 / (orders * delta)) / (orders - 1) + np.log1p(-1 / orders)
    )


@pytest.mark.parametrize("z", [0.3, 1.0, 4.0, 20.0])
def test_one_full_batch_is_one_gaussian(z):
    expected = _converted(1 / (2 * z**2), DELTA)
    spent = epsilon_spent(full_batch(), z, DELTA)
    assert expected * (1 - 1e-9) <= spent <= expected * 1.002


def test_selections_alone():
    schedule = full_batch(selections=20, epsilon_select=0.3)
    spent = epsilon_spent(schedule, 1.0, DELTA, done=Done(selections=20))
    expected = _converted(20 * 0.3**2 / 8, DELTA)
    assert expected * (1 - 1e-9) <= spent <= expected * 1.002


def test_full_batch_rounds_and_epochs_scale_as_the_square_root():
    once = noise_multiplier(full_batch(), 2.0, 1e-3)
    assert noise_multiplier(full_batch(rounds=9), 2.0, 1e-3) == pytest.approx(3 * once, rel=1e-4)
    assert noise_multiplier(full_batch(local_epochs=4), 2.0, 1e-3) == pytest.approx(
        2 * once, rel=1e-4
    )


def test_epochs_and_rounds_are_the_same_to_the_accountant():
    assert epsilon_spent(
        Schedule(1000, rounds=6, batch_size=10, first_batch_size=10, local_epochs=1), 1.0, DELTA
    ) == epsilon_spent(
        Schedule(1000, rounds=2, batch_size=10, first_batch_size=10, local_epochs=3), 1.0, DELTA
    )


@pytest.mark.parametrize(
    ("records", "batch_size", "local_epochs", "expected"),
    [(8000, 32, 1, 250), (8000, 8000, 1, 1), (6666, 64, 1, 105), (10, 3, 2, 8), (10, 1, 1, 10)],
)
def test_steps_per_round(records, batch_size, local_epochs, expected):
    assert steps_per_round(records, batch_size, local_epochs) == expected


def test_steps_of_the_papers_setting():
    first, later = dp_sgd_steps(paper(), 1.3, first_round_noise_multiplier=20.0)
    assert (first.count, first.rate, first.noise_multiplier) == (1, 1.0, 20.0)
    assert (later.count, later.rate, later.noise_multiplier) == (199 * 250, 0.004, 1.3)


@given(rate=st.floats(1e-5, 0.3), z=st.floats(0.4, 10))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_rdp_of_a_sampled_step_is_never_below_the_integral(rate, z):
    computed = accounting._rdp_of_sampled_step(rate, z)
    for index in (0, 3, 15, 41, 60):
        # E over N(0, z^2) of (mixture / N(0, z^2))^order, by quadrature instead of by series.
        order, cells = ORDERS[index], 20_000
        x, width = np.linspace(-30 * z, 30 * z + order, cells + 1), (60 * z + order) / cells
        log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * z**2))
        log_density = -(x**2) / (2 * z**2) - math.log(z * math.sqrt(2 * math.pi))
        log_integral = special.logsumexp(order * log_ratio + log_density) + math.log(width)
        expected = log_integral / (order - 1)
        assert expected * (1 - 1e-12) <= computed[index]
        assert computed[index] <= expected * (1 + 1e-9) + 2e-12 / (order - 1)


# --- calibration -----------------------------------------------------------------------------


@given(schedule=schedules(), epsilon=st.floats(0.5, 30), first_factor=st.none() | st.floats(1, 20))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_calibration_is_on_the_safe_side_and_close(schedule, epsilon, first_factor):
    delta = 0.1 / schedule.records
    first = None
    if first_factor is not None and schedule.rounds > 1:
        first = first_factor * noise_multiplier(schedule, epsilon, delta)
    z = noise_multiplier(schedule, epsilon, delta, first)
    assert epsilon * (1 - 1e-3) <= epsilon_spent(schedule, z, delta, first) <= epsilon
    assert epsilon_spent(schedule, z * (1 - 1e-3), delta, first) > epsilon


def test_more_noise_in_round_one_leaves_more_for_training():
    one = noise_multiplier(paper(epsilon=3.0), 3.0, DELTA)
    two = noise_multiplier(paper(epsilon=3.0), 3.0, DELTA, first_round_noise_multiplier=20.0)
    assert two == pytest.approx(1.414, rel=5e-3)
    assert two < one


@given(schedule=schedules(), z=st.floats(0.5, 10))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_epsilon_falls_with_noise_and_with_delta(schedule, z):
    epsilon = epsilon_spent(schedule, z, 1e-5)
    assert epsilon_spent(schedule, 1.1 * z, 1e-5) < epsilon
    assert epsilon_spent(schedule, z, 1e-4) < epsilon


@given(schedule=schedules(), z=st.floats(0.5, 10))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_epsilon_after_each_round_rises_to_the_total(schedule, z):
    def spent(rounds):
        selections = min(rounds, schedule.selections)
        done = Done(rounds > 0, max(rounds - 1, 0), selections)
        return epsilon_spent(schedule, z, 1e-5, done=done)

    course = [spent(rounds) for rounds in range(schedule.rounds + 1)]
    assert course[0] == 0
    assert all(before <= after for before, after in itertools.pairwise(course))
    if schedule.rounds >= schedule.selections:
        assert course[-1] == epsilon_spent(schedule, z, 1e-5)


def test_part_of_a_run_cannot_be_more_than_the_run():
    with pytest.raises(ValueError, match="200 later rounds done of 199"):
        epsilon_spent(paper(), 1.0, DELTA, done=Done(later_rounds=200))
    with pytest.raises(ValueError, match="21 selections done of 20"):
        epsilon_spent(paper(), 1.0, DELTA, done=Done(selections=21))


def test_a_client_that_missed_round_1_has_not_paid_for_it():
    missed = epsilon_spent(paper(), 1.9, DELTA, done=Done(False, 199, 20))
    whole = epsilon_spent(paper(), 1.9, DELTA)
    without_it = dataclasses.replace(paper(), rounds=199, first_batch_size=paper().batch_size)
    assert missed == epsilon_spent(without_it, 1.9, DELTA) < whole


# --- replace-one -----------------------------------------------------------------------------


def test_replace_one_doubles_the_noise_of_full_batches():
    add = noise_multiplier(full_batch(rounds=3), 2.0, 1e-3)
    assert noise_multiplier(full_batch(rounds=3, adjacency=REPLACE), 2.0, 1e-3) == pytest.approx(
        2 * add, rel=1e-4
    )


@pytest.mark.parametrize("order", [1.5, 2.4, 6.0, 14.0])
@pytest.mark.parametrize("z", [0.7, 1.5, 4.0])
@pytest.mark.parametrize("rate", [0.004, 0.1, 0.6])
def test_replace_one_bounds_two_opposite_gradients(rate, z, order):
    # The record's gradient is c in one dataset and -c in the other.
    x = np.linspace(-40 * z - order, 40 * z + order, 400_001)

    def log_mixture(sign):
        near = math.log1p(-rate) - x**2 / (2 * z**2)
        return np.logaddexp(near, math.log(rate) - (x - sign) ** 2 / (2 * z**2))

    log_integrand = order * log_mixture(1) + (1 - order) * log_mixture(-1)
    scale = math.log(z * math.sqrt(2 * math.pi))
    divergence = math.log(np.trapz(np.exp(log_integrand - scale), x)) / (order - 1)
    step = accounting.Steps(1, rate, z)
    bound = accounting._rdp_of_step(step, REPLACE)[np.isclose(ORDERS, order)][0]
    assert divergence <= bound


def test_replace_one_costs_about_twice_the_noise():
    add = noise_multiplier(paper(epsilon=3.0), 3.0, DELTA)
    replace = noise_multiplier(paper(epsilon=3.0, adjacency=REPLACE), 3.0, DELTA)
    assert 1.8 * add < replace < 2.1 * add


# --- no privacy, and errors ------------------------------------------------------------------


def test_infinite_epsilon_is_no_noise():
    schedule = paper(epsilon=math.inf)
    assert noise_multiplier(schedule, math.inf, DELTA) == 0
    assert epsilon_spent(schedule, 0.0, DELTA) == math.inf
    # Noise in training does not make up for a selection without any.
    assert epsilon_spent(schedule, 1.0, DELTA) == math.inf


@pytest.mark.parametrize(
    ("epsilon", "delta", "message"),
    [
        (0.0, DELTA, r"--eps=0: must be above 0"),
        (-1.0, DELTA, r"--eps=-1: must be above 0"),
        (math.nan, DELTA, r"--eps=nan: must be above 0"),
        (3.0, 0.0, r"--delta=0: .*1/N = 0.000125"),
        (3.0, 1 / 8000, r"--delta=0.000125: .*1/N = 0.000125"),
    ],
)
def test_impossible_budgets(epsilon, delta, message):
    with pytest.raises(UserError, match=message):
        noise_multiplier(paper(), epsilon, delta)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, r"--rounds=0"),
        ({"batch_size": 1001}, r"batch of 1001 from 1000 .*--batch_size must be from 1"),
        ({"batch_size": 0}, r"batch of 0 "),
        ({"first_batch_size": 1001}, r"batch of 1001 "),
        ({"local_epochs": 0}, r"--local_epochs=0"),
        ({"records": 1, "batch_size": 1, "first_batch_size": 1}, r"1 training records"),
        ({"selections": -1}, r"-1 selections"),
        ({"selections": 5}, r"--eps_select_ratio above 0"),
    ],
)
def test_impossible_schedules(changes, message):
    numbers = {"records": 1000, "rounds": 10, "batch_size": 10, "first_batch_size": 1000}
    with pytest.raises(UserError, match=message):
        Schedule(**(numbers | changes))


def test_budget_that_the_selections_exhaust():
    schedule = full_batch(records=1000, selections=50, epsilon_select=1.0)
    with pytest.raises(
        UserError, match=r"50 selections alone .* lower --eps_select_ratio"
    ) as error:
        noise_multiplier(schedule, 3.0, DELTA)
    assert "first_round" not in str(error.value)


def test_budget_that_round_one_exhausts():
    with pytest.raises(UserError, match="raise --first_round_noise_multiplier"):
        noise_multiplier(paper(), 5.0, DELTA, first_round_noise_multiplier=0.5)
    with pytest.raises(UserError, match="--first_round_noise_multiplier=0: must be above 0"):
        noise_multiplier(paper(), 5.0, DELTA, first_round_noise_multiplier=0.0)


def test_first_round_noise_needs_a_second_round():
    with pytest.raises(UserError, match="raise --rounds above 1"):
        noise_multiplier(full_batch(rounds=1), 5.0, DELTA, first_round_noise_multiplier=3.0)


def test_budget_too_small_for_any_noise():
    with pytest.raises(UserError, match="cannot be reached by any noise: raise --eps"):
        noise_multiplier(paper(32, 0), 1e-4, 1e-12)


def test_examples_in_the_docstring():
    results = doctest.testmod(accounting)
    assert results.attempted > 0
    assert results.failed == 0


def test_figures_in_the_documentation():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
    figures = re.findall(r'```sh\npython -c "\n(.*?)"\n```\n\n```text\n(.*?)```', page, re.DOTALL)
    assert len(figures) == page.count("```sh")
    for command, expected in figures:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(command, {})
        assert printed.getvalue() == expected


@pytest.mark.parametrize("epsilon", [50, 99, 300, 1e4, 1e6])
@pytest.mark.parametrize("ratio", [0.03, 0.2])
def test_a_budget_that_promises_nothing_is_still_accounted(epsilon, ratio):
    schedule = paper(selections=2, epsilon=1)
    schedule = dataclasses.replace(schedule, epsilon_select=ratio * epsilon)
    z = noise_multiplier(schedule, epsilon, DELTA)
    assert 0 < epsilon_spent(schedule, z, DELTA) <= epsilon

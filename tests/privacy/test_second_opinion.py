"""Epsilon by privacy loss distributions: beside RDP's, closed forms, and the worst selections."""

import dataclasses
import math

import numpy as np
import pytest

from rdpcfl_tff.privacy import second_opinion
from rdpcfl_tff.privacy.accounting import Adjacency, noise_multiplier
from rdpcfl_tff.privacy.second_opinion import epsilon_spent_pld
from tests.privacy.schedules import DELTA, REPLACE, full_batch, paper


@pytest.mark.parametrize(
    ("epsilon", "first_batch_size", "selections"),
    [(1.0, 8000, 20), (3.0, 8000, 20), (15.0, 8000, 20), (3.0, 32, 20), (3.0, 32, 0)],
)
def test_the_second_opinion_confirms_the_first(epsilon, first_batch_size, selections):
    schedule = paper(first_batch_size, selections, epsilon)
    z = noise_multiplier(schedule, epsilon, DELTA)
    assert 0.85 * epsilon < epsilon_spent_pld(schedule, z, DELTA) <= epsilon


def test_pld_of_one_gaussian_is_the_analytic_gaussian_mechanism():
    # Balle and Wang (2018), theorem 8.
    def normal_cdf(x):
        return math.erfc(-x / math.sqrt(2)) / 2

    z = 1.3
    for adjacency, sensitivity in ((Adjacency.ADD_OR_REMOVE_ONE, 1), (REPLACE, 2)):
        epsilon = epsilon_spent_pld(full_batch(adjacency=adjacency), z, DELTA)
        near, far = sensitivity / (2 * z), epsilon * z / sensitivity
        delta = normal_cdf(near - far) - math.exp(epsilon) * normal_cdf(-near - far)
        assert delta == pytest.approx(DELTA, rel=2e-3)


def test_pld_of_one_selection_is_at_most_its_pure_epsilon():
    schedule = full_batch(records=1000, selections=1, epsilon_select=0.8)
    assert 0.79 < epsilon_spent_pld(schedule, 1e6, 1e-6) < 0.801


def test_pld_of_a_selection_is_the_worst_two_point_privacy_loss():
    # All mass on losses t and t - a, for every t: probability of t under the second dataset is
    # then fixed by both distributions summing to 1.
    a = 0.9
    t = np.linspace(0, a, 20_001)[:, None]
    epsilon = np.linspace(-1.5, 1.5, 61)
    upper = (np.exp(a) - np.exp(t)) / np.expm1(a)
    by_search = np.max(
        upper * np.maximum(0, -np.expm1(epsilon - t))
        + (1 - upper) * np.maximum(0, -np.expm1(epsilon - t + a)),
        axis=0,
    )
    np.testing.assert_allclose(second_opinion._selection_delta(a, epsilon), by_search, atol=1e-8)


def test_pld_of_a_selection_bounds_exponential_mechanisms():
    a = 0.7
    rng = np.random.default_rng(0)
    epsilon = np.linspace(-1, 1, 41)[:, None]
    for _ in range(200):
        scores = rng.uniform(0, 5, 6)
        here, there = (
            np.exp(moved) / np.exp(moved).sum()
            for moved in (scores, scores + rng.uniform(-a / 2, a / 2, 6))
        )
        delta = np.sum(np.maximum(0, here - np.exp(epsilon) * there), axis=1)
        assert np.all(delta <= second_opinion._selection_delta(a, epsilon[:, 0]) + 1e-12)


def test_no_pld_for_poisson_sampling_under_replace_one():
    assert epsilon_spent_pld(paper(adjacency=REPLACE), 1.0, DELTA) is None


def test_no_noise_anywhere_is_no_privacy():
    schedule = paper(epsilon=math.inf)
    assert epsilon_spent_pld(schedule, 0.0, DELTA) == math.inf
    # Noise in training does not make up for a selection without any.
    assert epsilon_spent_pld(schedule, 1.0, DELTA) == math.inf


@pytest.mark.parametrize("epsilon", [50, 99, 300, 1e4, 1e6])
@pytest.mark.parametrize("ratio", [0.03, 0.2])
def test_a_budget_that_promises_nothing_has_an_epsilon_or_none(epsilon, ratio):
    schedule = dataclasses.replace(paper(selections=2), epsilon_select=ratio * epsilon)
    by_pld = epsilon_spent_pld(schedule, noise_multiplier(schedule, epsilon, DELTA), DELTA)
    assert by_pld is None or 0 < by_pld <= epsilon

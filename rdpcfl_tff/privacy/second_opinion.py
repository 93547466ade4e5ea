"""The price of one client's whole run by privacy loss distributions: a second opinion.

What is promised is RDP's epsilon, of `accounting`; this one reaches nearly the same by another
route, so that a mistake in either would show. Nothing private comes in here.
"""

import functools
import math

import numpy as np
from dp_accounting import pld

from rdpcfl_tff.privacy import accounting

# Privacy losses are rounded to multiples of this, upwards in effect.
_LOSS_GRID = 1e-4
# Beyond these the distributions need more than float64.
_LARGEST_EPSILON = 100.0
_LARGEST_EPSILON_SELECT = 10.0


@functools.lru_cache(maxsize=1024)
def epsilon_spent_pld(
    schedule: accounting.Schedule,
    noise_multiplier: float,
    delta: float,
    first_round_noise_multiplier: float | None = None,
) -> float | None:
    """Epsilon of the whole run.

    It is smaller than RDP's, unless the selections take most of the budget. None under
    replace-one with Poisson sampling, for which dp_accounting has no distribution, and for budgets
    so large that they promise nothing: the distributions then need more than float64.
    """
    steps = accounting.dp_sgd_steps(schedule, noise_multiplier, first_round_noise_multiplier)
    replace = schedule.adjacency is accounting.Adjacency.REPLACE_ONE
    if replace and any(part.rate < 1 for part in steps):
        return None
    selecting = schedule.selections > 0
    if any(part.noise_multiplier == 0 for part in steps) or (
        selecting and math.isinf(schedule.epsilon_select)
    ):
        return math.inf
    if (
        schedule.epsilon_select > _LARGEST_EPSILON_SELECT
        or accounting.epsilon_spent(schedule, noise_multiplier, delta, first_round_noise_multiplier)
        > _LARGEST_EPSILON
    ):
        return None
    loss = pld.privacy_loss_distribution.identity(_LOSS_GRID)
    for part in steps:
        loss = loss.compose(
            pld.privacy_loss_distribution.from_gaussian_mechanism(
                part.noise_multiplier,
                sensitivity=2 if replace else 1,
                value_discretization_interval=_LOSS_GRID,
                sampling_prob=part.rate,
            ).self_compose(part.count)
        )
    if selecting:
        one_selection = _selection_loss(schedule.epsilon_select)
        loss = loss.compose(one_selection.self_compose(schedule.selections))
    return float(loss.get_epsilon_for_delta(delta))


def _selection_delta(epsilon_select: float, epsilon: np.ndarray) -> np.ndarray:
    """The least delta at which every exponential mechanism is (epsilon, delta)-DP.

    Its privacy loss lies in some interval [t - epsilon_select, t] (Dong, Durfee and Rogers, 2020).
    For a given t the worst case puts all mass on the two ends; the worst t is the middle of
    epsilon and epsilon_select. As a curve over all epsilon it dominates the mechanism, so it may
    be composed; and it is well below randomised response, which has the same pure epsilon.
    """
    inside = np.clip(epsilon, -epsilon_select, epsilon_select)
    curve = np.expm1((inside - epsilon_select) / 2) ** 2 / -np.expm1(-epsilon_select)
    return np.where(epsilon < -epsilon_select, -np.expm1(epsilon), curve)


def _selection_loss(
    epsilon_select: float,
) -> pld.privacy_loss_distribution.PrivacyLossDistribution:
    cells = math.ceil(epsilon_select / _LOSS_GRID)
    losses = np.arange(-cells, cells + 1)
    deltas = _selection_delta(epsilon_select, losses * _LOSS_GRID)
    return pld.privacy_loss_distribution.PrivacyLossDistribution(
        pld.pld_pmf.create_pmf_pessimistic_connect_dots(_LOSS_GRID, losses, deltas)
    )

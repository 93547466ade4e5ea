"""From the success of an attack to the epsilon that it proves, with 95 % confidence.

Not in the paper: evidence that the code keeps what the accounting promises. The attacker saw a
number (or an index) of many runs with a certain record, the canary, and of as many without it.

Why as Nasr et al. (2023): at a small delta, the two error rates of an attack prove little by
themselves unless there are millions of runs. They are held against the whole trade-off curve of
DP-SGD instead, and noise multipliers whose curve they contradict are refuted. The bound supposes
Gaussian noise; a bound above the claim supposes nothing, for then the claim's curve is refuted.
"""

import dataclasses

import numpy as np
import scipy.stats
from dp_accounting import pld

from rdpcfl_tff.privacy import accounting, second_opinion

CONFIDENCE = 0.95

# The noise multipliers among which the bound is searched; the claims lie well inside.
_NOISE_MULTIPLIERS = (0.1, 20.0)
_BISECTIONS = 10
_LOSS_GRID = 1e-3
_EPSILONS = np.linspace(0.0, 20.0, 201)


@dataclasses.dataclass(frozen=True)
class Rates:
    """How often a test says "canary": with the canary at least, and without it at most."""

    with_canary: float
    without_canary: float


def epsilon_lower_bound(
    with_canary: np.ndarray, without_canary: np.ndarray, schedule: accounting.Schedule, delta: float
) -> float:
    """The least epsilon at which DP-SGD by this schedule can be attacked so well.

    Args:
        with_canary: the attacker's score of each run with the canary.
        without_canary: the same, without it.
        schedule: what is claimed to have run; its noise is what is in question.
        delta: the delta of the epsilon.
    """
    rates = _rates_of_threshold(with_canary, without_canary)
    possible, refuted = _NOISE_MULTIPLIERS
    if not _contradicts(rates, schedule, refuted):
        return 0.0
    for _ in range(_BISECTIONS):
        middle = float(np.sqrt(possible * refuted))
        if _contradicts(rates, schedule, middle):
            refuted = middle
        else:
            possible = middle
    epsilon = second_opinion.epsilon_spent_pld(schedule, refuted, delta)
    assert epsilon is not None
    return epsilon


def pure_epsilon_lower_bound(with_canary: np.ndarray, without_canary: np.ndarray) -> float:
    """The least epsilon, at delta 0, of a mechanism whose results are a few indices."""
    choosing, proving = _split(with_canary, without_canary)
    bounds = {
        (index, swap): _log_ratio(choosing[::swap], index)
        for index in np.unique(choosing)
        for swap in (1, -1)
    }
    index, swap = max(bounds, key=lambda event: bounds[event])
    return _log_ratio(proving[::swap], index)


def _rates_of_threshold(with_canary: np.ndarray, without_canary: np.ndarray) -> Rates:
    """The rates of "the score is above the threshold", which lies half-way between the worlds."""
    choosing, proving = _split(with_canary, without_canary)
    return _rates(*(proving > np.mean(choosing)))


def _log_ratio(results: np.ndarray, index: int) -> float:
    rates = _rates(*(results == index))
    with np.errstate(divide="ignore"):
        return float(np.log(rates.with_canary / rates.without_canary))


def _split(with_canary: np.ndarray, without_canary: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A quarter of the runs, to choose the test on, and the others, to prove something with it."""
    both = np.stack([with_canary, without_canary])
    quarter = len(with_canary) // 4
    return both[:, :quarter], both[:, quarter:]


def _rates(said_with: np.ndarray, said_without: np.ndarray) -> Rates:
    """Clopper and Pearson's bounds, both of them right with probability CONFIDENCE."""
    level = 1 - (1 - CONFIDENCE) / 2
    runs, hits, alarms = len(said_with), np.sum(said_with), np.sum(said_without)
    return Rates(
        with_canary=scipy.stats.beta.ppf(1 - level, hits, runs - hits + 1) if hits > 0 else 0.0,
        without_canary=scipy.stats.beta.ppf(level, alarms + 1, runs - alarms)
        if alarms < runs
        else 1.0,
    )


def _contradicts(rates: Rates, schedule: accounting.Schedule, noise_multiplier: float) -> bool:
    """Whether DP-SGD with this noise multiplier rules the rates out."""
    loss = pld.privacy_loss_distribution.identity(_LOSS_GRID)
    for steps in accounting.dp_sgd_steps(schedule, noise_multiplier):
        one_step = pld.privacy_loss_distribution.from_gaussian_mechanism(
            steps.noise_multiplier,
            value_discretization_interval=_LOSS_GRID,
            sampling_prob=steps.rate,
        )
        loss = loss.compose(one_step.self_compose(steps.count))
    allowed = np.asarray(loss.get_delta_for_epsilon(_EPSILONS))
    factor = np.exp(_EPSILONS)
    seen = np.maximum(
        rates.with_canary - factor * rates.without_canary,
        (1 - rates.without_canary) - factor * (1 - rates.with_canary),
    )
    return bool(np.any(seen > allowed))

"""How much two clusters of updates overlap: the paper's second lemma, before any mixture is fitted.

It takes the updates of a cluster for a Gaussian with the same variance in each of p coordinates.
Distances between true centres are known to a simulation only.
"""

import math

from rdpcfl_tff.clustering.mixture import max_pairwise_overlap


def separation_score(distance: float, update_variance: float, num_parameters: int) -> float:
    """SS = sqrt(p) Delta / (2 sigma), sigma^2 being the variance of a whole update."""
    return math.sqrt(num_parameters / update_variance) * distance / 2


def overlap(distance: float, update_variance: float, num_parameters: int) -> float:
    """O = 2 Q(SS): 1 if the two Gaussians are the same, 0 if they are far apart."""
    return max_pairwise_overlap(separation_score(distance, update_variance, num_parameters))


def overlap_bound(
    distance: float,
    update_variance: float,
    num_parameters: int,
    growth: float,
    noise_growth: float,
) -> float:
    """What the overlap at batch size b1 says about a batch `growth` (k) times as large.

    It is at most 2 Q(sqrt(k) SS / rho), rho being `noise_growth`, the factor by which the noise
    multiplier grows with the batch: the centres come k times closer, and the variance falls by k^3.
    """
    score = separation_score(distance, update_variance, num_parameters)
    return max_pairwise_overlap(math.sqrt(growth) * score / noise_growth)

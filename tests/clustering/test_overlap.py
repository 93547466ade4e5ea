"""The lemma on the overlap of two components, by value and by integration."""

import numpy as np
import pytest
from scipy.stats import norm

from rdpcfl_tff.clustering import overlap


def test_the_score_by_hand():
    # sqrt(p) Delta / (2 sigma) = 4 * 3 / (2 * 2)
    assert overlap.separation_score(3.0, update_variance=4.0, num_parameters=16) == pytest.approx(3)


@pytest.mark.parametrize("distance", [0.0, 0.7, 2.0, 5.0])
def test_the_overlap_is_the_area_under_both_densities(distance):
    # One coordinate: the others have the same density in both components, and integrate to 1.
    deviation, num_parameters = 1.3, 9
    x = np.linspace(-20, 25, 200_001)
    both = np.minimum(norm.pdf(x, 0, deviation), norm.pdf(x, distance, deviation))
    area = np.sum(both) * (x[1] - x[0])
    variance = num_parameters * deviation**2
    assert overlap.overlap(distance, variance, num_parameters) == pytest.approx(area, rel=1e-6)


def test_the_bound_is_the_overlap_that_a_larger_batch_would_have():
    # k times the batch: centres k times closer, variance rho^2 / k^3 of what it was.
    distance, variance, num_parameters, growth, noise_growth = 2.0, 30.0, 10, 4.0, 1.5
    bound = overlap.overlap_bound(distance, variance, num_parameters, growth, noise_growth)
    assert bound == pytest.approx(
        overlap.overlap(distance / growth, variance * noise_growth**2 / growth**3, num_parameters)
    )
    assert bound < overlap.overlap(distance, variance, num_parameters)

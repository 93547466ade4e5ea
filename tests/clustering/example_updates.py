"""Updates with a known partition."""

import math

import numpy as np


def clustered_updates(sizes, distance, num_parameters=400, seed=0):
    """Unit noise around centres that are `distance` apart from each other, and the truth."""
    generator = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    centres = np.linalg.qr(generator.standard_normal((num_parameters, len(sizes))))[0].T
    updates = distance / math.sqrt(2) * centres[truth]
    updates += generator.standard_normal((len(truth), num_parameters))
    return updates.astype(np.float32), truth

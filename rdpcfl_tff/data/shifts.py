"""What makes clusters differ: rotated images (covariate shift), shifted labels (concept shift).

The paper's two kinds of heterogeneity between clusters (section "Experiments").
Applied inside a silo, record by record; a cluster's number is the simulation's knowledge.
"""

import numpy as np
from scipy import ndimage


def rotate(images: np.ndarray, cluster: int, num_clusters: int) -> np.ndarray:
    """Rotates uint8 images [N, H, W, C] counter-clockwise by cluster * 360 / num_clusters degrees.

    Multiples of 90 degrees move pixels and change none. Other angles interpolate bilinearly
    about the centre, with black outside (`scipy.ndimage.rotate`, order 1).
    """
    quarters, rest = divmod(4 * cluster, num_clusters)
    if rest == 0:
        return np.ascontiguousarray(np.rot90(images, quarters, axes=(1, 2)))
    angle = 360 * cluster / num_clusters
    return ndimage.rotate(images, angle, axes=(1, 2), reshape=False, order=1, mode="constant")


def flip_labels(labels: np.ndarray, cluster: int, num_classes: int) -> np.ndarray:
    """Turns each label y into (y + cluster) mod num_classes."""
    return ((labels.astype(np.int64) + cluster) % num_classes).astype(labels.dtype)

"""scikit-learn's embedded handwritten digits: real images that need no download.

Not in the paper: the set for quick runs and tests. 1,797 images of 8x8, enlarged to the
28x28 input of the paper's CNN; a fixed split of 1,437 train and 360 test records.
"""

import numpy as np

from rdpcfl_tff.data.dataset import Dataset

_SPLIT_SEED = 0


def load() -> Dataset:
    """The set; the same bytes on every call."""
    from sklearn import datasets  # slow to import, and the other sets do not need it

    images, labels = datasets.load_digits(return_X_y=True)
    labels = labels.astype(np.uint8)
    # Grey levels 0..16 to 0..255, every pixel to 3x3 pixels, 2 black pixels around: 8*3 + 2*2 = 28.
    levels = np.rint(images.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    large = np.pad(levels.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))[..., None]
    # Every fifth of the shuffled records, class by class: a fifth of each class is for the test.
    shuffled = np.random.RandomState(_SPLIT_SEED).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    is_test = np.zeros(len(labels), bool)
    is_test[by_class[::5]] = True
    return Dataset(
        name="digits",
        train_images=large[~is_test],
        train_labels=labels[~is_test],
        test_images=large[is_test],
        test_labels=labels[is_test],
        num_classes=10,
        source="scikit-learn's embedded digits, enlarged to 28x28",
    )

import numpy as np
from sklearn import datasets

from rdpcfl_tff.data import digits


def test_shapes_and_split():
    dataset = digits.load()
    assert dataset.train_images.shape == (1437, 28, 28, 1)
    assert dataset.test_images.shape == (360, 28, 28, 1)
    assert dataset.train_images.dtype == dataset.train_labels.dtype == np.uint8
    classes, embedded = np.unique(datasets.load_digits().target, return_counts=True)
    for digit, total in zip(classes, embedded, strict=True):
        test = (dataset.test_labels == digit).sum()
        assert abs(test - total / 5) < 1
        assert test + (dataset.train_labels == digit).sum() == total


def test_every_pixel_becomes_a_square():
    dataset = digits.load()
    inner = dataset.train_images[:, 2:-2, 2:-2, 0]
    small = inner[:, ::3, ::3]
    np.testing.assert_array_equal(inner, small.repeat(3, axis=1).repeat(3, axis=2))
    assert dataset.train_images.sum(dtype=int) == inner.sum(dtype=int)  # the border is black
    originals = {image.tobytes() for image in datasets.load_digits().images}
    levels = np.rint(small / 255 * 16)
    assert all(image.tobytes() in originals for image in levels)


def test_the_same_bytes_on_every_machine():
    assert digits.load().sha256 == GOLDEN_SHA256


GOLDEN_SHA256 = "ea9e8b7792a4003d580edffbd9ea49ba72ac4f2692c04d1a30b20bc3a1defd4a"

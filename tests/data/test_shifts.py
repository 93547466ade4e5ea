import numpy as np
import pytest

from rdpcfl_tff.data.shifts import flip_labels, rotate


@pytest.fixture
def images():
    return np.random.RandomState(0).randint(0, 256, (3, 28, 28, 2), np.uint8)


def test_quarter_turns_are_exact(images):
    for cluster in range(4):
        expected = np.rot90(images, cluster, axes=(1, 2))
        np.testing.assert_array_equal(rotate(images, cluster, 4), expected)
    np.testing.assert_array_equal(rotate(images, 4, 8), rotate(images, 1, 2))


def test_quarter_turn_is_counter_clockwise():
    image = np.zeros((1, 5, 5, 1), np.uint8)
    image[0, 0, 4, 0] = 255  # top right
    assert rotate(image, 1, 4)[0, 0, 0, 0] == 255  # top left


def test_other_angles_turn_the_same_way_as_quarter_turns():
    ramp = np.add.outer(5 * np.arange(28), 2 * np.arange(28)).astype(np.uint8)[None, ..., None]
    nearly = rotate(ramp, 8999, 36_000)  # 89.99 degrees
    quarter = rotate(ramp, 1, 4)
    inside = np.s_[:, 2:-2, 2:-2]
    difference = nearly[inside].astype(int) - quarter[inside]
    assert np.abs(difference).max() <= 1
    assert np.ptp(ramp) > 100


def test_other_angles_keep_type_shape_and_the_centre():
    image = np.zeros((2, 27, 27, 1), np.uint8)
    image[:, 13, 13] = 200
    turned = rotate(image, 1, 3)
    assert turned.dtype == np.uint8
    assert turned.shape == image.shape
    assert (turned[:, 13, 13] == 200).all()


def test_labels_move_round_the_classes():
    labels = np.array([0, 5, 9], np.uint8)
    np.testing.assert_array_equal(flip_labels(labels, 3, 10), [3, 8, 2])
    np.testing.assert_array_equal(flip_labels(labels, 0, 10), labels)
    assert flip_labels(labels, 3, 10).dtype == np.uint8


def test_labels_do_not_overflow_a_byte():
    labels = np.array([250], np.uint8)
    np.testing.assert_array_equal(flip_labels(labels, 10, 255), [5])

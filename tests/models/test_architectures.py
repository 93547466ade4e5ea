"""The paper's two models: their sizes and their seeds."""

import numpy as np
import pytest

from rdpcfl_tff.models.cnn import cnn
from rdpcfl_tff.models.resnet import resnet18


@pytest.mark.parametrize(("build", "parameters"), [(cnn, 28_938), (resnet18, 11_181_642)])
def test_parameter_count_is_the_papers(build, parameters):
    model = build()
    assert model.count_params() == parameters
    assert model.output_shape == (None, 10)
    assert not model.non_trainable_weights


@pytest.mark.parametrize("build", [cnn, resnet18])
def test_initial_weights_are_the_seeds(build):
    first, same, other = (build(seed=seed).get_weights() for seed in (1, 1, 2))
    for one, two, three in zip(first, same, other, strict=True):
        np.testing.assert_array_equal(one, two)
        # GroupNorm starts from ones and zeros, whatever the seed.
        assert len(np.unique(one)) == 1 or not np.array_equal(one, three)


def test_layers_of_one_shape_start_from_different_weights():
    model = resnet18()
    same_shape = [model.get_layer(f"stage4_{name}").get_weights()[0] for name in ("1_b", "2_a")]
    assert same_shape[0].shape == same_shape[1].shape
    assert not np.array_equal(*same_shape)


def test_weights_have_pytorchs_spread():
    kernel, bias = cnn().get_layer("conv2").get_weights()
    limit = (5 * 5 * 16) ** -0.5
    for values in (kernel, bias):
        assert 0.8 * limit < np.abs(values).max() <= limit
    stem = resnet18().get_layer("stem").get_weights()[0]
    assert stem.std() == pytest.approx((2 / (7 * 7 * 64)) ** 0.5, rel=0.05)


def test_other_shapes_and_class_counts():
    assert cnn(input_shape=(32, 32, 3), num_classes=7).output_shape == (None, 7)
    assert resnet18(input_shape=(28, 28, 1), num_classes=62).output_shape == (None, 62)

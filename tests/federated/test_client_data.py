"""Blank records read like real ones, and take no space however many there are."""

import pathlib

import numpy as np
import pytest

from rdpcfl_tff.federated.client_data import RecordFormat


@pytest.mark.parametrize(("kind", "dtype"), [("images", np.uint8), ("features", np.float32)])
def test_blank_records_are_whole_and_zero(tmp_path, kind, dtype):
    records = RecordFormat((4, 3), 0.5, 2.0, kind)
    records.write_blank(str(tmp_path), "train", 5)
    assert records.is_whole(str(tmp_path), "train")
    inputs, labels = records.read(str(tmp_path), "train")
    np.testing.assert_array_equal(inputs, np.zeros((5, 4, 3), dtype), strict=True)
    np.testing.assert_array_equal(labels, np.zeros(5, np.int32), strict=True)


def test_blank_records_take_no_space(tmp_path):
    RecordFormat((32, 32, 3), 0.5, 2.0).write_blank(str(tmp_path), "train", 100_000)
    written = pathlib.Path(tmp_path, "train.images").stat()
    assert written.st_size == 100_000 * 32 * 32 * 3
    assert written.st_blocks * 512 < written.st_size / 1000

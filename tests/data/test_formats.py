import os
import pickle

import numpy as np
import pytest

from rdpcfl_tff.data.dataset import BadData
from rdpcfl_tff.data.formats import decode_cifar_batch, decode_idx
from tests.data.published_files import idx_bytes, write_cifar_batch


def test_idx_round_trip():
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.testing.assert_array_equal(decode_idx(idx_bytes(array), (2, 3, 4), "f"), array)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda raw: raw[:-1], "truncated"),
        (lambda raw: raw[:9], "not an IDX file"),
        (lambda raw: raw + b"x", "too long"),
        (lambda raw: b"\0\0\x0d" + raw[3:], "not an IDX file"),
        (lambda raw: raw[:7] + b"\x05" + raw[8:], r"shape \(5, 3, 4\)"),
    ],
)
def test_damaged_idx_is_refused_by_name(change, fault):
    raw = idx_bytes(np.zeros((2, 3, 4), np.uint8))
    with pytest.raises(BadData, match=rf"^some-file: .*{fault}"):
        decode_idx(change(raw), (2, 3, 4), "some-file")


def test_cifar_batch_round_trip(tmp_path):
    random = np.random.RandomState(0)
    images = random.randint(0, 256, (10_000, 32, 32, 3), np.uint8)
    labels = random.randint(0, 10, 10_000, np.uint8)
    write_cifar_batch(tmp_path / "batch", images, labels)
    found = decode_cifar_batch((tmp_path / "batch").read_bytes(), "batch")
    np.testing.assert_array_equal(found[0], images)
    np.testing.assert_array_equal(found[1], labels)


class Malicious:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_cifar_batch_runs_no_code(tmp_path):
    trace = tmp_path / "trace"
    raw = pickle.dumps({b"data": Malicious(f"touch {trace}"), b"labels": []}, protocol=4)
    with pytest.raises(BadData, match=r"batch: .*system"):
        decode_cifar_batch(raw, "batch")
    assert not trace.exists()


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1]},
        {b"data": np.zeros((10_000, 3072), np.uint8), b"labels": [0, 1]},
    ],
)
def test_other_pickles_are_refused(content):
    with pytest.raises(BadData, match=r"^batch: "):
        decode_cifar_batch(pickle.dumps(content, protocol=4), "batch")

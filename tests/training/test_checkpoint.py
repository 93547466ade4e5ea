import numpy as np
import pytest

from rdpcfl_tff.algorithms.base import State
from rdpcfl_tff.privacy.accounting import Done
from rdpcfl_tff.training import checkpoint

DONE = (Done(True, 9, 2), Done(False, 10, 0), Done())


def state(round_number):
    models = np.random.default_rng(round_number).standard_normal((2, 50)).astype(np.float32)
    return State(round_number, "fixed clusters", models, (0, 1, 1))


def assert_same(saved, expected):
    found, done = saved
    assert done == DONE
    np.testing.assert_array_equal(found.models, expected.models)
    assert found.models.dtype == np.float32
    assert (found.round_number, found.stage) == (expected.round_number, expected.stage)
    assert found.assignment == expected.assignment


def test_the_newest_state_comes_back_and_two_are_kept(tmp_path):
    assert checkpoint.load(tmp_path) is None
    for number in (8, 9, 10, 11):
        checkpoint.save(tmp_path, state(number), DONE)
    assert_same(checkpoint.load(tmp_path), state(11))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint_000010.npz",
        "checkpoint_000011.npz",
    ]


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, caplog, damage):
    checkpoint.save(tmp_path, state(1), DONE)
    checkpoint.save(tmp_path, state(2), DONE)
    path = tmp_path / "checkpoint_000002.npz"
    content = path.read_bytes()
    damaged = {
        "truncated": content[:-7],
        "empty": b"",
        "flipped": content[:200] + bytes([content[200] ^ 1]) + content[201:],
    }
    path.write_bytes(damaged[damage])
    assert_same(checkpoint.load(tmp_path), state(1))
    assert "checkpoint_000002.npz is damaged" in caplog.text


def test_a_checkpoint_cut_anywhere_falls_back(tmp_path):
    checkpoint.save(tmp_path, state(1), DONE)
    large = State(2, "fixed clusters", np.zeros((4, 5000), np.float32), (0, 1, 1))
    checkpoint.save(tmp_path, large, DONE)
    path = tmp_path / "checkpoint_000002.npz"
    content = path.read_bytes()
    for length in range(0, len(content), 1024):
        path.write_bytes(content[:length])
        assert_same(checkpoint.load(tmp_path), state(1))

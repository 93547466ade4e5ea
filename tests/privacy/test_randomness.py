"""Streams do not collide, runs repeat, and the key file is for its owner only."""

import itertools
import os
import stat
import subprocess
import sys

import pytest

from rdpcfl_tff.errors import UserError
from rdpcfl_tff.privacy import randomness
from rdpcfl_tff.privacy.randomness import Purpose, load_key, os_key, run_key, save_key, stream_seed


def test_no_two_uses_share_a_stream():
    key = run_key(0)
    uses = list(itertools.product(Purpose, range(200), range(21)))
    seeds = {stream_seed(key, purpose, round=e, client=i) for purpose, e, i in uses}
    assert len(seeds) == len(uses)


def test_round_and_client_are_not_mixed_up():
    key = run_key(0)
    assert stream_seed(key, Purpose.SELECTION, round=1, client=12) != stream_seed(
        key, Purpose.SELECTION, round=11, client=2
    )


def test_seeds_are_int32_and_use_all_of_its_bits():
    seeds = [stream_seed(run_key(0), Purpose.ASSIGNMENT, round=e) for e in range(2000)]
    for words in zip(*seeds, strict=True):
        assert -(2**31) <= min(words) < -(2**31) * 0.99
        assert 2**31 * 0.99 < max(words) < 2**31


def test_streams_are_the_same_in_every_process():
    command = (
        "from rdpcfl_tff.privacy.randomness import *;"
        "print(stream_seed(run_key(7), Purpose.SELECTION, round=3, client=20))"
    )
    there = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    here = stream_seed(run_key(7), Purpose.SELECTION, round=3, client=20)
    assert there.stdout.strip() == str(here)


def test_another_run_seed_is_another_key():
    assert len({run_key(seed) for seed in range(-50, 50)}) == 100
    assert run_key(1) == run_key(1)


def test_operating_system_keys_never_repeat():
    assert len({os_key() for _ in range(100)}) == 100
    assert len(os_key()) == 32


def test_needs_no_tensorflow():
    command = (
        "import rdpcfl_tff.privacy.randomness, rdpcfl_tff.privacy.statement, sys;"
        "assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", command], check=True)


def test_key_file_round_trip(tmp_path):
    path = tmp_path / "noise.key"
    key = os_key()
    save_key(path, key)
    assert load_key(path) == key


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_key_file_is_private_before_the_key_is_in_it(tmp_path, monkeypatch, umask):
    path = tmp_path / "noise.key"
    modes = []
    fdopen = os.fdopen

    def look_at_the_file_then_open(*args):
        modes.append((stat.S_IMODE(path.stat().st_mode), path.stat().st_size))
        return fdopen(*args)

    monkeypatch.setattr(randomness.os, "fdopen", look_at_the_file_then_open)
    before = os.umask(umask)
    try:
        save_key(path, os_key())
    finally:
        os.umask(before)
    assert modes == [(0o600, 0)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_key_file_is_never_overwritten(tmp_path):
    path = tmp_path / "noise.key"
    save_key(path, os_key())
    with pytest.raises(UserError, match="exists already"):
        save_key(path, os_key())


def test_key_is_not_written_through_a_link(tmp_path):
    (tmp_path / "noise.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="exists already"):
        save_key(tmp_path / "noise.key", os_key())
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o666, 0o700])
def test_a_key_that_others_may_have_read_is_refused(tmp_path, mode):
    path = tmp_path / "noise.key"
    save_key(path, os_key())
    path.chmod(mode)
    with pytest.raises(UserError, match=f"mode {mode:04o}.*chmod 600"):
        load_key(path)


def test_half_a_key_is_refused(tmp_path):
    path = tmp_path / "noise.key"
    save_key(path, os_key()[:16])
    with pytest.raises(UserError, match="16 bytes"):
        load_key(path)

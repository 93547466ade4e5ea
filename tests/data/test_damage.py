"""Files that somebody damaged or edited: an error of ours, or the right content."""

import copy
import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdpcfl_tff.data.dataset import BadData
from rdpcfl_tff.data.formats import decode_cifar_batch, decode_idx
from rdpcfl_tff.data.store import SiloStore
from rdpcfl_tff.errors import UserError
from tests.data.published_files import idx_bytes, write_cifar_batch

JUNK = (None, -1, 0, 2**70, 1.5, "", "x", [], {}, [[]], True)


def test_idx_with_any_byte_changed():
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    raw = idx_bytes(array)
    header = len(raw) - array.size
    for position in range(len(raw)):
        damaged = bytearray(raw)
        damaged[position] ^= 0xFF
        if position < header:
            with pytest.raises(BadData):
                decode_idx(bytes(damaged), array.shape, "file")
        else:
            # A pixel has no redundancy: the SHA-256 of the whole file guards it.
            decoded = decode_idx(bytes(damaged), array.shape, "file")
            assert (decoded != array).sum() == 1


def test_idx_cut_anywhere():
    raw = idx_bytes(np.zeros((2, 3, 4), np.uint8))
    for length in range(len(raw)):
        with pytest.raises(BadData):
            decode_idx(raw[:length], (2, 3, 4), "file")


def test_a_cifar_batch_with_a_changed_byte_around_its_pixels(tmp_path):
    random = np.random.RandomState(0)
    images = random.randint(0, 256, (10_000, 32, 32, 3), np.uint8)
    labels = random.randint(0, 10, 10_000, np.uint8)
    write_cifar_batch(tmp_path / "batch", images, labels)
    raw = (tmp_path / "batch").read_bytes()
    refused = 0
    for position in (*range(0, 160, 4), *range(len(raw) - 160, len(raw), 4)):
        damaged = bytearray(raw)
        damaged[position] ^= 0xFF
        try:
            found_images, found_labels = decode_cifar_batch(bytes(damaged), "batch")
        except BadData:
            refused += 1
        else:
            assert found_images.shape == images.shape and found_labels.shape == labels.shape
    assert refused > 0


def places(value, path=()):
    """The paths to everything inside a JSON value."""
    yield path
    if isinstance(value, dict):
        value = list(value.items())
    elif isinstance(value, list):
        value = list(enumerate(value))
    else:
        return
    for key, child in value:
        yield from places(child, (*path, key))


def edited(value, path, junk):
    """The value with junk in one place."""
    if not path:
        return junk
    value = copy.deepcopy(value)
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = junk
    return value


@pytest.mark.parametrize("name", ["manifest.json", "simulation.json"])
@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_an_edited_silo_store_is_refused_or_still_the_same(
    digits_store, tmp_path_factory, name, data
):
    folder = tmp_path_factory.mktemp("edited") / "store"
    shutil.copytree(digits_store.path, folder)
    original = json.loads((folder / name).read_text())
    path = data.draw(st.sampled_from(list(places(original))))
    (folder / name).write_text(json.dumps(edited(original, path, data.draw(st.sampled_from(JUNK)))))
    try:
        store = SiloStore.open(folder)
        store.verify()
    except UserError as error:
        assert str(folder) in str(error)
    else:
        for client in range(store.num_clients):
            _, labels = store.read(client, "train")
            _, expected = digits_store.read(client, "train")
            np.testing.assert_array_equal(labels, expected)
    finally:
        shutil.rmtree(folder)

import subprocess
import sys

import numpy as np
import pytest

from rdpcfl_tff.data import sources, tfds_source
from rdpcfl_tff.data.dataset import BadData

# TFDS' own MNIST builder and writer, given 72 records instead of a download.
PREPARE = """
import sys
import numpy as np
import tensorflow_datasets as tfds

saved = np.load(sys.argv[1])
builder = tfds.builder("mnist")

def records(split):
    pairs = zip(saved[f"{split}_images"], saved[f"{split}_labels"])
    return enumerate({"image": image, "label": int(label)} for image, label in pairs)

builder._split_generators = lambda manager: {s: records(s) for s in ("train", "test")}
builder.download_and_prepare()
"""


def test_prepared_set_is_found_and_put_in_the_published_order(
    tiny_mnist, tiny_arrays, no_internet, tmp_path
):
    np.savez(tmp_path / "records.npz", **tiny_arrays._asdict())
    command = [sys.executable, "-c", PREPARE, str(tmp_path / "records.npz")]
    subprocess.run(command, check=True, capture_output=True)
    assert tfds_source.is_prepared(tiny_mnist)
    dataset = sources.load("mnist", cache_dir=tmp_path / "cache")
    assert dataset.source == "TFDS, prepared before"
    np.testing.assert_array_equal(dataset.train_images, tiny_arrays.train_images)


def test_a_network_without_internet_is_noticed_before_tfds_starts(
    tiny_mnist, no_internet, monkeypatch
):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(BadData, match="cannot be reached"):
        tfds_source.download(tiny_mnist)


def test_a_failing_tfds_is_a_reason_not_a_crash(tiny_mnist, no_internet, tmp_path):
    version = tmp_path / "no_tfds" / "mnist" / "3.0.1"
    version.mkdir(parents=True)
    (version / "dataset_info.json").write_text("not JSON")
    with pytest.raises(BadData, match=r"TFDS failed: .*JSON"):
        tfds_source.read_prepared(tiny_mnist)


def test_importing_the_data_package_does_not_load_tensorflow():
    code = "import sys; import rdpcfl_tff.data.sources, rdpcfl_tff.data.silos; print(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert "rdpcfl_tff.data.sources" in found
    assert "tensorflow" not in found
    assert "tensorflow_datasets" not in found

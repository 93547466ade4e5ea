import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rdpcfl_tff.data import sources
from rdpcfl_tff.data.dataset import Dataset
from rdpcfl_tff.data.shifts import flip_labels, rotate
from rdpcfl_tff.data.silos import SiloConfig, build_store
from rdpcfl_tff.data.store import SPLITS, SiloStore
from rdpcfl_tff.errors import UserError


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return sources.load("digits")


@pytest.fixture
def numbered() -> Dataset:
    """Each image spells its record's number, so that a record can be followed into its silo."""

    def images(first: int, count: int) -> np.ndarray:
        numbers = np.arange(first, first + count, dtype=">u2")
        return np.repeat(numbers.view(np.uint8).reshape(count, 1, 2, 1), 2, axis=1)

    def labels(count: int) -> np.ndarray:
        return (np.arange(count) % 10).astype(np.uint8)

    return Dataset("numbered", images(0, 600), labels(600), images(600, 66), labels(66), 10, "test")


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def numbers(store: SiloStore, client: int, split: str) -> np.ndarray:
    images, _ = store.read(client, split)
    return images[:, 0, :, 0].astype(int) @ [256, 1]


# The split


def test_overlapping_clients_draw_independently_and_can_have_more(numbered, tmp_path):
    config = SiloConfig((2, 3), "label_flip", samples_per_client=400, overlap=True)
    store = build_store(numbered, config, tmp_path / "store")
    assert store.client_sizes == {"train": (320,) * 5, "validation": (80,) * 5, "test": (22,) * 5}
    own = [
        np.concatenate([numbers(store, client, split) for split in ("train", "validation")])
        for client in range(5)
    ]
    assert all(len(set(records)) == 400 for records in own)
    # Two draws of 400 from 600 have 267 in common on average, with a standard deviation of 9.4.
    for one, other in ((0, 1), (2, 3), (3, 4)):
        assert 220 < len(set(own[one]) & set(own[other])) < 314
    with pytest.raises(UserError, match="--samples_per_client=601"):
        build_store(numbered, replace(config, samples_per_client=601), tmp_path / "more")


def test_every_cluster_shares_the_data_set_without_overlap(numbered, tmp_path):
    config = SiloConfig(cluster_sizes=(2, 3), shift="label_flip", seed=5)
    store = build_store(numbered, config, tmp_path / "store")
    assert store.true_clusters == (0, 0, 1, 1, 1)
    assert store.num_clients == 5
    assert store.client_sizes == {"train": (160,) * 5, "validation": (40,) * 5, "test": (22,) * 5}
    for clients in ([0, 1], [2, 3, 4]):
        records = np.concatenate([numbers(store, c, split) for c in clients for split in SPLITS])
        assert len(set(records)) == len(records)
    assert set(np.concatenate([numbers(store, c, "test") for c in (2, 3, 4)])) == set(
        range(600, 666)
    )
    assert not np.array_equal(numbers(store, 0, "train"), numbers(store, 2, "train"))


def test_labels_are_shifted_by_the_cluster_and_stay_with_their_images(numbered, tmp_path):
    config = SiloConfig(cluster_sizes=(1, 2, 1), shift="label_flip")
    store = build_store(numbered, config, tmp_path / "store")
    for client, cluster in enumerate(store.true_clusters):
        for split in SPLITS:
            originals = numbers(store, client, split) % 600 % 10
            _, labels = store.read(client, split)
            np.testing.assert_array_equal(labels, flip_labels(originals, cluster, 10))


def test_images_are_rotated_by_the_cluster(digits, tmp_path):
    store = build_store(digits, SiloConfig(cluster_sizes=(1, 1, 1, 1)), tmp_path / "store")
    originals = {image.tobytes() for image in digits.train_images}
    for client, cluster in enumerate(store.true_clusters):
        images, _ = store.read(client, "train")
        back = rotate(images, 4 - cluster, 4)
        assert {image.tobytes() for image in back} <= originals


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [
        (60_000, 10_000, {"train": 8_000, "validation": 2_000, "test": 1_666}),
        (50_000, 10_000, {"train": 6_666, "validation": 1_667, "test": 1_666}),
    ],
)
def test_the_papers_sizes(train, test, expected, tmp_path):
    dataset = Dataset(
        "as large as the paper's",
        np.zeros((train, 1, 1, 1), np.uint8),
        np.zeros(train, np.uint8),
        np.zeros((test, 1, 1, 1), np.uint8),
        np.zeros(test, np.uint8),
        10,
        "test",
    )
    store = build_store(dataset, SiloConfig(), tmp_path / "store")
    assert store.num_clients == 21
    assert {split: set(sizes) for split, sizes in store.client_sizes.items()} == {
        split: {size} for split, size in expected.items()
    }


def test_samples_per_client_shrinks_all_splits(numbered, tmp_path):
    config = SiloConfig(cluster_sizes=(3,), samples_per_client=50)
    store = build_store(numbered, config, tmp_path / "store")
    assert store.client_sizes == {"train": (40,) * 3, "validation": (10,) * 3, "test": (5,) * 3}


# The files


def test_same_seed_same_bytes(digits, tmp_path):
    config = SiloConfig(seed=3)
    for name in ("one", "two"):
        build_store(digits, config, tmp_path / name)
    build_store(digits, replace(config, seed=4), tmp_path / "three")
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert files(tmp_path / "one") != files(tmp_path / "three")


def test_store_round_trip(digits, tmp_path):
    config = SiloConfig(cluster_sizes=(1, 2), samples_per_client=20)
    built = build_store(digits, config, tmp_path / "store")
    opened = SiloStore.open(tmp_path / "store")
    opened.verify()
    assert opened == built
    assert opened.simulation["config"]["samples_per_client"] == config.samples_per_client
    assert (opened.kind, opened.input_shape) == ("images", (28, 28, 1))
    assert opened.num_classes == 10
    assert (opened.normalisation.mean, opened.normalisation.std) == (0.1307, 0.3081)
    raw = (tmp_path / "store" / "client_002" / "validation.images").read_bytes()
    images, labels = opened.read(2, "validation")
    assert raw == images.tobytes()
    assert len(labels) == opened.client_sizes["validation"][2] == 4


def test_the_manifest_does_not_tell_the_clusters(digits, tmp_path):
    config = SiloConfig(cluster_sizes=(1, 2), samples_per_client=20)
    build_store(digits, config, tmp_path / "store")
    manifest = json.loads((tmp_path / "store" / "manifest.json").read_text())
    assert not {"true_clusters", "config", "cluster_sizes", "shift", "seed"} & set(manifest)
    assert set(manifest["clients"][0]) == set(SPLITS)


def test_the_same_store_is_reused(digits, tmp_path):
    config = SiloConfig(cluster_sizes=(1, 2), samples_per_client=20)
    build_store(digits, config, tmp_path / "store")
    path = tmp_path / "store" / "client_000" / "train.images"
    before = path.stat().st_mtime_ns
    build_store(digits, config, tmp_path / "store")
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"cluster_sizes": (2, 1)}, {"shift": "label_flip"}, {"samples_per_client": 30}],
)
def test_another_store_is_refused(digits, tmp_path, change):
    config = SiloConfig(cluster_sizes=(1, 2), samples_per_client=20)
    build_store(digits, config, tmp_path / "store")
    before = files(tmp_path / "store")
    with pytest.raises(UserError, match=f"holds another silo store .*{next(iter(change))}"):
        build_store(digits, replace(config, **change), tmp_path / "store")
    assert files(tmp_path / "store") == before


def test_store_of_another_data_set_is_refused(digits, numbered, tmp_path):
    build_store(digits, SiloConfig(cluster_sizes=(1,)), tmp_path / "store")
    with pytest.raises(UserError, match="dataset digits, now numbered"):
        build_store(numbered, SiloConfig(cluster_sizes=(1,)), tmp_path / "store")


@pytest.mark.parametrize(
    ("file", "edit"),
    [
        ("client_001/train.images", lambda raw: raw[:-1] + bytes([raw[-1] ^ 1])),
        ("client_000/test.labels", lambda raw: raw[:-1]),
        ("client_002/validation.labels", lambda raw: None),
        ("manifest.json", lambda raw: raw[:-20]),
        ("manifest.json", lambda raw: raw.replace(b'"records": 16', b'"records": 15')),
        ("simulation.json", lambda raw: b"{}"),
        ("simulation.json", lambda raw: raw.replace(b'"seed"', b'"sead"')),
    ],
)
def test_edited_store_is_detected(digits, tmp_path, file, edit):
    config = SiloConfig(cluster_sizes=(1, 2), samples_per_client=20)
    build_store(digits, config, tmp_path / "store")
    path = tmp_path / "store" / file
    content = edit(path.read_bytes())
    assert content != path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"Delete this silo store") as caught:
        build_store(digits, config, tmp_path / "store")
    if "client" in file:
        assert file in str(caught.value)


def test_store_of_a_later_format_is_refused(digits, tmp_path):
    config = SiloConfig(cluster_sizes=(1,))
    build_store(digits, config, tmp_path / "store")
    path = tmp_path / "store" / "manifest.json"
    path.write_text(path.read_text().replace('"format_version": 2', '"format_version": 3'))
    with pytest.raises(UserError, match="not of format version 2"):
        SiloStore.open(tmp_path / "store")


def test_folder_with_something_else_is_left_alone(digits, tmp_path):
    (tmp_path / "thesis.tex").write_text("do not overwrite")
    with pytest.raises(UserError, match="is not empty and no silo store"):
        build_store(digits, SiloConfig(), tmp_path)
    assert files(tmp_path) == {"thesis.tex": b"do not overwrite"}


def test_unwritable_folder(digits, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write in"):
        build_store(digits, SiloConfig(), tmp_path / "file" / "store")


NO_SPACE = """
import resource, sys
from pathlib import Path
from rdpcfl_tff.data import silos, sources
from rdpcfl_tff.errors import UserError

digits = sources.load("digits")
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    silos.build_store(digits, silos.SiloConfig(), Path(sys.argv[1]))
except UserError as error:
    print(error)
"""


def test_no_space_left_leaves_nothing_half_written(digits, tmp_path):
    command = [sys.executable, "-c", NO_SPACE, str(tmp_path / "store")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "no space left" in printed
    assert [path.name for path in tmp_path.iterdir()] == [".store.lock"]


def test_leftover_of_a_killed_run_is_no_obstacle(digits, tmp_path):
    (tmp_path / "store.partial" / "client_000").mkdir(parents=True)
    (tmp_path / "store.partial" / "client_999").mkdir(parents=True)
    build_store(digits, SiloConfig(), tmp_path / "store")
    assert not (tmp_path / "store.partial").exists()
    assert not (tmp_path / "store" / "client_999").exists()


# Bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cluster_sizes": ()}, "--cluster_sizes is empty: zero clients"),
        ({"cluster_sizes": (3, 0, 6)}, "--cluster_sizes=3,0,6: every cluster"),
        ({"cluster_sizes": (3, -1)}, "--cluster_sizes=3,-1: every cluster"),
        ({"shift": "blur"}, "--shift=blur: unknown; use one of rotation, label_flip"),
        ({"samples_per_client": 1}, "--samples_per_client=1: a client needs at least 2"),
        ({"seed": -1}, "--seed=-1"),
    ],
)
def test_bad_config(arguments, message):
    with pytest.raises(UserError, match=f"^{message}"):
        SiloConfig(**arguments)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (SiloConfig(cluster_sizes=(700,)), "--cluster_sizes=700: digits has 1437 train"),
        (SiloConfig(cluster_sizes=(361,)), "--cluster_sizes=361: digits has 1437 train and 360"),
        (SiloConfig(samples_per_client=240), "--samples_per_client=240: .*at most 239 each"),
        (
            SiloConfig(cluster_sizes=(1,) * 11, shift="label_flip"),
            "--shift=label_flip: 10 classes make at most",
        ),
    ],
)
def test_config_that_does_not_fit_the_data(digits, tmp_path, config, message):
    with pytest.raises(UserError, match=f"^{message}"):
        build_store(digits, config, tmp_path / "store")
    assert not any(tmp_path.iterdir())

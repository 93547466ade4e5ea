"""Folders of a user's own: what is read from them, and every way in which they can be wrong."""

import json
import os

import numpy as np
import pytest
from PIL import Image

from rdpcfl_tff.data import own_folder
from rdpcfl_tff.data.store import SPLITS, ClientBudget
from rdpcfl_tff.errors import UserError

IMAGES = {"image_shape": [4, 3, 1], "num_classes": 3}
FEATURES = {"feature_shape": [5], "num_classes": 3}


def random_images(seed: int, records: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(seed)
    return random.randint(0, 256, (records, 4, 3, 1), np.uint8), random.randint(0, 3, records)


@pytest.fixture
def folder(tmp_path):
    """Two clients as npz files: 20 and 40 images."""
    path = tmp_path / "hospitals"
    path.mkdir()
    write_manifest(path, IMAGES)
    for seed, (name, records) in enumerate((("north", 20), ("south", 40))):
        x, y = random_images(seed, records)
        np.savez(path / f"{name}.npz", x=x, y=y)
    return path


def write_manifest(folder, content) -> None:
    (folder / "manifest.json").write_text(json.dumps(content))


def opened(folder, seed: int = 0):
    return own_folder.open_folder(folder, seed, folder.parent / "stores")


def all_records(store, client: int) -> set[tuple[bytes, int]]:
    return {
        (record.tobytes(), int(label))
        for split in SPLITS
        for record, label in zip(*store.read(client, split), strict=True)
    }


def test_every_record_is_in_one_split_with_its_label(folder):
    store = opened(folder)
    assert store.client_names == ("north.npz", "south.npz")
    assert store.client_sizes == {"train": (14, 28), "validation": (2, 4), "test": (4, 8)}
    assert (store.kind, store.input_shape, store.num_classes) == ("images", (4, 3, 1), 3)
    assert store.true_clusters == ()
    for client, records in enumerate((20, 40)):
        x, y = random_images(client, records)
        expected = {(image.tobytes(), int(label)) for image, label in zip(x, y, strict=True)}
        assert all_records(store, client) == expected


def test_the_seed_decides_the_split_of_a_client_and_nobody_else_does(folder):
    before = opened(folder).read(1, "train")[0]
    assert not np.array_equal(before, opened(folder, seed=1).read(1, "train")[0])
    (folder / "north.npz").unlink()
    np.testing.assert_array_equal(opened(folder).read(0, "train")[0], before)


def test_a_folder_is_decoded_once_until_it_changes(folder):
    store = opened(folder)
    files = [path for path in store.path.rglob("*") if path.is_file()]
    written = {path: path.stat().st_mtime_ns for path in files}
    again = opened(folder)
    assert again == store and {path: path.stat().st_mtime_ns for path in files} == written
    assert store.path.stat().st_mode & 0o777 == 0o700, "private records are the owner's alone"
    os.utime(folder / "north.npz", ns=(0, 0))
    assert opened(folder).path != store.path
    assert opened(folder).sha256 == store.sha256, "the records are the same"


def test_splits_that_the_npz_names_are_kept(folder):
    x, y = random_images(5, 12)
    parts = {"train": slice(0, 6), "validation": slice(6, 8), "test": slice(8, 12)}
    arrays = {f"x_{split}": x[part] for split, part in parts.items()}
    arrays |= {f"y_{split}": y[part] for split, part in parts.items()}
    np.savez(folder / "north.npz", **arrays)
    store = opened(folder)
    for split, part in parts.items():
        images, labels = store.read(0, split)
        np.testing.assert_array_equal(images, x[part])
        np.testing.assert_array_equal(labels, y[part])


def test_grey_images_need_no_channel(folder):
    x, y = random_images(0, 20)
    np.savez(folder / "north.npz", x=x[..., 0], y=y)
    expected = {(image.tobytes(), int(label)) for image, label in zip(x, y, strict=True)}
    assert all_records(opened(folder), 0) == expected


def test_features_become_float32(folder):
    write_manifest(folder, FEATURES | {"normalisation": {"mean": 2.0, "std": 4.0}})
    for name in ("north", "south"):
        np.savez(folder / f"{name}.npz", x=np.arange(100.0).reshape(20, 5), y=np.zeros(20, int))
    store = opened(folder)
    assert (store.kind, store.input_shape) == ("features", (5,))
    assert (store.normalisation.mean, store.normalisation.std) == (2.0, 4.0)
    features = np.concatenate([store.read(0, split)[0] for split in SPLITS])
    assert features.dtype == np.float32
    np.testing.assert_array_equal(np.sort(features.ravel()), np.arange(100))
    store.verify()


def test_a_folder_of_images_by_class(folder):
    write_manifest(folder, {"image_shape": [4, 3, 1], "classes": ["calm", "ill"], "clients": {}})
    x, _ = random_images(3, 8)
    for name in ("north", "south"):
        (folder / f"{name}.npz").unlink()
    for index, image in enumerate(x):
        place = folder / "east" / ("ill" if index % 2 else "calm")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(place / f"{index}.png")
    store = opened(folder)
    assert store.manifest["class_names"] == ["calm", "ill"]
    expected = {(image.tobytes(), index % 2) for index, image in enumerate(x)}
    assert all_records(store, 0) == expected


def test_tfrecords_of_pixels_and_of_encoded_images(folder):
    import tensorflow as tf

    x, y = random_images(4, 10)

    def example(index: int) -> bytes:
        png = tf.io.encode_png(x[index]).numpy()
        image = png if index % 2 else x[index].tobytes()
        features = {
            "x": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
            "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[y[index]])),
        }
        return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()

    with tf.io.TFRecordWriter(str(folder / "east.tfrecord")) as writer:
        for index in range(10):
            writer.write(example(index))
    expected = {(image.tobytes(), int(label)) for image, label in zip(x, y, strict=True)}
    assert all_records(opened(folder), 0) == expected
    (folder / "east.tfrecord").write_bytes(b"this is no record at all")
    with pytest.raises(UserError, match=r"east.tfrecord: cannot be read"):
        opened(folder)


def test_what_a_client_has_of_its_own(folder):
    (folder / "manifest.json").unlink()
    (folder / "manifest.toml").write_text(
        """
        image_shape = [4, 3, 1]
        num_classes = 3
        [clients."north.npz"]
        epsilon = 4
        batch_size = 7
        true_cluster = 5
        [clients."south.npz"]
        delta = 1e-3
        true_cluster = 2
        """
    )
    store = opened(folder)
    assert store.budgets == (ClientBudget(epsilon=4, batch_size=7), ClientBudget(delta=1e-3))
    assert store.true_clusters == (1, 0)
    assert "true_cluster" not in (store.path / "manifest.json").read_text()


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"num_classes": 3}, "must have either an image_shape"),
        (IMAGES | FEATURES, "must have either an image_shape"),
        (IMAGES | {"image_shape": [4, 3]}, "must be height, width and channels"),
        (IMAGES | {"image_shape": [4, 0, 1]}, "no shape of a record"),
        (IMAGES | {"image_shape": "4x3"}, "must be lists"),
        (IMAGES | {"num_classes": 1}, "num_classes is 1"),
        (IMAGES | {"num_classes": 300}, "from 2 to 256"),
        ({"image_shape": [4, 3, 1]}, "num_classes is 0"),
        (IMAGES | {"classes": ["a", "b"]}, "num_classes is 3, and classes has 2"),
        (IMAGES | {"classes": ["a", "b", "a"]}, "a name twice"),
        (IMAGES | {"colour": "red"}, "unknown field 'colour'"),
        (IMAGES | {"normalisation": {"mean": 0}}, "normalisation must be two public numbers"),
        (IMAGES | {"normalisation": {"mean": 0, "std": 0}}, "normalisation must be two"),
        (IMAGES | {"clients": {"west.npz": {}}}, "names the client 'west.npz'"),
        (IMAGES | {"clients": ["north.npz"]}, "clients must be an object"),
        (IMAGES | {"clients": {"north.npz": {"eps": 3}}}, "north.npz: unknown field 'eps'"),
        (IMAGES | {"clients": {"north.npz": {"epsilon": -1}}}, "north.npz: epsilon is -1"),
        (IMAGES | {"clients": {"north.npz": {"delta": 2}}}, "north.npz: delta is 2"),
        (IMAGES | {"clients": {"north.npz": {"batch_size": 0.5}}}, "north.npz: batch_size is 0.5"),
        (IMAGES | {"clients": {"north.npz": {"true_cluster": 0}}}, "south.npz has no true_cluster"),
    ],
)
def test_bad_manifests(folder, manifest, message):
    write_manifest(folder, manifest)
    with pytest.raises(UserError, match=message):
        opened(folder)


def test_a_folder_without_a_manifest_or_without_clients(folder):
    with pytest.raises(UserError, match="no such folder"):
        opened(folder / "nowhere")
    (folder / "manifest.json").write_text("{image_shape")
    with pytest.raises(UserError, match=r"manifest.json: cannot be read"):
        opened(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"no manifest.json or manifest.toml; write one"):
        opened(folder)
    write_manifest(folder, IMAGES)
    for name in ("north", "south"):
        (folder / f"{name}.npz").unlink()
    with pytest.raises(UserError, match=r"has no client; put one .npz"):
        opened(folder)


X, Y = random_images(0, 20)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "must have x and y"),
        ({"x_train": X, "y_train": Y}, "all of x_train, y_train, x_validation"),
        ({"x": X[:, :3], "y": Y}, r"x has shape \(20, 3, 3, 1\)"),
        ({"x": X / 255, "y": Y}, "holds float64, and images are uint8"),
        ({"x": X, "y": Y[:-1]}, r"y has shape \(19,\)"),
        ({"x": X, "y": Y + 0.5}, "there is no regression"),
        ({"x": X, "y": Y + 1}, "has the label 3, and must be from 0 to 2"),
        ({"x": X, "y": Y - 1}, "has the label -1"),
        ({"x": X[:0], "y": Y[:0]}, "has 0 records"),
        ({"x": X[:3], "y": Y[:3]}, "has 3 records; a client needs at least 4"),
        ({"x": X, "y": np.array([None] * 20)}, "cannot be read"),
    ],
)
def test_bad_records_are_told_with_their_client(folder, arrays, message):
    np.savez(folder / "south.npz", **arrays)
    with pytest.raises(UserError, match=rf"south.npz.*{message}"):
        opened(folder)
    stores = folder.parent / "stores"
    assert all(path.name.endswith(".lock") for path in stores.iterdir()), "nothing half-built"


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e300])
def test_features_that_are_no_numbers(folder, wrong):
    write_manifest(folder, FEATURES)
    features = np.zeros((20, 5))
    np.savez(folder / "north.npz", x=features, y=Y)
    features[7, 2] = wrong
    np.savez(folder / "south.npz", x=features, y=Y)
    with pytest.raises(UserError, match=r"south.npz: x has a NaN .* in record 7"):
        opened(folder)


def test_an_npz_that_is_none(folder):
    (folder / "south.npz").write_bytes(b"garbage")
    with pytest.raises(UserError, match=r"south.npz: cannot be read"):
        opened(folder)


def test_bad_image_folders(folder):
    east = folder / "east"
    east.mkdir()
    with pytest.raises(UserError, match="east: has no PNG or JPEG image"):
        opened(folder)
    (east / "dog").mkdir()
    with pytest.raises(UserError, match="dog: is no class; the classes are 0, 1, 2"):
        opened(folder)
    (east / "dog").rename(east / "1")
    (east / "1" / "a.png").write_bytes(b"garbage")
    with pytest.raises(UserError, match=r"a.png: no image that can be read"):
        opened(folder)
    Image.new("L", (4, 3)).save(east / "1" / "a.png")
    with pytest.raises(UserError, match=r"a.png: is 3 x 4 pixels"):
        opened(folder)
    write_manifest(folder, FEATURES)
    with pytest.raises(UserError, match="east: is a folder of images"):
        opened(folder)

"""`rdpcfl_tff.run` on arrays, datasets and ClientData, with models of one's own."""

import doctest
import math
import subprocess
import sys

import numpy as np
import pytest

import rdpcfl_tff
from rdpcfl_tff import api
from rdpcfl_tff.errors import UserError

CONFIG = {
    "epsilon": math.inf,
    "rounds": 2,
    "batch_size": 8,
    "learning_rate": 0.3,
    "num_clusters": 2,
    "eval_every": 2,
}


def clouds(cluster: int, seed: int, records: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Two Gaussian clouds; in cluster 1 their labels are exchanged."""
    random = np.random.RandomState(seed)
    y = random.randint(0, 2, records)
    x = random.normal(size=(records, 3)) + 4 * y[:, np.newaxis]
    return x, (y + cluster) % 2


def four_clients() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {f"site {i}": clouds(i // 2, seed=i, records=40 + 10 * i) for i in range(4)}


def config(**changes) -> rdpcfl_tff.RunConfig:
    return rdpcfl_tff.RunConfig(**CONFIG | changes)


def test_importing_the_package_does_not_import_tensorflow():
    code = "import rdpcfl_tff, sys; rdpcfl_tff.run; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
    with pytest.raises(AttributeError, match="no attribute 'ruin'"):
        _ = rdpcfl_tff.ruin


def test_the_example_in_the_docstring():
    assert doctest.testmod(rdpcfl_tff) == doctest.TestResults(failed=0, attempted=2)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api")
    return rdpcfl_tff.run(
        four_clients(),
        config=config(rounds=6, batch_size=4),
        output_dir=folder / "run",
        cache_dir=folder / "cache",
    )


def test_a_run_on_arrays_finds_the_clusters_and_learns(result):
    groups = [result.assignment[f"site {i}"] for i in range(4)]
    assert groups[0] == groups[1] != groups[2] == groups[3]
    assert result.summary["simulation_test_accuracy"]["worst"] > 0.9
    assert (result.path / "summary.json").exists()


def test_its_models_take_raw_records(result):
    for number, (x, y) in enumerate(four_clients().values()):
        model = result.models[result.assignment[f"site {number}"]]
        probabilities = model.predict(x.astype(np.float32), verbose=0)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
        assert np.mean(probabilities.argmax(axis=1) == y) > 0.9


def test_it_can_be_exported(result, tmp_path):
    result.export(tmp_path / "models")
    written = {path.name for path in (tmp_path / "models").iterdir()}
    assert written == {"cluster_0", "cluster_1", "MODEL_CARD.md", "simulation_metrics.md"}
    with pytest.raises(UserError, match="is not empty"):
        result.export(tmp_path / "models")


def own_keras_model():
    import tensorflow as tf

    inputs = tf.keras.Input((3,))
    hidden = tf.keras.layers.Dense(4, activation="tanh", kernel_initializer="ones")(inputs)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(2, kernel_initializer="ones")(hidden))


def test_a_keras_model_of_ones_own(tmp_path):
    model = own_keras_model()
    before = [weight.copy() for weight in model.get_weights()]
    result = rdpcfl_tff.run(
        four_clients(), model, config(), tmp_path / "run", cache_dir=tmp_path / "cache"
    )
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert result.models[0].count_params() == model.count_params() == 3 * 4 + 4 + 4 * 2 + 2


def test_a_model_that_does_not_fit_is_refused(tmp_path):
    import tensorflow as tf

    def normalised(input_shape, num_classes, seed):
        inputs = tf.keras.Input(input_shape)
        values = tf.keras.layers.BatchNormalization()(inputs)
        return tf.keras.Model(inputs, tf.keras.layers.Dense(num_classes)(values))

    def too_wide(input_shape, num_classes, seed):
        inputs = tf.keras.Input(input_shape)
        return tf.keras.Model(inputs, tf.keras.layers.Dense(num_classes + 1)(inputs))

    places = {"output_dir": tmp_path / "run", "cache_dir": tmp_path / "cache"}
    with pytest.raises(UserError, match="GroupNormalization"):
        rdpcfl_tff.run(four_clients(), normalised, config(), **places)
    with pytest.raises(UserError, match="the data needs"):
        rdpcfl_tff.run(four_clients(), too_wide, config(), **places)
    with pytest.raises(UserError, match="IFCA begins with several models"):
        rdpcfl_tff.run(four_clients(), own_keras_model(), config(algorithm="ifca"), **places)
    assert not (tmp_path / "run").exists()


def test_datasets_and_client_data_are_the_arrays_they_hold():
    import tensorflow as tf
    import tensorflow_federated as tff

    arrays = four_clients()
    single = {name: tf.data.Dataset.from_tensor_slices(pair) for name, pair in arrays.items()}
    batched = {name: dataset.batch(7) for name, dataset in single.items()}
    named = tff.simulation.datasets.TestClientData(
        {name: {"label": y, "pixels": x} for name, (x, y) in arrays.items()}
    )
    for given in (single, batched, named):
        found = api._named(given)
        assert set(found) == set(arrays)
        for name, (x, y) in arrays.items():
            np.testing.assert_array_equal(found[name].x, x)
            np.testing.assert_array_equal(found[name].y, y)
    with pytest.raises(UserError, match="never ends"):
        api._named([single["site 0"].repeat()])
    with pytest.raises(UserError, match=r"must be \(x, y\)"):
        api._named([tf.data.Dataset.range(3)])


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "there is no client"),
        (7, "clients is a int"),
        ([7], "client 0 is a int"),
        ([clouds(0, 0), (clouds(0, 1)[0][:, :2], clouds(0, 1)[1])], "client 1: x has shape"),
        ([(clouds(0, 0)[0], clouds(0, 0)[1] + 0.5)], "there is no regression"),
        ([api.Client(*clouds(0, 0), epsilon=-1)], "epsilon is -1"),
        ([api.Client(*clouds(0, 0), true_cluster=1), clouds(0, 1)], "has no true_cluster"),
    ],
)
def test_bad_clients(clients, message, tmp_path):
    with pytest.raises(UserError, match=message):
        rdpcfl_tff.run(clients, config=config(), cache_dir=tmp_path)


def test_grey_images_are_images(tmp_path):
    images = np.zeros((8, 5, 4), np.uint8)
    store = api._store(
        api._named([(images, np.arange(8) % 2)]), config(), num_classes=None, cache_dir=tmp_path
    )
    assert (store.kind, store.input_shape, store.num_classes) == ("images", (5, 4, 1), 2)

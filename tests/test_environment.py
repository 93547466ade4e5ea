"""Every direct dependency imports and does a little real work; the lock and the wish list agree."""

import importlib.metadata
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def names(path: pathlib.Path) -> list[str]:
    """The packages named at the beginning of a requirements file's lines."""
    found = [re.match(r"[A-Za-z0-9_.-]+", line) for line in path.read_text().splitlines()]
    return [match.group().lower().replace("_", "-") for match in found if match]


# A few lines per package that fail if a version does not fit the others.
TOUCHES = {
    "absl-py": "from absl import flags; flags.FlagValues()",
    "dp-accounting": """
import dp_accounting
accountant = dp_accounting.rdp.RdpAccountant()
accountant.compose(dp_accounting.GaussianDpEvent(1.0))
assert 0 < accountant.get_epsilon(1e-5) < 10
""",
    "grpcio": "import grpc; grpc.insecure_channel('localhost:1').close()",
    "hypothesis": "import hypothesis.strategies as st; st.integers()",
    "importlib-resources": "import importlib_resources; importlib_resources.files('numpy')",
    "matplotlib": """
import io, matplotlib; matplotlib.use("Agg")
import matplotlib.pyplot as plt
plt.plot([1, 2]); plt.savefig(io.BytesIO())
""",
    "mypy": "import mypy.api",
    "numpy": "import numpy as np; assert np.ones(3).sum() == 3",
    "pandas": "import pandas as pd; assert pd.DataFrame({'a': [1, 2]}).a.sum() == 3",
    "pillow": "from PIL import Image; Image.new('L', (2, 2))",
    "psutil": "import psutil; assert psutil.Process().memory_info().rss > 0",
    "pyarrow": "import pyarrow; assert pyarrow.array([1, 2]).to_numpy().sum() == 3",
    "pytest": "import pytest",
    "pytest-xdist": "import xdist.plugin",
    "ruff": "from ruff import find_ruff_bin; find_ruff_bin()",
    "scikit-learn": """
import numpy as np; from sklearn.mixture import GaussianMixture
assert GaussianMixture(1).fit(np.eye(3)).converged_
""",
    "scipy": "import scipy.stats; assert scipy.stats.norm.cdf(0) == 0.5",
    "tensorboard": "from tensorboard.backend.event_processing import event_accumulator",
    "tensorflow": "import tensorflow as tf; assert tf.reduce_sum(tf.ones(3)).numpy() == 3",
    "tensorflow-datasets": """
import tempfile, tensorflow_datasets as tfds
assert tfds.builder("mnist", data_dir=tempfile.mkdtemp()).info.features["label"].num_classes == 10
""",
    "tensorflow-federated": """
import tensorflow_federated as tff
assert str(tff.tensorflow.computation(lambda: 1).type_signature) == "( -> int32)"
""",
    "tensorflow-metadata": "from tensorflow_metadata.proto.v0 import schema_pb2",
    "tensorflow-privacy": """
import tensorflow_privacy
tensorflow_privacy.VectorizedDPKerasSGDOptimizer(1.0, 1.0, 1, learning_rate=0.1)
""",
    "tqdm": "import tqdm; assert list(tqdm.tqdm([1], disable=True)) == [1]",
}


def test_every_direct_dependency_is_touched():
    assert sorted(names(ROOT / "requirements.in")) == sorted(TOUCHES)


def test_direct_dependencies_work_together():
    # In one fresh process, as a user has them: importing one after the other is what breaks.
    program = "\n".join(TOUCHES.values())
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_lock_is_complete_and_installed():
    lock = dict(
        line.split("==")
        for line in (ROOT / "requirements.txt").read_text().splitlines()
        if "==" in line and line[0].isalnum()
    )
    assert set(names(ROOT / "requirements.in")) <= set(lock)
    different = {
        package: importlib.metadata.version(package)
        for package, version in lock.items()
        if importlib.metadata.version(package) != version
    }
    assert not different, "installed versions differ from the lock"


@pytest.mark.parametrize("file", ["requirements.in", "requirements.txt", "requirements-gpu.txt"])
def test_no_requirements_file_names_a_registry(file):
    assert "://" not in (ROOT / file).read_text()

"""Data sets from TensorFlow Datasets (TFDS): already prepared on this machine, or downloaded.

Data of the paper's experiments. TFDS runs in a process of its own (`tfds_child`), so that
a network without internet costs seconds, not minutes, and TensorFlow stays unloaded here.
"""

import http.client
import logging
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np

from rdpcfl_tff.data.dataset import Arrays, BadData, PublishedSet

_log = logging.getLogger(__name__)

_CHILD = Path(__file__).with_name("tfds_child.py")
_REACH_SECONDS = 5
_PREPARED_SECONDS = 300
_DOWNLOAD_SECONDS = 1800

# One small request to the host TFDS downloads from tells whether a download can work at all.
_URLS = {
    "mnist": "https://storage.googleapis.com/cvdf-datasets/mnist/t10k-labels-idx1-ubyte.gz",
    "fashion_mnist": (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/t10k-labels-idx1-ubyte.gz"
    ),
    "cifar10": "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
}


def folder() -> Path:
    """Where TFDS keeps prepared data sets."""
    return Path(os.environ.get("TFDS_DATA_DIR") or Path.home() / "tensorflow_datasets")


def is_prepared(published: PublishedSet) -> bool:
    """Whether TFDS has some prepared version of the set."""
    return any((folder() / published.name).glob("*/dataset_info.json"))


def read_prepared(published: PublishedSet) -> Arrays:
    """The set, if TFDS has it prepared already."""
    if not is_prepared(published):
        raise BadData(f"not prepared in {folder()}")
    return _run_child(published, "read", _PREPARED_SECONDS)


def download(published: PublishedSet) -> Arrays:
    """The set, downloaded and prepared by TFDS in its own folder."""
    request = urllib.request.Request(_URLS[published.name], method="HEAD")
    host = request.host  # before a proxy takes its place
    try:
        urllib.request.urlopen(request, timeout=_REACH_SECONDS).close()
    except urllib.error.URLError as error:
        raise BadData(f"{host} cannot be reached ({error.reason})") from None
    except (OSError, http.client.HTTPException) as error:
        raise BadData(f"{host} cannot be reached ({error})") from None
    return _run_child(published, "download", _DOWNLOAD_SECONDS)


def _run_child(published: PublishedSet, may_download: str, seconds: int) -> Arrays:
    _log.info("%s: TFDS starts (%s)", published.name, may_download)
    with tempfile.TemporaryDirectory(prefix="rdpcfl_tff-") as work:
        target = Path(work) / "arrays.npz"
        # -P keeps this package's folder off the module path: TFDS must not import from it.
        command = [sys.executable, "-P", str(_CHILD), published.name, str(target), may_download]
        try:
            subprocess.run(
                command,
                check=True,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=seconds,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            )
        except subprocess.TimeoutExpired:
            raise BadData(f"TFDS did not finish within {seconds} s") from None
        except subprocess.CalledProcessError as error:
            last_line = (error.stderr.strip() or "no message").splitlines()[-1]
            raise BadData(f"TFDS failed: {last_line[:300]}") from None
        with np.load(target, allow_pickle=False) as saved:
            return Arrays(*(saved[part] for part in Arrays._fields))

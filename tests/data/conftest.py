import os
import stat

import numpy as np
import pytest

from rdpcfl_tff.data import dataset
from rdpcfl_tff.data.dataset import Arrays, PublishedSet, sha256


@pytest.fixture
def tiny_arrays() -> Arrays:
    random = np.random.RandomState(7)
    return Arrays(
        random.randint(0, 256, (60, 28, 28, 1), np.uint8),
        random.randint(0, 10, 60, np.uint8),
        random.randint(0, 256, (12, 28, 28, 1), np.uint8),
        random.randint(0, 10, 12, np.uint8),
    )


@pytest.fixture
def tiny_mnist(tiny_arrays, monkeypatch) -> PublishedSet:
    """Makes 72 known records the published contents of "mnist" for one test."""
    digests = tuple(sha256(array) for array in tiny_arrays)
    tiny = PublishedSet("mnist", (28, 28, 1), 60, 12, digests)
    monkeypatch.setitem(dataset.PUBLISHED, "mnist", tiny)
    return tiny


@pytest.fixture
def no_internet(tmp_path, monkeypatch) -> None:
    """Nothing prepared by TFDS, and a proxy that refuses every connection."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "no_tfds"))
    for variable in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
        monkeypatch.setenv(variable.upper(), "http://127.0.0.1:9")
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def fake_client(tmp_path, monkeypatch):
    """Puts a shell script first on PATH, in place of a registry's client."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")

    def install(name: str, script: str) -> None:
        path = programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return install

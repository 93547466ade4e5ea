"""Shared parts of the tests: real silos from the embedded digits, and one running TFF worker."""

import pytest

import experiments  # noqa: F401  (sets TensorFlow's environment before its first import)


@pytest.fixture(scope="session")
def digits_store(tmp_path_factory):
    """Three clients in clusters of one and two, with 48 train records each."""
    from rdpcfl_tff.data import silos, sources

    config = silos.SiloConfig(cluster_sizes=(1, 2), samples_per_client=60)
    return silos.build_store(
        sources.load("digits"), config, tmp_path_factory.mktemp("data") / "silos"
    )


@pytest.fixture(scope="session")
def worker():
    """The TFF runtime, shared because starting it takes a second."""
    from rdpcfl_tff.federated import runtime

    with runtime.local_worker() as running:
        yield running

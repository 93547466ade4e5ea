"""What this machine can run, and what is wrong: `python -m experiments.doctor`.

Prints one line per finding and ends with exit code 1 if anything would stop a run.
"""

import importlib.metadata
import os
import pathlib
import platform
import sys
import time

from absl import flags

from experiments import command_line
from rdpcfl_tff.data import sources
from rdpcfl_tff.execution import ON_THIS_MACHINE

_DATA_DIR = flags.DEFINE_string("data_dir", None, "As for experiments.main.")
_CACHE_DIR = flags.DEFINE_string("cache_dir", None, "As for experiments.main.")

_PACKAGES = (
    "tensorflow",
    "tensorflow-federated",
    "tensorflow-privacy",
    "dp-accounting",
    "tensorflow-datasets",
    "scikit-learn",
    "numpy",
)


def _versions() -> list[str]:
    """The problems with Python and the packages; prints what is there."""
    problems = []
    print(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}")
    if sys.version_info[:2] != (3, 11):
        problems.append("Python 3.11 is needed: make PYTHON=/path/to/python3.11")
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        problems.append("TensorFlow Federated's worker runs on Linux x86-64 only")
    locked = _locked_versions()
    for package in _PACKAGES:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            version = "missing"
        print(f"  {package} {version}")
        if version != locked.get(package, version):
            problems.append(
                f"{package} {version}, but the lock has {locked[package]}: "
                "pip install --no-deps -r requirements.txt"
            )
    return problems


def _locked_versions() -> dict[str, str]:
    lock = pathlib.Path(__file__).parents[1] / "requirements.txt"
    if not lock.exists():
        return {}
    pins = [line.split("==") for line in lock.read_text().splitlines() if line[:1].isalnum()]
    return {name: version.strip() for name, version in pins}


def _hardware() -> list[str]:
    import tensorflow as tf

    from rdpcfl_tff.federated import in_process

    cores, gpus = len(os.sched_getaffinity(0)), in_process.gpus()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    print(f"{cores} cores, {memory:.0f} GiB of memory, {len(gpus)} GPUs")
    devices = in_process.with_devices(ON_THIS_MACHINE, "auto").client_devices
    if devices:
        at_once = in_process.clients_at_once(devices)
        print(f"  clients train in the main process on {', '.join(devices)}, {at_once} at a time")
    else:
        print(f"  clients train in the TFF worker, on the CPU, {cores} at a time")
    for gpu in gpus:
        with tf.device(gpu):  # CUDA may work, and cuDNN not
            tf.nn.conv2d(tf.ones((1, 8, 8, 1)), tf.ones((3, 3, 1, 1)), 1, "SAME").numpy()
    if not gpus and pathlib.Path("/proc/driver/nvidia").exists():
        print("  there is an NVIDIA GPU: pip install --no-deps -r requirements-gpu.txt")
    return []


def _worker() -> list[str]:
    from rdpcfl_tff.federated import runtime

    start = time.monotonic()
    try:
        with runtime.local_worker():
            print(f"the TFF worker starts and answers ({time.monotonic() - start:.1f} s)")
    except runtime.WorkerError as error:
        return [str(error)]
    return []


def _data() -> list[str]:
    data_dir = pathlib.Path(_DATA_DIR.value) if _DATA_DIR.value else None
    cache_dir = pathlib.Path(_CACHE_DIR.value) if _CACHE_DIR.value else None
    for name in sources.DATASETS:
        print(f"{name}:")
        for line in sources.describe_sources(name, data_dir, cache_dir):
            print(f"  {line}")
    return []


def main(arguments: list[str]) -> None:
    """Runs all checks; one that fails does not hide the others."""
    command_line.no_arguments(arguments)
    problems = []
    for check in (_versions, _hardware, _worker, _data):
        try:
            problems += check()
        except Exception as error:  # a broken environment can break anything: name it and go on
            problems.append(f"{check.__name__[1:]}: {type(error).__name__}: {error}")
    for problem in problems:
        print(f"PROBLEM: {problem}")
    if problems:
        sys.exit(1)
    print("nothing is wrong")


if __name__ == "__main__":
    command_line.run(main)

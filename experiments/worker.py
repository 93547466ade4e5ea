"""A TFF worker for runs elsewhere: `python -m experiments.worker --port=8000 --silos=FOLDER`.

Runs until Ctrl-C or SIGTERM, next to the silos of its clients. Whoever can reach the port can run
any computation here and read what this user can read: docs/scaling.md says how to close it.
"""

import logging
import os
import pathlib
import signal
import socket
import threading

from absl import flags

from experiments import command_line
from rdpcfl_tff.errors import UserError

_PORT = flags.DEFINE_integer(
    "port", 8000, "Where the worker listens, on all interfaces.", lower_bound=1, upper_bound=65535
)
_CORES = flags.DEFINE_integer(
    "cores", None, "Clients that train at the same time (default: all cores).", lower_bound=1
)
_SILOS = flags.DEFINE_string(
    "silos", None, "The folder with this worker's clients, client_000 and so on.", required=True
)

_LOG = logging.getLogger(__name__)


def _silo_folder(name: str) -> pathlib.Path:
    folder = pathlib.Path(name)
    if not any(folder.glob("*/train.labels")):
        raise UserError(
            f"--silos={name}: has no silo in it, such as client_000/train.labels; `main` builds "
            "them in the folder silos of its --cache_dir"
        )
    return folder


def _check_port_is_free(port: int) -> None:
    """Two workers can listen on one port without an error, and each would get half of the calls."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise UserError(f"--port={port}: {error.strerror}; choose another port") from error


def main(arguments: list[str]) -> None:
    """Keeps one worker running."""
    command_line.no_arguments(arguments)
    silos = _silo_folder(_SILOS.value)
    _check_port_is_free(_PORT.value)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    from rdpcfl_tff.federated import runtime

    cores = _CORES.value or len(os.sched_getaffinity(0))
    worker = runtime.LocalWorker(runtime.RuntimeConfig(cores), _PORT.value, silos)
    try:
        worker.start()
        found = len(list(silos.glob("*/train.labels")))
        print(f"ready on port {_PORT.value}: {cores} cores, {found} silos", flush=True)
        while not ended.wait(timeout=0.5):
            try:
                worker.check_alive()
            except runtime.WorkerLostError as lost:
                _LOG.warning("%s\nStarting it again.", lost)
                worker.start()
    finally:
        worker.stop()


if __name__ == "__main__":
    command_line.run(main)

"""Where the clients of a run compute, and what happens when a worker is lost.

Decides how long a run takes, and nothing of its result but the last bits: `runtime` names what
these depend on. So it is no part of `RunConfig`, and a run may be gone on with on other machines.
"""

import dataclasses
import re

from rdpcfl_tff.errors import UserError


@dataclasses.dataclass(frozen=True)
class Execution:
    """How to run.

    Attributes:
        workers: host:port of TFF workers that run already; empty for one worker on this machine.
        worker_retries: How often, in all, a lost worker is started or connected to again.
        dead_worker: "move" a remote worker's clients to the others when it stays lost, or "stop".
        client_devices: TensorFlow's devices, such as GPU:0, on which clients train inside this
            process; empty for TFF's workers, which have the CPU only.
    """

    workers: tuple[str, ...] = ()
    worker_retries: int = 2
    dead_worker: str = "move"
    client_devices: tuple[str, ...] = ()

    @property
    def runtime(self) -> str:
        """What a run must stay with to give the same bits: worker, in_process_cpu or _gpu."""
        if not self.client_devices:
            return "worker"
        return f"in_process_{_kind(self.client_devices[0]).lower()}"

    def __post_init__(self):
        for address in self.workers:
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
                raise UserError(
                    f"--workers={','.join(self.workers)}: {address!r} is no worker; give host:port "
                    "with commas in between, for example --workers=host1:8000,host2:8000"
                )
        if len(set(self.workers)) < len(self.workers):
            raise UserError(
                f"--workers={','.join(self.workers)}: the same worker twice; start a second one on "
                "another port"
            )
        if self.worker_retries < 0:
            raise UserError(f"--worker_retries={self.worker_retries}: must be 0 or larger")
        if self.dead_worker not in ("move", "stop"):
            raise UserError(f"--dead_worker={self.dead_worker}: must be move or stop")
        self._check_client_devices()

    def _check_client_devices(self) -> None:
        flag = f"--client_devices={','.join(self.client_devices)}"
        if self.client_devices and self.workers:
            raise UserError(
                f"{flag}: devices of this process; the clients of --workers have the CPU only"
            )
        for device in self.client_devices:
            if not re.fullmatch(r"(CPU|GPU):\d+", device):
                raise UserError(
                    f"{flag}: {device!r} is no device; give names with commas in between, for "
                    "example --client_devices=GPU:0,GPU:1"
                )
        if len({_kind(device) for device in self.client_devices}) > 1:
            raise UserError(f"{flag}: name CPUs or GPUs, not both; their results differ a little")


def _kind(device: str) -> str:
    return device.partition(":")[0]


ON_THIS_MACHINE = Execution()

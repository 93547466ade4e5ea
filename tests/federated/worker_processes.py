"""Finds the TFF workers that run on this machine."""

import os
import signal
import threading
import time
from collections.abc import Callable

import psutil


def worker_processes(address: str) -> list[int]:
    """The workers that listen at this address."""
    port = f"--port={address.rpartition(':')[2]}".encode()
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                arguments = file.read().split(b"\0")
        except OSError:
            continue
        if arguments[0].endswith(b"worker_binary") and port in arguments:
            found.append(int(entry))
    return found


def own_workers(pid: int | None = None) -> set[int]:
    """The workers that this process, or another one, has started."""
    children = psutil.Process(pid).children(recursive=True)
    return {child.pid for child in children if child.name() == "worker_binary"}


def wait_until(happened: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether it happens in time."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def kill_when(happened: Callable[[], bool], workers: Callable[[], list[int] | set[int]]):
    """Starts a thread that kills the workers, once, as soon as something has happened."""

    def kill():
        if wait_until(happened):
            for pid in workers():
                os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    return thread

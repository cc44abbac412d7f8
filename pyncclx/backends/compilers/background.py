"""Compile kernels with NVRTC in the background, for the process that has started this program (`ahead.py`).

A program, not a module: python background.py NICENESS. Standard input has lines of JSON: first `sys.path`, then a file,
kernels of it and an architecture, again and again. It ends when standard input does, as it does when the parent has
died, and when nothing has come for a while.

Nobody waits for it: it runs when processors are idle, and does not lock files of the cache while it compiles. Of
several such programs with the same cache, one compiles at a time.
"""

import contextlib
import fcntl
import importlib
import json
import os
import queue
import sys
import threading
from collections.abc import Iterator

IDLE_S = 10.0


def read_requests() -> None:
    """Queue what comes on standard input; at its end, end the process."""
    for line in sys.stdin.buffer:
        requests.put(json.loads(line))
    writing.acquire()  # a file is whole or not there
    os._exit(0)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait, asleep, until no other program of this kind compiles for the same cache."""
    folder = importlib.import_module("pyncclx.system.cache_folders").cache_directory()
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def compile_kernels(file: str, names: list[str], architecture: str) -> bool:
    """Compile kernels unless the cache has them; return whether it has now."""
    with alone():
        importlib.import_module("mpi4py").rc.initialize = False  # this is no rank
        nvrtc = importlib.import_module("pyncclx.backends.compilers.nvrtc")
        return bool(nvrtc.compile_beside(file, names, architecture, writing))


if __name__ == "__main__":
    requests: queue.SimpleQueue[tuple[str, list[str], str]] = queue.SimpleQueue()
    writing = threading.Lock()
    os.nice(int(sys.argv[1]))
    with contextlib.suppress(OSError):  # a rank may be bound to one processor
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    sys.path[:] = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=read_requests, daemon=True).start()
    with contextlib.suppress(queue.Empty):
        while compile_kernels(*requests.get(timeout=IDLE_S)):
            pass
    os._exit(0)

"""Program that compiles kernels with NVRTC in the background for its parent.

`ahead.py` runs it as ``python background.py NICENESS``. Standard input has lines of JSON: the first is `sys.path`, each
further line a request with a file, names of kernels in it, and an architecture. The program ends when standard input
ends, as it does when the parent dies, or after `IDLE_S` seconds without a request.

No process waits for the program. It runs when processors are idle, and locks no file of the cache while it compiles. If
several such programs use one cache, one of them compiles at a time.
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
    """Queue the requests on standard input; end the process when the input ends."""
    for line in sys.stdin.buffer:
        requests.put(json.loads(line))
    # Wait for a write in progress, so that no file is left half written.
    writing.acquire()
    os._exit(0)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Hold the lock that lets one background program at a time compile for a cache.

    Entering the context sleeps until no other program holds the lock. On a file system without locks it does not wait.
    """
    folder = importlib.import_module("pyncclx.system.cache_folders").cache_directory()
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some file systems have no locks.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def compile_kernels(file: str, names: list[str], architecture: str) -> bool:
    """Compile kernels that are not cached; return whether all are cached now."""
    with alone():
        # This process is no rank and must not initialize MPI.
        importlib.import_module("mpi4py").rc.initialize = False
        nvrtc = importlib.import_module("pyncclx.backends.compilers.nvrtc")
        return bool(nvrtc.compile_beside(file, names, architecture, writing))


if __name__ == "__main__":
    requests: queue.SimpleQueue[tuple[str, list[str], str]] = queue.SimpleQueue()
    writing = threading.Lock()
    os.nice(int(sys.argv[1]))
    # A rank may be bound to one processor, and this process inherits the binding.
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    sys.path[:] = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=read_requests, daemon=True).start()
    with contextlib.suppress(queue.Empty):
        while compile_kernels(*requests.get(timeout=IDLE_S)):
            pass
    os._exit(0)

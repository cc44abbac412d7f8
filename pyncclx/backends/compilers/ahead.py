"""Compile kernels in the background, in a low-priority child process."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from ...system import settings
from ...system.process import PerProcess

# Limit on the requests of one process; each is for some kernels of a file. Later requests are ignored.
MOST = 64
NICE = 19  # lowest priority
_PROGRAM = Path(__file__).with_name("background.py")


def compile_ahead(file: str, instantiations: Sequence[str], architecture: str) -> None:
    """Compile kernels in the background process; ignore a repeated request.

    The background process compiles them by `nvrtc.compile_beside`.
    """
    # Without the background process, each kernel is compiled at its first use.
    with contextlib.suppress(OSError):
        _HELPER.get().ask(file, instantiations, architecture)


class _Helper:
    """The process that compiles; it starts on demand, and exits when idle for a while."""

    def __init__(self) -> None:
        self._asked: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._asking = threading.Lock()

    def ask(self, *request: object) -> None:
        line = json.dumps(request)
        with self._asking:
            if line in self._asked or len(self._asked) == MOST:
                return
            self._asked.add(line)
            if self._process is None or self._process.poll() is not None:
                self._process = _started()
                _write(self._process, json.dumps([each for each in sys.path if isinstance(each, str)]))
            _write(self._process, line)


def _started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(_PROGRAM), str(NICE)],
        # The system closes the pipe when this process ends, and the child then ends too.
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=settings.environment(),
        bufsize=0,
    )


def _write(process: subprocess.Popen[bytes], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line.encode() + b"\n")


_HELPER = PerProcess(_Helper)

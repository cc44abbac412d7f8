"""Last words of ranks that end by a fatal signal: in which test, and where their threads were."""

import faulthandler
import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

FATAL = "Fatal Python error"
_MOST_FRAMES = 6  # in the first line
_FRAME = re.compile(r'File "(?:.*/)?([^"/]+)", line (\d+) in (.+)')
_OF_THE_RUNNER = re.compile(r'File ".*/(_pytest|pluggy|pytest)/|<frozen runpy>|^Extension modules')


class Crashes:
    """Lets Python write its dump of a fatal signal to a rank's own file, behind the name of the test."""

    def __init__(self, last_words: str, rank: int, size: int) -> None:
        self._file = open(f"{last_words}-{rank}", "w")  # noqa: SIM115  until the process ends
        self._who = f"rank {rank} of {size}"
        self._begin("before the tests")
        faulthandler.enable(self._file)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._begin(nodeid)

    def pytest_sessionfinish(self) -> None:
        self._begin("after the tests")

    def _begin(self, where: str) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write(f"{self._who}: {where}: ")
        self._file.flush()


def last_words(path: Path) -> str:
    """Return what ranks that have crashed left beside the file `path`, one line of each first.

    A crash in a thread of the emulator's is in no thread of Python's: the line then has the frames of the main thread,
    which is the last one and may have launched the kernel.
    """
    texts = [each.read_text(errors="replace") for each in sorted(path.parent.glob(f"{path.name}-*"))]
    return "".join(_with_place(text) for text in texts if FATAL in text)


def _with_place(text: str) -> str:
    first, *lines = [line for line in text.splitlines() if not _OF_THE_RUNNER.search(line)]
    threads = "\n".join(lines).strip().split("\n\n")
    crashed = next((each for each in threads if each.startswith("Current thread")), threads[-1])
    return "\n".join([f"{first}, in {in_one_line(_FRAME.findall(crashed))}", *lines, ""])


def in_one_line(frames: Iterable[tuple[str, object, str]]) -> str:
    """Return the first frames of a stack, the innermost one first: file, line and function of each."""
    return " < ".join(f"{file}:{line} {function}" for file, line, function in islice(frames, _MOST_FRAMES))

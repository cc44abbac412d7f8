"""What a step prints: a progress bar while it runs, and its text afterwards if something failed."""

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator

from tqdm import tqdm

_NAME, _PERCENT = re.compile(rb"^==== ([^=\n]+)$", re.MULTILINE), re.compile(rb"\[ *(\d+)%\]")
# Lines of pytest's dots, and of tests that were skipped.
_PROGRESS = re.compile(r"[.sxXFE]+ *(\[ *\d+%\])?$|SKIPPED ")
_SECONDS = 5.0  # that a process left over may keep the pipe open


class Text:
    """The text of a step, while it comes through a pipe."""

    def __init__(self, source: int, terminal: int) -> None:
        self._source, self._parts = source, []
        layout = "{desc:34}{bar:30}{percentage:4.0f} %"
        shown = os.fdopen(terminal, "w")
        self._bar = tqdm(total=100, file=shown, bar_format=layout, leave=False, disable=None)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while part := os.read(self._source, 1 << 16):
            self._parts.append(part)
            if names := _NAME.findall(part):
                self._bar.set_description_str(names[-1].decode(errors="replace"))
                self._bar.reset()
            if percents := _PERCENT.findall(part):
                self._bar.update(int(percents[-1]) - self._bar.n)

    def end(self) -> None:
        """Wait for the rest."""
        self._thread.join(_SECONDS)
        self._bar.close()

    def __str__(self) -> str:
        """Return the text without lines that only show progress."""
        lines = b"".join(self._parts).decode(errors="replace").splitlines(keepends=True)
        return "".join(each for each in lines if not _PROGRESS.match(each))


@contextlib.contextmanager
def quiet() -> Iterator[Text]:
    """Collect what this process and those that it starts print."""
    sys.stdout.flush()
    source, sink = os.pipe()
    saved = {number: os.dup(number) for number in (1, 2)}
    text = Text(source, os.dup(2))
    for number in saved:
        os.dup2(sink, number)
    os.close(sink)
    try:
        yield text
    finally:
        sys.stdout.flush()
        for number, original in saved.items():
            os.dup2(original, number)
            os.close(original)
        text.end()

"""Insert `-m pyncclx run` into `Spawn`'s arguments if this program runs under it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from ..system.process import PerProcess

#: Arguments between Python's options and the program; `python -m pyncclx run` sets them.
RUNNER: PerProcess[tuple[str, ...]] = PerProcess(tuple)
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")  # Python's options with a value in the next word


def arguments_under_runner(command: Any, args: Any) -> Any:
    """Return `Spawn`'s `args`; if the command is Python, with `RUNNER` in them."""
    runner = RUNNER.get()
    if not runner or not isinstance(command, (str, bytes, os.PathLike)) or not _is_python(os.fsdecode(command)):
        return args
    words = [args] if isinstance(args, str) else list(args or ())
    index = _program_index(words)
    if index is None or words[index : index + 2] == list(runner[:2]):
        return args
    return [*words[:index], *runner, *words[index:]]


def each_under_runner(commands: Any, args: Any) -> Any:
    """Return `Spawn_multiple`'s `args`, with the runner inserted for Python commands.

    Both arguments are significant at root only.
    """
    if not RUNNER.get() or not commands or (args and len(args) != len(commands)):
        return args
    return [arguments_under_runner(*one) or [] for one in zip(commands, args or [None] * len(commands), strict=True)]


def _is_python(command: str) -> bool:
    return command == sys.executable or re.fullmatch(r"python[\d.]*", os.path.basename(command)) is not None


def _program_index(words: Sequence[str]) -> int | None:
    """Return the index of the program among Python's arguments; None if there is none.

    The program is a file, "-", -m or -c.
    """
    index = 0
    while index < len(words):
        word = words[index]
        if word == "-" or not word.startswith("-") or word in ("-m", "-c"):
            return index
        index += 2 if word in _WITH_VALUE else 1
    return None

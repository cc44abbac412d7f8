"""Processes that a program spawns: those of Python run under the command that the program itself runs under."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from ..system.process import PerProcess

#: What comes between Python with its options and a program; `python -m pyncclx run` sets it.
RUNNER: PerProcess[tuple[str, ...]] = PerProcess(tuple)
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")  # options of Python that have a value in the next word


def arguments_under_runner(command: Any, args: Any) -> Any:
    """The arguments with which a command is to be spawned, from those that mpi4py's `Spawn` takes."""
    runner = RUNNER.get()
    if not runner or not isinstance(command, (str, bytes, os.PathLike)) or not _is_python(os.fsdecode(command)):
        return args
    words = [args] if isinstance(args, str) else list(args or ())
    index = _program_index(words)
    if index is None or words[index : index + 2] == list(runner[:2]):
        return args
    return [*words[:index], *runner, *words[index:]]


def each_under_runner(commands: Any, args: Any) -> Any:
    """The same for several commands, as mpi4py's `Spawn_multiple` takes them; both count at root alone."""
    if not RUNNER.get() or not commands or (args and len(args) != len(commands)):
        return args
    return [arguments_under_runner(*one) or [] for one in zip(commands, args or [None] * len(commands), strict=True)]


def _is_python(command: str) -> bool:
    return command == sys.executable or re.fullmatch(r"python[\d.]*", os.path.basename(command)) is not None


def _program_index(words: Sequence[str]) -> int | None:
    """Where the program begins among Python's arguments: a file, "-", -m or -c; None if there is none."""
    index = 0
    while index < len(words):
        word = words[index]
        if word == "-" or not word.startswith("-") or word in ("-m", "-c"):
            return index
        index += 2 if word in _WITH_VALUE else 1
    return None

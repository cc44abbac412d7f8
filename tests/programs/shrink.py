"""Make a program that differs shorter, as long as it does: fewer acts, then fields as they are by default."""

import dataclasses
import time
from collections.abc import Callable, Iterator

from programs.program import Act, Program

Differs = Callable[[Program], bool]


def shrunk(program: Program, differs: Differs, seconds: float) -> Program:
    """Return a shorter program that differs, the best that was found in so many seconds.

    A program that hangs costs seconds, and starts a job anew; so this tries what helps most, and each candidate once.
    """
    end = time.monotonic() + seconds
    tried = {program}
    while time.monotonic() < end:
        for candidate in candidates(program):
            if candidate in tried or time.monotonic() > end:
                continue
            tried.add(candidate)
            if differs(candidate):
                program = candidate
                break
        else:
            break
    return program


def candidates(program: Program) -> Iterator[Program]:
    """Yield programs that are a little shorter, those that are much shorter first."""
    acts = program.acts
    size = len(acts) // 2
    while size:
        for begin in range(0, len(acts), size):
            yield Program(program.ranks, (*acts[:begin], *acts[begin + size :]))
        size //= 2
    for index, act in enumerate(acts):
        for simpler in fewer_fields(act):
            yield Program(program.ranks, (*acts[:index], simpler, *acts[index + 1 :]))
    if program.ranks > 1:
        yield Program(program.ranks - 1, acts)


def fewer_fields(act: Act) -> Iterator[Act]:
    """Yield the act with half of its fields, then with one, as they are by default, if that is legal."""
    fields = [each for each in dataclasses.fields(act) if getattr(act, each.name) != each.default]
    size = len(fields) // 2
    while size:
        for begin in range(0, len(fields), size):
            changes = {each.name: each.default for each in fields[begin : begin + size]}
            simpler = dataclasses.replace(act, **changes).legal()
            if len(repr(simpler)) < len(repr(act)):
                yield simpler
        size //= 2

"""Make a program that differs shorter, as long as it does: fewer acts, then fields as they are by default."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

from programs.program import Act, Buffer, Program

Differs = Callable[[Program], bool]


def shrunk(program: Program, differs: Differs, seconds: float, tries: int) -> Program:
    """Return a shorter program that differs, the best that was found in so many seconds and tries.

    A program that hangs costs seconds, and starts a job anew; so this tries what helps most, and each candidate once.
    """
    end = time.monotonic() + seconds
    tried = {program}
    while time.monotonic() < end:
        for candidate in candidates(program):
            if candidate in tried or time.monotonic() > end or len(tried) > tries:
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
            yield dataclasses.replace(program, acts=(*acts[:begin], *acts[begin + size :]))
        size //= 2
    for index, act in enumerate(acts):
        for simpler in simpler_acts(act):
            yield dataclasses.replace(program, acts=(*acts[:index], simpler, *acts[index + 1 :]))


def simpler_acts(act: Act) -> Iterator[Act]:
    """Yield the act with half of its fields, then with one, as they are by default; then with parts of a field."""
    fields = [each for each in dataclasses.fields(act) if getattr(act, each.name) != each.default]
    changes: list[dict[str, Any]] = []
    size = len(fields) // 2
    while size:
        for begin in range(0, len(fields), size):
            changes.append({each.name: each.default for each in fields[begin : begin + size]})
        size //= 2
    for field in fields:
        changes += [{field.name: value} for value in simpler_values(getattr(act, field.name))]
    for change in changes:
        simpler = dataclasses.replace(act, **change).legal()
        if len(repr(simpler)) < len(repr(act)):
            yield simpler


def simpler_values(value: Any) -> Iterator[Any]:
    """Yield a tuple without one of its elements, or with one that is simpler; and the same of what holds values."""
    if isinstance(value, Act):
        yield from simpler_acts(value)
    elif isinstance(value, Buffer):
        for each in dataclasses.fields(value):
            yield dataclasses.replace(value, **{each.name: each.default})
    elif isinstance(value, tuple):
        for index, element in enumerate(value):
            if isinstance(element, Act):
                yield (*value[:index], *value[index + 1 :])
            for simpler in simpler_values(element):
                yield (*value[:index], simpler, *value[index + 1 :])

"""Find the line of the program that called the library."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType

from ..system.process import held

_PACKAGE = f"{Path(__file__).resolve().parents[1]}/"
_BESIDE = tuple(f"{Path(__file__).resolve().parents[2] / name}/" for name in ("mpi_bootstrap",))
# Whether code is the library's, or called by it.
_inside: dict[CodeType, bool] = held({})


def site(frame: FrameType | None) -> str:
    """Return the line of the first caller outside of the library, or "".

    Begin at `frame`. The line has the form ``file:line in function``.
    """
    while frame is not None:
        code = frame.f_code
        inside = _inside.get(code)
        if inside is None:
            inside = _inside[code] = is_inside(code.co_filename)
        if not inside:
            return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
    return ""


def calling_site() -> str:
    """Return the line of the program from which the library is being called."""
    return site(sys._getframe(1))


def is_inside(name: str) -> bool:
    """Return whether `site` skips the code of a file with this name.

    It skips the library, and files of Python between two frames of the library, such as contextlib.
    """
    return name.startswith((_PACKAGE, *_BESIDE, "<frozen ")) or name.endswith("/contextlib.py")

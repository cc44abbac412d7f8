"""Distinguish exceptions of a function's own work from those of signal handlers.

A handler of Python may raise any exception where it interrupts a function: KeyboardInterrupt, or a TimeoutError for a
time limit. Such an exception belongs to the program.
"""

import inspect
from types import FrameType, TracebackType


def own_error(error: BaseException) -> Exception | None:
    """Return a caught exception if the function's own work raised it, else None.

    The result is None for exceptions of signal handlers, and for exceptions that do not derive from `Exception`. Call
    this function in the `except` clause.
    """
    trace = error.__traceback__
    # The first frame is that of the function that has caught the exception.
    if not isinstance(error, Exception) or (trace is not None and _has_handler(trace.tb_next)):
        return None
    return error


def _has_handler(trace: TracebackType | None) -> bool:
    """Return whether one of the frames is a signal handler's.

    Python passes the interrupted frame to signal handlers. No other function that may raise here has a frame as
    argument.
    """
    while trace is not None:
        if any(isinstance(each, FrameType) for each in _arguments(trace.tb_frame)):
            return True
        trace = trace.tb_next
    return False


def _arguments(frame: FrameType) -> list[object]:
    """Return the arguments of a frame's function, those of `*args` one by one."""
    code, values = frame.f_code, frame.f_locals
    number = code.co_argcount + code.co_kwonlyargcount
    found = [values.get(name) for name in code.co_varnames[:number]]
    if code.co_flags & inspect.CO_VARARGS:
        found += values.get(code.co_varnames[number], ())
    return found


class own_errors_suppressed:
    """A block whose own errors are suppressed; exceptions of signal handlers are not."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return error is not None and own_error(error) is not None

"""Exceptions of signal handlers, at every point of a call at which Python runs handlers.

CPython runs them where a function begins, after a function of C has returned, and where a loop jumps back. What the C
function has returned is then lost.
"""

import dis
import functools
import sys

from mpi4py import MPI

import pyncclx
from mpi_bootstrap import interrupts

_MEETING = 50  # a tag
_POINTS = {"RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD"}


class Interrupted(Exception):
    """What the signal handler raises: an ordinary exception, which looks like an error of the call itself."""


class Interruption:
    """A tracer that raises `Interrupted` once, at one of these points of a call in this thread.

    Parameters
    ----------
    point : int
        Number of the point; 0 only counts.
    *files : str
        What the names of the files begin with in which points count.

    Attributes
    ----------
    points : int
        Number of points so far.
    is_past : bool
        Whether the call had fewer points.
    place : str
        File, line and function of the point.
    """

    def __init__(self, point, *files):
        self._point, self._files, self.points, self.is_past, self.place = point, files, 0, False, ""
        self._before = {}  # by frame: the offset of its last instruction, if handlers may run after that

    def __call__(self, frame, event, argument):
        if event == "call":
            # The instruction of the caller has called a function of Python.
            self._before.pop(frame.f_back, None)
            if not frame.f_code.co_filename.startswith(self._files):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self._before[frame] = frame.f_lasti
        elif event == "opcode":
            if self._is_point(frame):
                self.points += 1
                if self.points == self._point:
                    self._stop(frame)
                    raise Interrupted
            if dis.opname[frame.f_code.co_code[frame.f_lasti]] in _POINTS:
                self._before[frame] = frame.f_lasti
        return self

    def _is_point(self, frame):
        """Return whether Python would run handlers now.

        It raises their exceptions at the instruction before; the tracer can raise only at the next one. So points
        between which a block ends do not count: its lock would stay locked.
        """
        before = self._before.pop(frame, None)
        return before is not None and _handler(frame.f_code, before) == _handler(frame.f_code, frame.f_lasti)

    def _stop(self, frame):
        sys.settrace(None)
        self._before.clear()
        self.place = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_qualname}"

    def end(self, call, *arguments):
        """Make a call, which the exception may end."""
        sys.settrace(self)
        try:
            call(*arguments)
        except Interrupted:
            pass
        finally:
            sys.settrace(None)
            self._before.clear()
            self.is_past = self.points < self._point


class CtrlC(Interruption):
    """It comes where it is not deferred."""

    def _is_point(self, frame):
        return super()._is_point(frame) and not interrupts._INTERRUPTS.level


@functools.cache
def _handlers(code):
    """Return the ranges of instructions whose exceptions the code handles."""
    return dis.Bytecode(code).exception_entries


def _handler(code, offset):
    """Return where the code handles an exception of an instruction; None if it does not."""
    return next((each.target for each in _handlers(code) if each.start <= offset < each.end), None)


def meet(comm, partner, value=None):
    """Meet the partner; return what it has brought."""
    return MPI.Comm.sendrecv(comm, value, partner, _MEETING, None, partner, _MEETING)


def start(requests):
    """Start requests, as the program does: one alone, several together."""
    if len(requests) == 1:
        requests[0].Start()
    else:
        pyncclx.Prequest.Startall(requests)

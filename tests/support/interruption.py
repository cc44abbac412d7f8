"""Exceptions of signal handlers, at every point of a call at which Python runs handlers.

CPython runs them where a function begins, after a function of C has returned, and where a loop jumps back. What the C
function has returned is then lost.
"""

import dis
import sys

from mpi4py import MPI

_MEETING = 50  # a tag
_POINTS = {"RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD"}


class Interrupted(BaseException):
    """What the signal handler raises."""


class Interruption:
    """A tracer that raises `Interrupted` once, at one of these points of a call in this thread.

    Parameters
    ----------
    point : int
        Number of the point.
    *files : str
        What the names of the files begin with in which points count.

    Attributes
    ----------
    is_past : bool
        Whether the call had fewer points.
    place : str
        File, line and function of the point.
    """

    def __init__(self, point, *files):
        self._left, self._files, self.is_past, self.place = point, files, False, ""
        self._before = {}  # by frame: the name of its last instruction, if handlers may run after that

    def __call__(self, frame, event, argument):
        if event == "call":
            # The instruction of the caller has called a function of Python.
            self._before.pop(frame.f_back, None)
            if not frame.f_code.co_filename.startswith(self._files):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            self._left -= self._before.pop(frame, None) is not None
            if self._left == 0:
                self._stop(frame)
                raise Interrupted
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if name in _POINTS:
                self._before[frame] = name
        return self

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
            self.is_past = self._left > 0


def meet(comm, partner, value=None):
    """Meet the partner; return what it has brought."""
    return MPI.Comm.sendrecv(comm, value, partner, _MEETING, None, partner, _MEETING)

"""Exceptions that come at any line of a call, as a signal handler raises them."""

import sys


class Left(BaseException):
    """As KeyboardInterrupt and SystemExit: no Exception."""


class LeaveAt:
    """A tracer that raises `Left` once, at one of the lines that a call runs in this thread.

    Parameters
    ----------
    number : int
        Number of the line; 0 only counts.
    *files : str
        What the names of the files begin with whose lines count.

    Attributes
    ----------
    lines : int
        Number of lines so far.
    """

    def __init__(self, number, *files):
        self.number, self.files, self.lines = number, files, 0

    def __call__(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(self.files):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.number:
                sys.settrace(None)
                raise Left
        return self

    def end(self, call, *arguments):
        """Make a call; return whether it was left."""
        sys.settrace(self)
        try:
            call(*arguments)
        except Left:
            return True
        finally:
            sys.settrace(None)
        return False

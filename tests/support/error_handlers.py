"""Undo what the first error handler that a program sets changes in pyncclx's classes."""

from pyncclx.requests import shown
from pyncclx.team import handlers


def unfollow_handlers():
    """Make methods call no error handlers until the program sets another handler."""
    shown.ON_ERROR.clear()
    for base in {base for cls in handlers._followed for base in cls.__mro__ if handlers.is_ours(base)}:
        for name, method in list(vars(base).items()):
            function = getattr(method, "__func__", method)
            code = getattr(function, "__code__", None)
            if code is not None and (code.co_filename, code.co_name) == (handlers.__file__, "call"):
                before = function.__wrapped__
                setattr(base, name, before if method is function else type(method)(before))

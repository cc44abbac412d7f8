"""Signal handlers that raise after a time, as a program's time limit does."""

import contextlib
import signal


@contextlib.contextmanager
def raising(kind, seconds, interval=0.0):
    """Let the handler of SIGALRM raise an exception of this kind after some seconds, and then at each interval."""

    def raises(*_):
        raise kind("by the handler")

    before = signal.signal(signal.SIGALRM, raises)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, interval)
        yield
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

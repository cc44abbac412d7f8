"""Signal handlers that raise after a time, as a program's time limit does."""

import signal


class raising:
    """Context in which the handler of SIGALRM raises an exception of this kind, once, after some seconds.

    The exception may come at the beginning of `__exit__`, or in `__enter__`. No signal comes afterwards.
    """

    def __init__(self, kind, seconds):
        self.kind, self.seconds = kind, seconds

    def _raise(self, *_):
        raise self.kind("by the handler")

    def __enter__(self):
        self._before = signal.signal(signal.SIGALRM, self._raise)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

"""A stand-in for a device with streams: it runs nothing, and keeps what each launch comes after."""

import threading

from pyncclx.backends.host import Device as HostDevice


class CaptureError(RuntimeError):
    """CuPy's, if it is asked whether a stream is being captured whose capture has been invalidated."""


class Stream:
    """A stream, or the stream of each thread; `capture` is the number of the graph that captures it, 0 for none."""

    def __init__(self, *, per_thread=False):
        self.per_thread, self.capture, self._ends = per_thread, 0, {}
        self.invalidated = False  # the capture, by something that CUDA cannot capture

    def end_capture(self):
        """End the capture, as a program must also when it was invalidated; there is no graph then."""
        self.capture, self.invalidated = 0, False

    @property
    def place(self):
        """Where its end is kept."""
        return (threading.get_ident() if self.per_thread else 0), self.capture

    @property
    def end(self):
        """What comes before anything that is enqueued next: names of launches."""
        return self._ends.get(self.place, frozenset())

    @end.setter
    def end(self, names):
        self._ends[self.place] = frozenset(names)


class Event:
    def record(self, stream):
        assert not stream.per_thread or stream.capture == 0
        self.end, self.capture = stream.end, stream.capture

    def order(self, then):
        if then.capture == self.capture:
            then.end |= self.end


class Device(HostDevice):
    """`before` has, by the name of each launch, the names of those that it comes after."""

    def __init__(self):
        super().__init__()
        self.before, self.synchronized = {}, []

    def launch(self, function, grid, threads, parameters, stream, early=False):
        self.before[function] = stream.end
        stream.end |= {function}

    def order(self, first, then):
        if first.capture == then.capture:
            then.end |= first.end

    def order_eager(self, first, then):
        assert not first.capture
        assert not then.capture
        then.end |= first.end

    def fork(self, stream, side):
        if side.capture not in (0, stream.capture):
            return False
        side.capture = stream.capture
        side.end |= stream.end
        return True

    def new_stream(self):
        return Stream()

    def event(self):
        return Event()

    def synchronize(self, stream=None):
        assert stream is None or not stream.capture, "CUDA refuses to wait for a stream that is being captured"
        self.synchronized.append(stream)

    def can_be_captured(self, stream):
        return True

    def is_capturing(self, stream):
        if stream.invalidated:
            raise CaptureError
        return bool(stream.capture)

    def is_per_thread(self, stream):
        return stream.per_thread


class Repeated:
    """A launch of a name, to be made again and again."""

    def __init__(self, device, name):
        self._device, self._name = device, name
        self.aside = 0  # how many launches needed nothing but what `launch_aside` does

    def launch(self, stream):
        self._device.launch(self._name, 1, 1, b"", stream)

    def launch_aside(self, stream, aside):
        if stream.capture:
            return False
        self._device.order_eager(stream, aside)
        self.launch(aside)
        self.aside += 1
        return True

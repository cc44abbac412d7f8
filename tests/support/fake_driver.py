"""A CUDA driver that does nothing and keeps the calls made to it, and a CuPy with its streams and events."""

import ctypes
import importlib
import itertools
import sys
from contextlib import contextmanager
from types import ModuleType
from unittest.mock import MagicMock, patch

from cuda.bindings import driver

SUCCESS = driver.CUresult.CUDA_SUCCESS


class Library:
    """Stands for libcuda: `calls` has a tuple of each call's name and its arguments, as integers."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append((name, *(getattr(argument, "value", argument) for argument in arguments)))
            return 0

        setattr(self, name, call)
        return call

    def taken(self):
        """Return the calls since the last time."""
        calls, self.calls = self.calls, []
        return calls


class Fake:
    """The modules of `pyncclx.backends.gpu` on a driver that does nothing.

    Attributes
    ----------
    library : Library
    driver : dict
        The functions of cuda.bindings, each a mock, by name.
    gpu : int
        The number of the current GPU.
    Stream : type
        CuPy's: whether one is being captured is asked as the call "is_capturing"; `capture` is the graph's number.
    """

    def __init__(self, library):
        self.library = library
        handles = itertools.count(0x100)
        self.streams = streams = {}  # by their handles
        current = []

        class Stream:
            def __init__(self, non_blocking=False, priority=0):
                self.ptr, self.capture, self.priority = next(handles), 0, priority
                streams[self.ptr] = self

            @staticmethod
            def from_external(foreign):
                return External(foreign.__cuda_stream__()[1])

            def is_capturing(self):
                library.calls.append(("is_capturing", self.ptr))
                return bool(self.capture)

            def __enter__(self):
                current.append(self)

            def __exit__(self, *error):
                current.pop()

            def synchronize(self):
                library.calls.append(("synchronize", self.ptr))

        class External(Stream):
            """A stream that somebody else destroys."""

            def __init__(self, handle):
                self.ptr = handle

            def __getattr__(self, name):
                return getattr(streams[self.ptr], name)

        class Event:
            def __init__(self, disable_timing):
                self.ptr = next(handles)
                library.calls.append(("cuEventCreate", self.ptr))

        def launch_graph(graph, stream):
            library.calls.append(("graphLaunch", graph, stream))

        self.Stream = Stream
        self.cupy, self.cuda, self.runtime = (ModuleType(f"cupy{name}") for name in ("", ".cuda", ".cuda.runtime"))
        self.runtime.graphLaunch, self.runtime.__getattr__ = launch_graph, lambda name: MagicMock()
        self.gpu = 0  # the current one
        self.runtime.getDevice = lambda: self.gpu
        self.cuda.get_current_stream = lambda ordinal=0: current[-1]
        self.cuda.Stream, self.cuda.Event, self.cuda.Device = Stream, Event, MagicMock()
        self.cupy.cuda, self.cuda.runtime = self.cuda, self.runtime

    def capture_info(self, handle):
        """Answer cuStreamGetCaptureInfo."""
        return SUCCESS, None, self.streams[int(handle)].capture

    def module(self, name):
        """Return a module of `pyncclx.backends.gpu`."""
        return importlib.import_module(f"pyncclx.backends.gpu.{name}")


def _values(name):
    """Return what a call of cuda.bindings gives back beside its status."""
    return () if name in ("cuGraphDestroy", "cuGraphExecDestroy", "cuMemcpyAsync") else (driver.CUgraphExec(0x99),)


@contextmanager
def installed():
    """Yield a `Fake`; modules of the GPU that are imported meanwhile are forgotten at the end."""
    fake, real = Fake(Library()), ctypes.CDLL

    def load(name, *args, **options):
        return fake.library if name == "libcuda.so.1" else real(name, *args, **options)

    names = ("cuGraphCreate", "cuGraphAddKernelNode", "cuGraphAddEventRecordNode", "cuGraphAddEventWaitNode")
    names += ("cuGraphInstantiate", "cuMemcpyAsync", "cuStreamQuery")
    names += ("cuGraphDestroy", "cuGraphExecDestroy", "cuThreadExchangeStreamCaptureMode")
    answers = {name: MagicMock(return_value=(SUCCESS, *_values(name))) for name in names}
    answers["cuStreamGetCaptureInfo"] = fake.capture_info
    fake.driver = answers
    packages = {each.__name__: each for each in (fake.cupy, fake.cuda, fake.runtime)}
    before = {name for name in sys.modules if name.startswith("pyncclx.backends.gpu")}
    with patch.multiple(driver, **answers), patch("ctypes.CDLL", load), patch.dict(sys.modules, packages):
        try:
            yield fake
        finally:
            for name in set(sys.modules) - before:
                if name.startswith("pyncclx.backends.gpu"):
                    del sys.modules[name]

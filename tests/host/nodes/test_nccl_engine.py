"""The engine of NCCL, against functions that record how they were called: the names and arguments of nccl4py 0.6."""

import threading
import time
from types import SimpleNamespace

import pytest
from mpi4py import MPI

from pyncclx.errors import StepTimeout
from pyncclx.memory.retired import RETIRED
from pyncclx.nodes import nccl_engine, nccl_library
from pyncclx.nodes.engine import EngineError, Transfer
from pyncclx.nodes.failures_elsewhere import RanksElsewhere


class Bindings:
    """What `nccl.bindings.nccl` of nccl4py has."""

    version, result = 22809, 0

    class Config:
        """As ncclConfig_t."""

        ptr, max_ctas = 77, 0

    def __init__(self):
        self.calls = []
        self.may_free, self.freed = threading.Event(), threading.Event()
        self.may_free.set()

    def get_version(self):
        return self.version

    def get_unique_id(self):
        return b"u" * 128

    def comm_init_rank_scalable(self, nranks, rank, count, ids, config):
        self.calls.append(("init", nranks, rank, count, bytes(ids), config))
        return "communicator"

    def comm_get_async_error(self, comm):
        return self.result

    def get_error_string(self, result):
        return f"error {result}"

    def comm_abort(self, comm):
        self.calls.append(("comm_abort", comm))
        self.may_free.wait(60)
        self.freed.set()

    def comm_destroy(self, comm):
        self.calls.append(("comm_destroy", comm))
        self.may_free.wait(60)

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append((name, *arguments))


class Stream:
    """As CuPy's."""

    ptr = 5


class Memory:
    """Of four bytes."""

    address = 1000

    def __init__(self, nbytes):
        assert nbytes == 4


@pytest.fixture
def bindings(monkeypatch):
    made = Bindings()
    for module in (nccl_engine, nccl_library):
        monkeypatch.setattr(module, "bindings", lambda: made)
    return made


@pytest.fixture
def engine(bindings):
    failed = []
    made = nccl_engine.NcclEngine(MPI.COMM_SELF, [3], lambda step, reason: failed.append(step), None)
    made.failed = failed
    return made


def test_a_communicator_is_made_of_the_ranks(bindings, engine):
    assert bindings.calls == [("init", 1, 0, 1, b"u" * 128, 77)]
    engine.close()
    assert bindings.calls[1:] == [("comm_destroy", "communicator")]


def test_an_abandoned_engine_ends_when_the_next_one_is_made(bindings, engine):
    engine.abandon()
    assert bindings.calls[1:] == []
    again = nccl_engine.NcclEngine(MPI.COMM_SELF, [3], lambda step, reason: None, None)
    assert [each[0] for each in bindings.calls] == ["init", "comm_destroy", "init"]
    again.close()
    assert [each[0] for each in bindings.calls[3:]] == ["comm_destroy"]


def test_close_does_not_wait_for_a_graph(bindings, engine):
    """NCCL waits in ncclCommDestroy for the graphs that hold steps of the communicator."""
    bindings.may_free.clear()
    begun = time.monotonic()
    engine.close()
    assert time.monotonic() - begun < 30
    assert ("comm_destroy", "communicator") in bindings.calls
    bindings.may_free.set()


def test_an_engine_ends_only_when_no_kernel_may_wait_for_a_peer(bindings, engine):
    """NCCL frees memory: the driver would wait for a kernel whose peer begins only after the next meeting of ranks."""
    is_busy = True
    elsewhere = RanksElsewhere(MPI.COMM_SELF, lambda loss: None, lambda: is_busy)
    try:
        engine.close()
        RETIRED.get().free()
        assert bindings.calls[1:] == []
        is_busy = False
        RETIRED.get().free()
        assert bindings.calls[1:] == [("comm_destroy", "communicator")]
        RETIRED.get().free()
        assert len(bindings.calls) == 2
    finally:
        elsewhere.close()


@pytest.fixture
def device():
    """Its event is over if the test says so."""
    made = SimpleNamespace(is_over=True, new_stream=Stream, allocate_temporary=lambda nbytes, stream: Memory(nbytes))
    made.event = lambda: SimpleNamespace(record_eager=lambda stream: None, is_over=lambda: made.is_over)
    return made


def test_ranks_are_connected_by_a_byte_to_each(bindings, engine, device):
    engine._ranks = [1, 3, 5]
    engine._connect(3, device)
    assert bindings.calls[1:] == [
        ("group_start",),
        ("send", 1000, 1, 1, 0, "communicator", 5),
        ("send", 1001, 1, 1, 2, "communicator", 5),
        ("recv", 1002, 1, 1, 0, "communicator", 5),
        ("recv", 1003, 1, 1, 2, "communicator", 5),
        ("group_end",),
    ]


def test_a_rank_that_is_not_connected_in_time(engine, device, monkeypatch):
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "0.1")
    engine._ranks, device.is_over = [1, 3, 5], False
    with pytest.raises(StepTimeout, match="first step between nodes: rank 3 timed out waiting") as raised:
        engine._connect(3, device)
    assert raised.value.peers == (1, 5)


def test_an_exchange_is_one_group_on_the_stream(bindings, engine):
    engine.exchange("step", [Transfer(3, 100, 8), Transfer(3, 200, 16)], [Transfer(3, 300, 8)], Stream(), 1)
    assert bindings.calls[1:] == [
        ("group_start",),
        ("send", 100, 8, 1, 0, "communicator", 5),
        ("send", 200, 16, 1, 0, "communicator", 5),
        ("recv", 300, 8, 1, 0, "communicator", 5),
        ("group_end",),
    ]


def test_collectives_name_ranks_of_the_engine(bindings, engine):
    engine.broadcast(100, 8, 3, Stream())
    engine.allgather(100, 200, 8, Stream())
    assert bindings.calls[1:] == [
        ("broadcast", 100, 100, 8, 1, 0, "communicator", 5),
        ("all_gather", 100, 200, 8, 1, "communicator", 5),
    ]


def test_an_error_of_nccl_is_raised_at_every_call(bindings, engine):
    bindings.result = 6
    for _ in range(2):
        with pytest.raises(MPI.Exception, match=r"Bcast, exchange: NCCL 2\.28\.9 between nodes: error 6"):
            engine.check("Bcast, exchange")
    assert engine.failed == ["Bcast, exchange"]
    assert bindings.freed.wait(10)
    assert ("comm_abort", "communicator") in bindings.calls
    with pytest.raises(MPI.Exception):
        engine.exchange("step", [], [], Stream(), 1)


def test_an_abort_does_not_wait_until_memory_is_freed(bindings, engine):
    """For which NCCL waits until the device is idle: until other engines have been aborted, too."""
    bindings.may_free.clear()
    engine.abort("step", ValueError("late"))
    assert not bindings.freed.is_set()
    with pytest.raises(ValueError, match="late"):
        engine.check()
    bindings.may_free.set()
    assert bindings.freed.wait(10)


@pytest.mark.parametrize("call", ["exchange", "broadcast", "allgather"])
def test_an_abort_ends_a_call_that_waits_for_a_peer(monkeypatch, bindings, engine, call):
    """As NCCL's do when it connects ranks; they return an error then."""
    waits = threading.Event()

    def wait_for_the_peer(*_):
        waits.set()
        bindings.freed.wait(10)
        raise RuntimeError("NCCL_ERROR 6")

    for name in ("group_end", "broadcast", "all_gather"):
        monkeypatch.setattr(bindings, name, wait_for_the_peer, raising=False)
    other = threading.Thread(target=lambda: waits.wait(10) and engine.abort("step", ValueError("late")))
    other.start()
    arguments = {
        "exchange": ("step", [], [], Stream(), 1),
        "broadcast": (100, 8, 3, Stream()),
        "allgather": (100, 200, 8, Stream()),
    }[call]
    with pytest.raises(ValueError, match="late"):
        getattr(engine, call)(*arguments)
    other.join()


def test_an_error_of_a_call_ends_the_engine(monkeypatch, bindings, engine):
    """The ranks that have made the call would wait for this one."""

    def refuse(*_):
        raise RuntimeError("NCCL_ERROR 4")

    monkeypatch.setattr(bindings, "broadcast", refuse, raising=False)
    for _ in range(2):
        with pytest.raises(EngineError, match=r"NCCL's broadcast: NCCL .* between nodes: NCCL_ERROR 4"):
            engine.broadcast(100, 8, 3, Stream())
    assert engine.failed == ["NCCL's broadcast"]
    assert bindings.freed.wait(10)


def test_nccl_is_aborted_before_anything_else(bindings, engine):
    """What comes of a failure, such as a dump, may wait for kernels of NCCL's."""
    engine._failed = lambda _step, _reason: calls.append(bindings.freed.wait(10))
    calls = []
    engine.abort("step", ValueError("late"))
    assert calls == [True]


def test_what_is_in_progress_is_no_error(bindings, engine):
    bindings.result = 7
    engine.check()


def test_old_libraries_are_refused(bindings):
    assert nccl_library.refusal() is None
    bindings.version = 22703
    assert "NCCL 2.27 is older than 2.28" in nccl_library.refusal()


def test_a_missing_package_is_a_reason(monkeypatch):
    monkeypatch.setattr(nccl_library, "bindings", lambda: __import__("nccl_that_is_not_there"))
    assert nccl_library.refusal().startswith("ModuleNotFoundError")

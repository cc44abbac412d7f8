"""Error handlers are called for errors that pyncclx finds as mpi4py calls them for the same calls with host arrays."""

import importlib
import sys

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx.team.state import STAGES_BY_DEFAULT
from support.arrays import put
from support.error_handlers import unfollow_handlers

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size


seen = []  # handles and error classes that handlers were called with
# mpi4py has room for few handlers, also if they are freed.
HANDLERS = {
    cls: cls.Create_errhandler(lambda of, code: seen.append((of.handle, MPI.Get_error_class(code))))
    for cls in (MPI.Comm, MPI.Win)
}


@pytest.fixture(autouse=True)
def _methods_as_before():
    seen.clear()
    yield
    unfollow_handlers()


class Side:
    """mpi4py with host arrays, or pyncclx with device arrays."""

    def __init__(self, world, requests, windows, array):
        self.requests, self.windows, self.array = requests, windows, array
        self.comms = [world.Dup() for _ in range(2)]
        for comm in self.comms:
            comm.Set_errhandler(HANDLERS[MPI.Comm])

    def window(self):
        memory = self.comms[0].Alloc(8, "f8") if self.windows is pyncclx.Win else np.zeros(8)
        window = self.windows.Create(memory, 8, comm=self.comms[0])
        window.Set_errhandler(HANDLERS[MPI.Win])
        window.Fence()
        return window

    def outcome(self, call, window=None):
        """Whether a call raised an error of MPI's, and the handlers that it called."""
        seen.clear()
        raised = None
        try:
            call(self)
        except Exception as error:
            raised = isinstance(error, MPI.Exception)
        handles = [each.handle for each in (*self.comms, window) if each is not None]
        return raised, [(handles.index(handle), code) for handle, code in seen]

    def end(self):
        for comm in self.comms:
            comm.Free()


def zeros(side, count=4):
    return side.array(np.zeros(count))


ARGUMENTS = {
    "Send, dest": lambda side: side.comms[0].Send(zeros(side), SIZE),
    "Isend, dest": lambda side: side.comms[1].Isend(zeros(side), SIZE),
    "Send, tag": lambda side: side.comms[0].Send(zeros(side), 0, -5),
    "Recv, source": lambda side: side.comms[0].Recv(zeros(side), SIZE),
    "Sendrecv, dest": lambda side: side.comms[0].Sendrecv(zeros(side), SIZE, 0, zeros(side), RANK),
    "Send_init, dest": lambda side: side.comms[0].Send_init(zeros(side), SIZE),
    "Bcast, root": lambda side: side.comms[0].Bcast(zeros(side), SIZE),
    "Reduce, root": lambda side: side.comms[1].Reduce(zeros(side), zeros(side), MPI.SUM, SIZE),
    "Ibcast, root": lambda side: side.comms[0].Ibcast(zeros(side), SIZE),
    "Allreduce, op": lambda side: side.comms[0].Allreduce(zeros(side), zeros(side), MPI.OP_NULL),
    "no buffer": lambda side: side.comms[0].Send(object(), RANK),
    "a count that is negative": lambda side: side.comms[0].Send([zeros(side), -1, MPI.DOUBLE], RANK),
    "lengths that differ": lambda side: side.comms[0].Allreduce(zeros(side), zeros(side, 3)),
}


@pytest.fixture
def sides():
    made = [
        Side(WORLD, MPI.Request, MPI.Win, np.copy),
        Side(pyncclx.Communicator(WORLD), pyncclx.Request, pyncclx.Win, put),
    ]
    yield made
    for side in made:
        side.end()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(sides, name):
    plain, ours = (side.outcome(ARGUMENTS[name]) for side in sides)
    assert ours[1] == plain[1]
    assert ours[0] is ("buffer" not in name and "differ" not in name and "count" not in name)


def wait_all_by_testing(side, requests):
    while not side.requests.Testall(requests):
        pass


def wait_one(side, requests):
    requests[0].Wait()
    requests[1].Wait()


def poll_one(side, requests):
    requests[0].Wait()
    while not requests[1].Test():
        pass


def wait_any(side, requests):
    while side.requests.Waitany(requests) != MPI.UNDEFINED:
        pass


def wait_some(side, requests):
    while side.requests.Waitsome(requests) is not None:
        pass


COMPLETING = {"Wait": wait_one, "Test": poll_one, "Testall": wait_all_by_testing, "Waitany": wait_any}
COMPLETING["Waitsome"] = wait_some


@pytest.mark.ranks(2)
@pytest.mark.skipif("Open MPI" not in MPI.Get_library_version(), reason="MPICH calls no handler for several requests")
@pytest.mark.parametrize("name", COMPLETING)
def test_messages_that_are_too_long(sides, name):
    """Received by the second of two requests, of another communicator than the first."""

    def call(side):
        first, second = side.comms
        if RANK == 0:
            requests = [first.Irecv(zeros(side), 1, 1), second.Irecv(zeros(side), 1, 2)]
            WORLD.Barrier()
            COMPLETING[name](side, requests)
        elif RANK == 1:
            WORLD.Barrier()
            first.Send(zeros(side), 0, 1)
            second.Send(zeros(side, 8), 0, 2)
        else:
            WORLD.Barrier()

    plain, ours = (side.outcome(call) for side in sides)
    assert ours == plain
    assert ours == ((True, [(1, MPI.ERR_TRUNCATE)]) if RANK == 0 else (None, []))


@pytest.mark.parametrize("receive", ["Recv", "Irecv"])
@pytest.mark.parametrize("probe", ["Mprobe", "Improbe"])
@pytest.mark.parametrize("count", [8, 20000])
def test_matched_messages_that_are_too_long(sides, probe, receive, count):
    def matched(comm):
        while (message := getattr(comm, probe)(RANK, 1)) is None:
            pass
        return message

    def call(side):
        comm = side.comms[1]
        sending = comm.Isend(zeros(side, count), RANK, 1)
        try:
            # Open MPI may write beyond the room for a long message that is truncated.
            received = getattr(matched(comm), receive)(zeros(side, count)[:4])
            if received is not None:
                received.Wait()
        finally:
            sending.Wait()

    plain, ours = (side.outcome(call) for side in sides)
    assert ours == plain == (True, [(1, MPI.ERR_TRUNCATE)])


def test_a_request_that_is_older_than_its_handler():
    with pyncclx.Communicator(WORLD).Dup() as comm:
        request = comm.Irecv(put(np.zeros(4)), RANK, 1)
        comm.Set_errhandler(HANDLERS[MPI.Comm])
        sending = comm.Isend(put(np.zeros(8)), RANK, 1)
        with pytest.raises(MPI.Exception, match="room for 32"):
            request.Wait()
        sending.Wait()
        assert seen == [(comm.handle, MPI.ERR_TRUNCATE)]


@pytest.mark.parametrize("wait", [lambda request: MPI.Request.Waitall([request]), MPI.Request.Wait])
def test_calls_of_mpi4py_itself(wait):
    """The handler is called in the call that completes the request, and no later call calls it again."""
    with pyncclx.Communicator(WORLD).Dup() as comm:
        comm.Set_errhandler(HANDLERS[MPI.Comm])
        request, sending = comm.Irecv(put(np.zeros(4)), RANK, 1), comm.Isend(put(np.zeros(8)), RANK, 1)
        with pytest.raises(MPI.Exception):
            wait(request)
        request.Wait()
        sending.Wait()
        assert seen == [(comm.handle, MPI.ERR_TRUNCATE)]


def test_datatypes_that_pack():
    """Their methods call handlers also if `pyncclx.MPI` is imported after the handler was set."""
    with pyncclx.Communicator(WORLD).Dup() as comm:
        comm.Set_errhandler(HANDLERS[MPI.Comm])
        ours = importlib.import_module("pyncclx.MPI")
        del sys.modules["pyncclx.MPI"]
        STAGES_BY_DEFAULT.reset()
        with pytest.raises(MPI.Exception):
            ours.DOUBLE.Pack(put(np.zeros(4)), put(np.zeros(3)), 0, comm)
        assert seen == [(comm.handle, MPI.ERR_TRUNCATE)]


def test_what_is_not_supported(sides):
    comm, op = sides[1].comms[1], MPI.Op.Create(lambda x, y, datatype: None)
    with pytest.raises(pyncclx.NotSupported):
        comm.Allreduce(put(np.zeros(4)), put(np.zeros(4)), op)
    op.Free()
    assert seen == [(comm.handle, MPI.ERR_UNSUPPORTED_OPERATION)]


@pytest.mark.ranks(2)
def test_a_rank_that_does_not_come(monkeypatch):
    comm = pyncclx.Communicator(WORLD).Dup()
    comm.Barrier(device=True)
    comm.Set_errhandler(HANDLERS[MPI.Comm])
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "0.5")
    if RANK == 0:
        with pytest.raises(pyncclx.PeerTimeout):
            comm.Bcast(put(np.zeros(4)), 1)
    assert seen == ([(comm.handle, MPI.ERR_OTHER)] if RANK == 0 else [])
    WORLD.Barrier()
    comm.state.abandon()


WINDOW = {
    "Put, rank": lambda window, array: window.Put(array(np.zeros(4)), SIZE),
    "Put, displacement": lambda window, array: window.Put(array(np.zeros(4)), RANK, 100),
    "Accumulate, op": lambda window, array: window.Accumulate(array(np.zeros(4)), RANK, op=MPI.OP_NULL),
    "Get, no buffer": lambda window, array: window.Get(object(), RANK),
}


@pytest.mark.skipif("Open MPI" not in MPI.Get_library_version(), reason="MPICH does not check displacements")
@pytest.mark.parametrize("name", WINDOW)
def test_windows(sides, name):
    outcomes = []
    for side in sides:
        window = side.window()
        outcomes.append(side.outcome(lambda side, window=window: WINDOW[name](window, side.array), window))
        window.Fence()
        window.Free()
    assert outcomes[1] == outcomes[0]


def test_no_method_is_changed_before():
    send = pyncclx.Comm.Send
    with pyncclx.Communicator(WORLD).Dup() as comm:
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        assert pyncclx.Comm.Send is send
        comm.Set_errhandler(MPI.ERRORS_ARE_FATAL)
        assert pyncclx.Comm.Send is not send
        comm.Set_errhandler(MPI.ERRORS_RETURN)
    unfollow_handlers()
    assert pyncclx.Comm.Send is send


@pytest.mark.skipif("Open MPI" not in MPI.Get_library_version(), reason="MPICH refuses the communicator")
def test_a_request_that_outlives_its_communicator():
    """The communicator's handle may be another one's by then."""
    comm = pyncclx.Communicator(MPI.COMM_WORLD).Dup()
    comm.Set_errhandler(HANDLERS[MPI.Comm])
    receiving = comm.Irecv(put(np.zeros(2)), RANK, 3)
    sending = comm.Isend(put(np.ones(50)), RANK, 3)
    comm.Free()
    with pytest.raises(MPI.Exception) as raised:
        receiving.Wait()
    assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE
    sending.Wait()
    assert seen == []

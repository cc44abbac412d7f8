"""Communicators: every way to make one returns ours, leases are taken and returned, and many work side by side."""

import pickle
import warnings
from collections import Counter

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from pyncclx import backends
from pyncclx.failures.detector import DETECTOR
from pyncclx.memory.heap import Heap
from pyncclx.messages.progress.polling import PROGRESS
from pyncclx.operators import ops
from pyncclx.system import settings
from pyncclx.team import members
from support.arrays import Output, get, put, xp
from support.error_handlers import unfollow_handlers
from support.everywhere import assert_everywhere, raises_everywhere
from support.leases import leases
from support.reference import comparing, contributions, counts, fold

WORLD = MPI.COMM_WORLD


def allreduce(comm, compare, call=0, count=100):
    vectors, recv = contributions(comm.size, count, call=call), Output(count, "f4")
    comm.Allreduce(put(vectors[comm.rank]), recv.array)
    compare(recv, fold(ops.SUM, vectors), f"communicator of {comm.size}, call {call}")


def ring(comm):
    return [(rank + 1) % comm.size for rank in range(comm.size)]


def idup(comm):
    duplicate, request = comm.Idup()
    request.Wait()
    return duplicate


MAKERS = {
    "Dup": lambda comm: comm.Dup(),
    "Clone": lambda comm: comm.Clone(),
    "Dup_with_info": lambda comm: comm.Dup_with_info(MPI.INFO_NULL),
    "Idup": idup,
    "Split": lambda comm: comm.Split(comm.rank % 2),
    "Split_type": lambda comm: comm.Split_type(MPI.COMM_TYPE_SHARED),
    "Create": lambda comm: comm.Create(comm.Get_group()),
    "Create_group": lambda comm: comm.Create_group(comm.Get_group()),
    "fromhandle": lambda comm: type(comm).fromhandle(MPI.Comm.Dup(comm).handle),
    "Create_cart": lambda comm: comm.Create_cart([comm.size]),
    "Sub": lambda comm: comm.Create_cart([comm.size, 1]).Sub([True, False]),
    "Create_graph": lambda comm: comm.Create_graph(range(1, comm.size + 1), ring(comm)),
    "Create_dist_graph": lambda comm: comm.Create_dist_graph([comm.rank], [1], [(comm.rank + 1) % comm.size]),
    "Create_dist_graph_adjacent": lambda comm: comm.Create_dist_graph_adjacent(
        [(comm.rank - 1) % comm.size], [(comm.rank + 1) % comm.size]
    ),
}
KINDS = {
    "Create_cart": pyncclx.Cartcomm,
    "Sub": pyncclx.Cartcomm,
    "Create_graph": pyncclx.Graphcomm,
    "Create_dist_graph": pyncclx.Distgraphcomm,
    "Create_dist_graph_adjacent": pyncclx.Distgraphcomm,
}


@pytest.mark.parametrize("maker", MAKERS)
def test_every_way_to_make_one(maker):
    with MAKERS[maker](pyncclx.Communicator()) as comm, comparing() as compare:
        assert type(comm) is KINDS.get(maker, pyncclx.Intracomm)
        assert isinstance(comm, pyncclx.Intracomm)
        with comm.Dup() as duplicate:
            assert type(duplicate) is type(comm)
        assert comm.blocking == "stream"
        allreduce(comm, compare)
    assert comm == MPI.COMM_NULL


def test_a_first_call_while_a_duplicate_is_made():
    """Ranks meet on the communicator meanwhile, which Open MPI's own nonblocking collectives do not survive."""
    for _ in range(3):
        with pyncclx.Communicator().Dup() as parent, comparing() as compare:
            duplicate, request = parent.Idup()
            allreduce(parent, compare)
            request.Wait()
            with duplicate:
                allreduce(duplicate, compare)


def test_settings_are_inherited(comm):
    with comm.Dup() as parent:
        parent.blocking = "host"
        for make in MAKERS.values():
            with make(parent) as child:
                assert child.blocking == "host"


@pytest.mark.ranks(2)
def test_intercommunicator():
    """Made, duplicated and divided it is ours; what it merges to has kernels."""
    comm = pyncclx.Communicator()
    with comm.Split(comm.rank % 2) as half, half.Create_intercomm(0, comm, 1 - comm.rank % 2) as inter:
        assert type(inter) is pyncclx.Intercomm
        assert type(pyncclx.Communicator(MPI.Intercomm(inter))) is pyncclx.Intercomm
        with inter.Dup() as duplicate, inter.Split(0) as part:
            assert {type(duplicate), type(part)} == {pyncclx.Intercomm}
        with pytest.raises(pyncclx.NotSupported, match="Merge"):
            _ = inter.team
        with inter.Merge() as merged, comparing() as compare:
            assert type(merged) is pyncclx.Intracomm
            allreduce(merged, compare)


def test_null():
    for kind in (pyncclx.Comm, pyncclx.Intracomm, pyncclx.Intercomm, pyncclx.Cartcomm):
        null = kind(MPI.COMM_NULL)
        assert null == MPI.COMM_NULL
        null.free()
        assert pickle.loads(pickle.dumps(null)) == MPI.COMM_NULL


def test_predefined_survive():
    for predefined in (MPI.COMM_WORLD, MPI.COMM_SELF):
        comm = pyncclx.Communicator(predefined)
        comm.free()
        with pytest.raises(MPI.Exception):
            comm.Free()
        again = pickle.loads(pickle.dumps(comm))
        assert type(again) is pyncclx.Intracomm
        assert again == comm == predefined


def test_callbacks_are_given_ours():
    """Attributes and error handlers of communicators."""
    seen = []
    keyval = pyncclx.Comm.Create_keyval(
        copy_fn=lambda comm, keyval, value: seen.append(type(comm)) or value + 1,
        delete_fn=lambda comm, keyval, value: seen.append(value),
    )
    comm = pyncclx.Communicator().Dup()
    comm.Set_attr(keyval, 5)
    duplicate = comm.Dup()
    assert duplicate.Get_attr(keyval) == 6
    duplicate.Free()
    handler = pyncclx.Comm.Create_errhandler(lambda comm, code: seen.append((type(comm), code)))
    comm.Set_errhandler(handler)
    comm.Call_errhandler(MPI.ERR_OTHER)
    unfollow_handlers()
    comm.Free()
    handler.Free()
    pyncclx.Comm.Free_keyval(keyval)
    assert seen == [pyncclx.Intracomm, 6, (pyncclx.Intracomm, MPI.ERR_OTHER), 5]


def test_no_member():
    parent = pyncclx.Communicator()
    assert parent.Split(MPI.UNDEFINED) == MPI.COMM_NULL
    first = parent.Create(parent.Get_group().Incl([0]))
    assert (first == MPI.COMM_NULL) == (parent.rank != 0)
    if parent.rank == 0:
        assert type(first) is pyncclx.Intracomm
        first.Free()


def test_state_belongs_to_the_handle():
    """Two objects of one handle are one communicator; blocking is inherited by what is made of it."""
    comm = pyncclx.Communicator().Dup()
    comm.blocking = "host"
    same = pyncclx.Communicator(MPI.Intracomm(comm))
    with comparing() as compare:
        allreduce(comm, compare)
        allreduce(same, compare, 1)
    assert same.blocking == "host"
    assert same.team is comm.team
    with comm.Dup() as child:
        assert child.blocking == "host"
        assert child.team is not comm.team
    comm.Free()


def test_world_gives_its_memory_back():
    """COMM_WORLD cannot be freed; as a context it releases what it holds on the device, and can be used again."""
    with pyncclx.Communicator(WORLD) as comm, comparing() as compare:
        allreduce(comm, compare)
        assert comm.memory_report()["this communicator"] > 0
    assert comm.memory_report()["this communicator"] == 0
    with comparing() as compare:
        allreduce(comm, compare, 1)


def test_free_by_an_mpi4py_object():
    """mpi4py's `Free` frees pyncclx's object, too; the lease is kept until all ranks have freed it."""
    comm, last = pyncclx.Communicator().Dup(), WORLD.rank == WORLD.size - 1
    comm.Allreduce(MPI.IN_PLACE, xp.zeros(3, "f4"))
    heap, before, lease = comm.team.heap, len(comm.team.heap.leases), comm.team.lease
    if not last:
        MPI.Intracomm(comm).Free()
        report = pyncclx.Communicator().memory_report()
    assert_everywhere(WORLD, len(heap.leases) == before and (last or report["abandoned"] >= lease.nbytes))
    if last:
        MPI.Intracomm(comm).Free()
    with raises_everywhere(WORLD, MPI.Exception, match="freed"):
        comm.Allreduce(MPI.IN_PLACE, xp.zeros(3, "f4"))
    assert_everywhere(WORLD, pyncclx.Communicator().memory_report()["abandoned"] == 0)
    assert len(heap.leases) == before - 1


@pytest.mark.parametrize("end", ["Free", "free", "exit"])
def test_freeing_waits_for_no_other_rank(end):
    """Some ranks free a communicator first, and the others only after the next call of all ranks."""
    comm, world = pyncclx.Communicator().Dup(), pyncclx.Communicator()
    total, first = xp.full(5, 1 + comm.rank, "i8"), comm.rank % 2 == 0
    comm.Allreduce(MPI.IN_PLACE, total)
    free = (lambda: comm.__exit__(None)) if end == "exit" else getattr(comm, end)
    for turn in (0, 1):
        if first == (turn == 0):
            free()
        world.Allreduce(MPI.IN_PLACE, xp.zeros(1 << turn, "i8"))
        assert_everywhere(WORLD, (comm == MPI.COMM_NULL) == (first or turn == 1))
    assert set(get(total)) == {sum(range(1, world.size + 1))}


def test_attributes_of_others():
    """Deleting another attribute of a communicator before ours does no harm, however many attributes there are.

    MPICH: a callback that asks for the topology, as mpi4py does before one of Python's, then reads freed memory.
    """
    world = pyncclx.Communicator()
    world.Create_cart([world.size]).Free()  # from now on MPICH looks for topologies among the attributes
    other = MPI.Comm.Create_keyval()
    kept = []
    for number in range(100):  # memory for attributes comes in blocks
        kept.append(world.Dup())
        kept[-1].blocking = "host"
        with world.Dup() as comm:
            comm.blocking = "stream"
            comm.Set_attr(other, number)
    assert {comm.blocking for comm in kept} == {"host"}
    for comm in kept:
        comm.Free()
    MPI.Comm.Free_keyval(other)


def test_interleaved_calls(comm):
    """Large and small messages on several communicators by turns; none is waited for."""
    others = [comm.Dup(), comm.Split(0, -comm.rank), comm.Split(comm.rank % 2)]
    sizes = counts(others[0].team.layout, 4)[1:]
    with comparing() as compare:
        results = []
        for call, count in enumerate(sizes):
            for each in [comm, *others]:
                vectors, recv = contributions(each.size, count, call=call), Output(count, "f4")
                each.Allreduce(put(vectors[each.rank]), recv.array)
                results.append((each, vectors, recv))
        for each, vectors, recv in results:
            compare(recv, fold(ops.SUM, vectors), f"communicator {([comm, *others]).index(each)}")
    for each in others:
        each.Free()


def test_heap_holds_32_communicators(heap):
    """In the default heap; Free gives the lease back; no process is mapped twice."""
    world = pyncclx.Communicator()
    comms = [world.Dup() if number % 2 else world.Split(0, -world.rank) for number in range(32)]
    nothing = {"heap": settings.HEAP.default, "leased": 0, "this communicator": 0, "windows": 0, "shuffles": 0}
    assert nothing.items() <= comms[0].memory_report().items()
    with comparing() as compare:
        for call, comm in enumerate(comms):
            allreduce(comm, compare, call)
            assert len(heap.peers) == world.size - 1
        for call, comm in enumerate(reversed(comms)):
            allreduce(comm, compare, call, 5000)
        report = comms[0].memory_report()
        assert settings.HEAP.default == heap.nbytes == report["heap"] >= report["leased"]
        assert report["leased"] == sum(comm.memory_report()["this communicator"] for comm in comms)
        assert len({lease.offset for lease in heap.leases}) == 32
        for comm in comms[::2]:
            comm.Free()
        assert len(leases(heap)) == 16
        again = [world.Dup() for _ in range(16)]
        for call, comm in enumerate(again):
            allreduce(comm, compare, call)
        assert len(heap.leases) == 32
        assert len(heap.peers) == world.size - 1
    for comm in [*again, *comms[1::2]]:
        comm.Free()
    assert leases(heap) == []


def test_heap_is_full(heap, monkeypatch):
    """All ranks raise alike, and a Free makes room."""
    monkeypatch.setattr(Heap, "offer", lambda self, least, **_: self.nbytes)
    world = pyncclx.Communicator()
    with world.Dup() as comm, comparing() as compare, world.Dup() as second:
        allreduce(comm, compare)
        with pytest.raises(
            pyncclx.NotSupported, match="no room for another communicator: Free one, or set PYNCCLX_HEAP"
        ):
            second.Allreduce(MPI.IN_PLACE, xp.zeros(3, "f4"))
        allreduce(comm, compare, 1)
    with world.Dup() as comm, comparing() as compare:
        allreduce(comm, compare)


def test_one_is_made_while_another_is_made(heap, monkeypatch):
    """As by another thread: both have offered a part of the heap, and map the same peers, before either goes on."""
    map_all = Heap.map_all
    world = pyncclx.Communicator()
    with world.Dup() as first, world.Dup() as second, comparing() as compare:

        def meanwhile(self, handles):
            monkeypatch.setattr(Heap, "map_all", map_all)
            allreduce(second, compare)
            map_all(self, handles)

        monkeypatch.setattr(Heap, "map_all", meanwhile)
        allreduce(first, compare, 1)
        allreduce(second, compare, 2)
        assert first.team.bases != second.team.bases
        assert len(heap.leases) == 2
    assert leases(heap) == []


def test_one_that_cannot_be_made_keeps_nothing(heap, monkeypatch):
    def refuse(*_, **__):
        raise pyncclx.NotSupported("several nodes")

    monkeypatch.setattr(members, "_check", refuse)
    with pyncclx.Communicator().Dup() as comm, pytest.raises(pyncclx.NotSupported, match="several nodes"):
        comm.Allreduce(MPI.IN_PLACE, xp.zeros(3, "f4"))
    assert leases(heap) == []


# Methods of the device, of the failure detector, and of what makes the progress of receives.
STEPS = ("fill_zero", "map_peer", "allocate_watch", "add_peers", "watch", "get")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("step", STEPS)
def test_one_that_a_rank_cannot_make_keeps_nothing(heap, monkeypatch, step):
    """All ranks raise, and each gives its lease back, lets the detector go, and closes its descriptors."""
    detector = DETECTOR.get()
    monkeypatch.setattr(detector, "peers", {})  # so that pages are mapped again

    def fail(*_):
        raise MemoryError(step)

    def remains():
        return heap.leases, heap.living, +heap.members, len(detector._watched)

    before = [], set(), Counter(), len(detector._watched)
    with pyncclx.Communicator().Dup() as comm, comparing() as compare:
        with monkeypatch.context() as context:
            if comm.rank == comm.size - 1:
                holder = next(each for each in (heap.device, detector, PROGRESS) if hasattr(each, step))
                context.setattr(holder, step, fail)
            with raises_everywhere(WORLD, MemoryError, match=f"{step} .failed on rank {comm.size - 1} of"):
                comm.Allreduce(MPI.IN_PLACE, xp.zeros(3, "f4"))
        assert_everywhere(WORLD, remains() == before, f"{remains()}, before {before}")
        allreduce(comm, compare)
    assert leases(heap) == []


@pytest.mark.parametrize("where", ["all", "first", "last"])
def test_warnings_that_are_errors(heap, monkeypatch, where):
    """The first rank warns: if that is an error there, all ranks raise it, else none; `where` has the filter."""
    monkeypatch.setenv("PYNCCLX_CHANELS", "8")
    ranks = {"all": range(WORLD.size), "first": [0], "last": [WORLD.size - 1]}[where]
    with pyncclx.Communicator().Dup() as comm, comparing() as compare:
        with warnings.catch_warnings():
            warnings.simplefilter("error" if comm.rank in ranks else "ignore", RuntimeWarning)
            if 0 not in ranks:
                allreduce(comm, compare)
            else:
                with raises_everywhere(WORLD, RuntimeWarning, match="PYNCCLX_CHANELS is no setting.*failed on rank 0"):
                    comm.Allreduce(MPI.IN_PLACE, xp.zeros(3, "f4"))
                assert_everywhere(WORLD, heap.leases == [])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            allreduce(comm, compare)


def test_lease_of_a_freed_communicator_is_clean():
    """The next holder of the lease finds no packets and no epochs of the last one."""
    with comparing() as compare:
        for call in range(6):
            with pyncclx.Communicator().Dup() as comm:
                for again in range(call + 1):
                    allreduce(comm, compare, again, 7 if again % 2 else 3000)


def test_blocking_on_the_host(comm):
    """The result is there when the call returns."""
    vectors, recv = contributions(comm.size, 5000), Output(5000, "f4")
    comm.blocking = "host"
    comm.Allreduce(put(vectors[comm.rank]), recv.array)
    comm.blocking = "stream"
    with comparing() as compare:
        compare(recv, fold(ops.SUM, vectors), "Allreduce")


def test_explain(comm):
    small, large = comm.explain("Allreduce", 64), comm.explain("Allreduce", 1 << 28)
    assert "Allreduce of 64 bytes" in small
    assert "kernel allreduce_one_shot" in small
    assert "packets" in small
    assert "kernel allreduce_two_shot" in large
    assert "chunks" in large
    for operation in ("Barrier", "Bcast", "Reduce", "Allgather", "Reduce_scatter_block", "Alltoall", "Alltoallv"):
        sentence = comm.explain(operation, 1000)
        assert sentence.startswith("native: ")
        assert f"kernel {operation.lower()}" in sentence
    for operation in ("Send", "Irecv", "Sendrecv", "Isendrecv_replace"):
        assert comm.explain(operation, 8).startswith(f"native: {operation} of 8 bytes: MPI matches, the sender's")
        assert "receiver's kernel fetches" in comm.explain(operation, 1 << 20)
    assert comm.explain("Split").startswith("host: Split is mpi4py's")


@pytest.mark.parametrize("runs_concurrently", [True, False])
def test_ranks_that_share_a_gpu(comm, heap, monkeypatch, runs_concurrently):
    """They divide the channels and the blocks of shuffles, if their kernels run at the same time."""
    device = backends.select()
    monkeypatch.setattr(device, "identity", f"shared by two, {comm.rank // 2}")
    monkeypatch.setattr(device, "runs_concurrently", runs_concurrently)
    monkeypatch.setattr(device, "assigned_processes", 1)  # other tests may have asked for it
    sharing = 2 if runs_concurrently and comm.size > 1 else 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        together = comm.Dup()
        with comparing() as compare:
            allreduce(together, compare)
    assert len(caught) == (comm.rank == 0 and comm.size > 1 and not runs_concurrently)
    assert together.team.layout.sharing == sharing
    assert together.team.layout.channels == members.channels(device) // sharing
    with together.Create_token_shuffle(4 * comm.size, 64, 64, k=2, max_tokens=8, blocks=6) as shuffle:
        assert f"on {6 // sharing} blocks" in shuffle.explain()
    together.Free()


def test_select_device():
    device = backends.select()
    assert pyncclx.Communicator().select_device() == device.ordinal
    gpus = xp.cuda.runtime.getDeviceCount() if device.name == "gpu" else WORLD.size
    assert device.assigned_processes == -(-WORLD.size // gpus)


def test_mpi_still_works_beside_it(comm):
    """Point to point, lower-case methods and a window on the same communicator."""
    values = get(put(np.arange(comm.size)))
    peer = (comm.rank + 1) % comm.size
    received = comm.sendrecv(values[comm.rank].item(), peer, source=(comm.rank - 1) % comm.size)
    assert received == (comm.rank - 1) % comm.size
    window = MPI.Win.Allocate(8, comm=comm)
    window.Free()
    assert comm.bcast("text", root=0) == "text"


def test_communicator_is_a_class():
    """All communicators are its instances; it makes what fits, and what is derived from it makes its own."""

    class Mine(pyncclx.Communicator):
        calls = 0

    world, mine = pyncclx.Communicator(), Mine(MPI.COMM_WORLD)
    cart = pyncclx.Communicator(MPI.Intracomm(world).Create_cart([world.size]))
    assert [type(each) for each in (world, mine, cart)] == [pyncclx.Intracomm, Mine, pyncclx.Cartcomm]
    assert all(isinstance(each, pyncclx.Communicator) for each in (world, mine, cart))
    assert issubclass(pyncclx.Intercomm, pyncclx.Communicator)
    assert not isinstance(world, Mine)
    assert not isinstance(MPI.COMM_WORLD, pyncclx.Communicator)
    with mine.Dup() as duplicate:
        assert type(duplicate) is Mine
        assert duplicate.allreduce(1) == world.size
    cart.Free()
    with pytest.raises(TypeError, match="Mine: comm is 3"):
        Mine(3)

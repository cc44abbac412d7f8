"""Alltoallv with counts on the device: rows return to their places; too small capacities; persistent requests."""

import weakref

import numpy as np
import pytest

import pyncclx
from pyncclx import CapacityExceeded
from support.arrays import Output, get, gpu_only, put, synchronize, xp
from support.everywhere import assert_everywhere, raises_everywhere
from support.in_python import also_in_python  # noqa: F401
from support.reference import NODES, comparing, labels

pytestmark = pytest.mark.usefixtures("also_in_python")

WIDTH = 3
POISONED = np.frombuffer(b"\xa5" * 8, "i8")[0]


def rows_of(rank, count, call=0):
    return labels(rank, count * WIDTH, call).reshape(-1, WIDTH)


def some_counts(size, call=0):
    """Rows [source, target]."""
    return np.random.default_rng([size, call]).integers(0, 9, (size, size))


def gaps(counts):
    """Displacements of one rank's rows: those for the last rank come first, with a gap after each."""
    ends = np.cumsum(counts[::-1] + 2)
    return (ends - counts[::-1] - 2)[::-1].copy()


def test_there_and_back(comm):
    """Rows anywhere in sendbuf go to other ranks and return to their places; the displacements stay on the device."""
    size, me = comm.size, comm.rank
    counts = some_counts(size)
    displs = gaps(counts[me])
    room = int(counts[me].sum()) + 2 * size
    send = put(rows_of(me, room))
    there, got, begin = xp.empty((int(counts[:, me].sum()), WIDTH), "i8"), xp.empty(size, "i8"), xp.empty(size, "i8")
    back, returned, total = Output((room, WIDTH), "i8"), Output(size, "i8"), Output(1, "i8")
    where = put(displs)
    comm.Alltoallv([send, (put(counts[me]), where)], [there, (got, begin)], layout="packed")
    there += 1 << 60
    comm.Alltoallv([there, (got, begin)], [back.array, (returned.array, where)], layout="placed", total=total.array)
    expected = back.read()
    for count, displ in zip(counts[me], displs, strict=True):
        expected[displ : displ + count] = rows_of(me, room)[displ : displ + count] + (1 << 60)
    with comparing() as compare:
        compare(back, expected, "rows")
        assert (expected == POISONED).any() == (room > 0), "gaps"
        compare(returned, counts[me], "counts")
        compare(total, np.array([counts[me].sum()]), "total")
    assert np.array_equal(get(where), displs)


def test_places_as_at_the_sender(comm):
    """Each slot looks like its sender's buffer, but for rows that went to others; it can be sent on as it is."""
    size, me = comm.size, comm.rank
    counts = some_counts(size)
    displs = np.array([gaps(row) for row in counts])
    room = int(counts.sum(axis=1).max()) + 2 * size
    recv, places = Output((size, room, WIDTH), "i8"), Output(size, "i8")
    got = Output(size, "i8")
    comm.Alltoallv(
        [put(rows_of(me, room)), (put(counts[me]), put(displs[me]))],
        [recv.array, (got.array, places.array)],
        layout="sender",
    )
    expected = np.full((size, room, WIDTH), POISONED)
    for source, (count, displ) in enumerate(zip(counts[:, me], displs[:, me], strict=True)):
        expected[source, displ : displ + count] = rows_of(source, room)[displ : displ + count]
    begins = np.arange(size) * room + np.where(counts[:, me] > 0, displs[:, me], 0)
    with comparing() as compare:
        compare(recv, expected, "rows")
        compare(got, counts[:, me], "counts")
        compare(places, begins, "displs")


@pytest.mark.parametrize("layout", ["packed", "slots", "sender"])
def test_capacity_below_the_room(comm, layout):
    """Not all of recvbuf may be used; slots stay where they are."""
    size, me, room, capacity = comm.size, comm.rank, 4 * comm.size, 3
    recv, counts, status = Output((size, room, WIDTH), "i8"), Output(size, "i8"), Output(size, "i8")
    array = recv.array.reshape(-1, WIDTH) if layout == "packed" else recv.array
    comm.Alltoallv(
        [put(rows_of(me, 2 * size)), put(np.full(size, 2))],
        [array, counts.array],
        layout=layout,
        capacity=capacity,
        status=status.array,
    )
    expected, kept, used = np.full((size * room, WIDTH), POISONED), [], 0
    for source in range(size):
        begin = {"packed": used, "slots": 0, "sender": 2 * me}[layout]
        kept.append(max(0, min(2, capacity - begin)))
        used += kept[-1]
        first = begin if layout == "packed" else source * room + begin
        expected[first : first + kept[-1]] = rows_of(source, 2 * size)[2 * me : 2 * me + kept[-1]]
    with comparing() as compare:
        compare(recv, expected.reshape(size, room, WIDTH), "rows")
        compare(counts, np.array(kept), "counts")
        compare(status, 2 - np.array(kept), "status")


@pytest.mark.parametrize("with_status", [False, True])
@pytest.mark.parametrize("overflow", ["raise", "drop", None])
def test_overflow(comm, overflow, with_status):
    """Rows that do not fit are an error of the next call, or none, as the caller chooses."""
    size = comm.size
    status = xp.zeros(size, "i8") if with_status else None
    recv = Output((size, 1, WIDTH), "i8")
    comm.Alltoallv(
        [put(rows_of(comm.rank, 2 * size)), put(np.full(size, 2))],
        recv.array,
        layout="slots",
        overflow=overflow,
        status=status,
    )
    synchronize()
    raised = False
    try:
        comm.synchronize()
    except CapacityExceeded as error:
        raised = (error.rank, error.wanted, error.capacity) == (comm.rank, 2, 1)
    assert_everywhere(comm, raised == (overflow == "raise" or (overflow is None and not with_status)))
    assert status is None or get(status).tolist() == [1] * size
    with comparing() as compare:
        compare(recv, np.stack([rows_of(source, 2 * size)[2 * comm.rank :][:1] for source in range(size)]), "rows")


@pytest.mark.parametrize(("option", "length"), [("status", None), ("total", 1)])
def test_an_array_is_the_only_option(comm, option, length):
    """It is no truth value, also where there is one of several elements."""
    size = comm.size
    recv, counts, given = Output((size, WIDTH), "i8"), Output(size, "i8"), Output(length or size, "i8")
    rows = put(rows_of(comm.rank, size))
    comm.Alltoallv([rows, put(np.ones(size, "i8"))], [recv.array, counts.array], **{option: given.array})
    with comparing() as compare:
        compare(recv, np.stack([rows_of(source, size)[comm.rank] for source in range(size)]), "rows")
        compare(counts, np.ones(size, int), "counts")
        compare(given, np.zeros(size, int) if option == "status" else np.array([size]), option)


@pytest.mark.parametrize("place", [-1, -(2**62), 1, 2, 2**62])
def test_places_outside_of_the_buffer(comm, place):
    """Nothing is written there."""
    size = comm.size
    recv, counts, status = Output((1, WIDTH), "i8"), Output(size, "i8"), Output(size, "i8")
    places = put(np.full(size, place))
    rows = put(rows_of(comm.rank, 2 * size))
    numbers = put(np.full(size, 2))
    comm.Alltoallv([rows, numbers], [recv.array, (counts.array, places)], layout="placed", status=status.array)
    with comparing() as compare:
        compare(recv, np.full((1, WIDTH), POISONED), "rows")
        compare(counts, np.zeros(size, int), "counts")
        compare(status, np.full(size, 2), "status")


def test_bad_options(comm):
    size = comm.size
    rows, counts, recv = xp.zeros((size, 2)), xp.zeros(size, "i8"), xp.zeros((size, 2))
    bad = {
        "recvbuf has no displs": {"layout": "placed"},
        "overflow is 'ignore'": {"layout": "packed", "overflow": "ignore"},
        "capacity is -1": {"layout": "packed", "capacity": -1},
        "slot of recvbuf has 1 rows": {"layout": "slots", "capacity": 2},
    }
    for text, options in bad.items():
        with raises_everywhere(comm, ValueError, match=text):
            comm.Alltoallv([rows, counts], recv[:, None] if options["layout"] == "slots" else recv, **options)
    with raises_everywhere(comm, ValueError, match="recvbuf counts is an array"):
        comm.Alltoallv([rows, counts], [recv, (places := xp.zeros(size, "i8"), places)], layout="placed")


def test_arrays_that_overlap(comm):
    """In part or as a whole, with an input or with another output: nothing is launched."""
    size = comm.size
    rows, recv = xp.ones((size, 2)), xp.zeros((size, 2))
    memory = xp.zeros(3 * size + 1, "i8")
    memory[:size] = 1
    counts, beside, behind = memory[:size], memory[size : 2 * size], memory[size - 1 : 2 * size - 1]
    for out, options in (
        ([recv, (behind, memory[2 * size : 3 * size])], {}),
        ([recv, (memory[2 * size : 3 * size], behind)], {}),
        (recv, {"total": counts[-1:]}),
        (recv, {"status": behind}),
        ([recv, (beside, beside)], {}),
        ([recv, (beside, memory[2 * size : 3 * size])], {"total": beside[-1:]}),
        ([recv, (beside, memory[2 * size : 3 * size])], {"status": memory[2 * size + 1 :]}),
    ):
        if size == 1 and options.get("status") is not None and out is not recv:
            continue  # one element overlaps as a whole or not at all
        with raises_everywhere(comm, ValueError, match="another one"):
            comm.Alltoallv([rows, counts], out, layout="packed", **options)
    into = [recv, (beside, memory[2 * size : 3 * size])]
    comm.Alltoallv([rows, counts], into, layout="packed", total=memory[3 * size :])
    assert get(memory).tolist() == [1] * size + [1] * size + list(range(size)) + [size]


@pytest.mark.parametrize("layout", ["slots", "sender"])
@pytest.mark.parametrize("inner", [(), (1,)])
def test_slots_of_one_row(comm, layout, inner):
    """Where there is one slot for each rank, `recvbuf` may have the dimension of the capacity or not."""
    size, me = comm.size, comm.rank
    send = rows_of(me, 1)
    counts = np.zeros(size, "i8")
    counts[(me + 1) % size] = 1
    recv = Output((size, *inner, WIDTH), "i8")
    comm.Alltoallv([put(send), put(counts)], recv.array, layout=layout)
    expected = np.full((size, WIDTH), POISONED)
    expected[(me - 1) % size] = rows_of((me - 1) % size, 1)
    with comparing() as compare:
        compare(recv, expected.reshape(size, *inner, WIDTH), "rows")


@pytest.mark.parametrize("layout", ["packed", "slots", "sender", "placed"])
def test_persistent(comm, layout):
    """A request is made once; each start reads the counts, displacements and places that are there then."""
    size, me, room = comm.size, comm.rank, 9 * comm.size
    send, counts, displs = xp.empty((room, WIDTH), "i8"), xp.empty(size, "i8"), xp.empty(size, "i8")
    slots = layout in ("slots", "sender")
    recv = Output((size * (room if slots else 9), WIDTH), "i8")
    got, begin, total, status = (Output(n, "i8") for n in (size, size, 1, size))
    request = comm.Alltoallv_init(
        [send, (counts, displs)],
        [recv.array, (got.array, begin.array)],
        layout=layout,
        capacity=7 if slots else 6 * size,
        total=total.array,
        status=status.array,
    )
    assert isinstance(request, pyncclx.Prequest)
    with comparing() as compare:
        for call in range(6):
            matrix = some_counts(size, call) * (call != 3)
            first = np.cumsum(matrix, axis=1) - matrix
            places = np.cumsum(matrix[::-1, me])[::-1] - matrix[:, me]  # the last rank's rows come first
            send[...] = put(rows_of(me, room, call))
            counts[...], displs[...] = put(matrix[me]), put(first[me])
            for output in (recv, got, begin, total, status):
                output.poison()
            if layout == "placed":
                begin.fill(places)
            request.Start()
            request.Wait()
            expected, used, kept, begins = recv.read(), 0, [], []
            expected[...] = POISONED
            for source in range(size):
                count = int(matrix[source, me])
                own = {"packed": used, "placed": int(places[source]), "slots": 0}.get(layout, int(first[source, me]))
                own *= layout != "sender" or count > 0
                kept.append(max(0, min(count, (7 if slots else 6 * size) - own)))
                begins.append(own + slots * source * room)
                used += kept[-1]
                block = rows_of(source, room, call)[first[source, me] :][: kept[-1]]
                expected[begins[-1] : begins[-1] + kept[-1]] = block
            compare(recv, expected, f"start {call}: rows")
            compare(got, np.array(kept), f"start {call}: counts")
            compare(begin, np.array(begins), f"start {call}: displs")
            compare(total, np.array([sum(kept)]), f"start {call}: total")
            compare(status, matrix[:, me] - kept, f"start {call}: status")
    request.Free()


def test_a_request_keeps_counts_and_outputs(comm):
    """Also those that the caller has let go of."""
    size = comm.size
    counts, status = put(np.full(size, 2)), xp.zeros(size, "i8")
    gone = [weakref.ref(counts), weakref.ref(status)]
    recv = Output((2 * size, WIDTH), "i8")
    send = put(rows_of(comm.rank, 2 * size))
    request = comm.Alltoallv_init([send, counts], recv.array, layout="packed", status=status)
    del counts, status
    assert_everywhere(comm, all(ref() is not None for ref in gone))
    request.Start()
    request.Wait()
    request.Free()
    assert all(ref() is None for ref in gone)
    mine = 2 * comm.rank
    with comparing() as compare:
        compare(recv, np.concatenate([rows_of(s, 2 * size)[mine : mine + 2] for s in range(size)]), "rows")


@gpu_only
@pytest.mark.skipif(bool(NODES), reason="over nodes the host reads the counts, which no graph can hold")
def test_there_and_back_in_a_graph(comm):
    """Two requests are captured; each replay reads other counts."""
    size, me, room = comm.size, comm.rank, 9 * comm.size
    stream, displs = xp.cuda.Stream(non_blocking=True), put(9 * np.arange(size))
    send, counts = xp.zeros((room, WIDTH), "i8"), xp.zeros(size, "i8")
    there, got, begin = xp.empty((room, WIDTH), "i8"), xp.empty(size, "i8"), xp.empty(size, "i8")
    back, returned = Output((room, WIDTH), "i8"), Output(size, "i8")
    requests = (
        comm.Alltoallv_init([send, (counts, displs)], [there, (got, begin)], layout="packed"),
        comm.Alltoallv_init([there, (got, begin)], [back.array, (returned.array, displs)], layout="placed"),
    )
    synchronize()
    with stream:
        stream.begin_capture()
        for request in requests:
            request.Start()
            request.Wait()
        graph = stream.end_capture()
    with comparing() as compare:
        for call in range(5):
            mine = some_counts(size, call)[me] * (call != 2)
            send.set(rows_of(me, room, call))
            counts.set(mine)
            back.poison()
            synchronize()
            graph.launch(stream)
            stream.synchronize()
            expected = np.full((room, WIDTH), POISONED)
            for to, count in enumerate(mine):
                expected[9 * to : 9 * to + count] = rows_of(me, room, call)[9 * to : 9 * to + count]
            compare(back, expected, f"replay {call}: rows")
            compare(returned, mine, f"replay {call}: counts")
    for request in requests:
        request.Free()

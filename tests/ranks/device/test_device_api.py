"""The device API: a program's own kernels, in C++ and in Numba, move data, signal, wait and meet."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
import pyncclx.device as d
from pyncclx.operators import ops
from support.arrays import Output, get, gpu_only, put, synchronize, xp
from support.device_api import SOURCE, WORLD, checked_team, i4, launch, one_communicator, row
from support.everywhere import assert_everywhere
from support.reference import contributions, fold

_path = Path(__file__).resolve().parents[3] / "examples" / "kernels" / "ping_pong.py"
_spec = importlib.util.spec_from_file_location("ping_pong", _path)
ping_pong = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(ping_pong)

WHO = {"thread": 0, "warp": 1, "block": 2}
STRIDE = 8192


@pytest.fixture
def team(comm):
    yield from checked_team(comm)


# ---- functions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", WHO)
def test_moves(comm, team, who):
    """To and from every rank, the own one too; lengths and addresses of all alignments."""
    inbox = comm.Alloc((comm.size, STRIDE), "u1")
    for number, (nbytes, offset, block) in enumerate([(5003, 0, 64), (37, 3, 40), (16, 4, 32), (1, 0, 1), (0, 8, 64)]):
        rows = put(np.stack([row(comm.rank, shift, STRIDE) for shift in range(comm.size)]))
        inbox[...] = 0xA5
        back, failed = xp.full((comm.size, STRIDE), 0xA5, "u1"), xp.zeros(1, "i4")
        synchronize()
        MPI.Comm.Barrier(comm)
        shifted = (inbox.reshape(-1)[offset:], rows.reshape(-1)[offset:], back.reshape(-1)[offset:])
        launch("moves", 2, block, team, *shifted, nbytes, STRIDE, i4(WHO[who]), failed)
        MPI.Comm.Barrier(comm)
        part = slice(offset, offset + nbytes)
        expected = np.full((2, comm.size, STRIDE), 0xA5, np.uint8)
        for other in range(comm.size):
            expected[0, other, part] = row(other, (comm.rank - other) % comm.size, STRIDE)[part]
            expected[1, other, part] = row(comm.rank, other, STRIDE)[part]
        right = np.array_equal(get(inbox), expected[0]) and np.array_equal(get(back), expected[1])
        assert_everywhere(comm, right and not get(failed)[0], f"call {number}: {nbytes} bytes at {offset}")


def check_ring(comm, inbox, run, nbytes=999, rounds=3, launches=2):
    """`run(rows, taken, failed, first)` sends some rows round the ring."""
    for first in range(0, rounds * launches, rounds):
        rows = put(np.stack([row(comm.rank, first + number, nbytes) for number in range(rounds)]))
        taken, failed = Output((rounds, nbytes), "u1"), xp.zeros(1, "i4")
        run(rows, taken.array, failed, first)
        previous = (comm.rank - 1) % comm.size
        expected = np.stack([row(previous, first + number, nbytes) for number in range(rounds)])
        right = np.array_equal(taken.read(), expected) and not get(failed)[0] and not taken.damage()
        assert_everywhere(comm, right, f"from {first} on")


@pytest.mark.parametrize("who", WHO)
def test_put_signal_and_wait_until(comm, team, who):
    inbox = comm.Alloc(999, "u1")
    tail = (i4(WHO[who]),)
    check_ring(
        comm,
        inbox,
        lambda rows, taken, failed, first: launch(
            "ring", 1, 64, team, inbox, rows, taken, 999, i4(3), i4(first), *tail, failed
        ),
    )


@pytest.mark.parametrize("who", WHO)
def test_packets_and_copies(comm, team, who):
    """A turn follows the other without a barrier: who has all messages of one may overwrite those of the last."""
    size, rounds = comm.size, 4
    for nbytes in (8, 333):
        slots = comm.Alloc(2 * size * (nbytes + 15) // 16 * 32 + 64 * size, "u1")
        for first in (0, rounds):
            numbers = [[first * size + turn * size + rank for rank in range(size)] for turn in range(rounds)]
            rows = np.stack([[row(comm.rank, number, nbytes) for number in turn] for turn in numbers])
            taken, copied = Output(rows.shape, "u1"), Output(rows.shape, "u1", offset=3)
            failed = xp.zeros(1, "i4")
            how = (nbytes, i4(rounds), i4(first), i4(WHO[who]))
            launch("packets", 1, 64, team, slots, put(rows), taken.array, copied.array, *how, failed)
            expected = np.stack([[row(s, turn[comm.rank], nbytes) for s in range(size)] for turn in numbers])
            right = np.array_equal(taken.read(), expected) and np.array_equal(copied.read(), expected)
            right &= not taken.damage() and not copied.damage() and not get(failed)[0]
            assert_everywhere(comm, right, f"{nbytes} bytes from {first} on")


@pytest.mark.parametrize("nbytes", [1, 24, 1003])
def test_block_collectives(comm, team, nbytes):
    """Gathered and exchanged by each of several blocks, in place of what was there a round ago."""
    size, grid, rounds = comm.size, 3, 3
    pieces = [row(rank, 50, rounds * grid * size * nbytes).reshape(rounds, grid, size, nbytes) for rank in range(size)]
    gathered, exchanged = (comm.Alloc((grid, size, nbytes), "u1") for _ in range(2))
    copies, failed = Output((rounds, grid, 2, size, nbytes), "u1"), xp.zeros(1, "i4")
    rows = put(pieces[comm.rank])
    launch("block_collectives", grid, 48, team, gathered, exchanged, rows, nbytes, copies.array, i4(rounds), failed)
    expected = np.empty(copies.array.shape, "u1")
    for source in range(size):
        expected[:, :, 0, source] = pieces[source][:, :, 0]
        expected[:, :, 1, source] = pieces[source][:, :, comm.rank]
    right = np.array_equal(copies.read(), expected) and not copies.damage() and not get(failed)[0]
    assert_everywhere(comm, right, f"{nbytes} bytes")


@pytest.mark.parametrize("count", [1, 7, 333])
def test_block_sums(comm, team, count):
    """Bit by bit those of Allreduce, though summed in place, and again."""
    arrays = {name: comm.Alloc((2, count), name) for name in ("float32", "float64", "int32", "int64")}
    vectors = {name: contributions(comm.size, 2 * count, name) for name in arrays}
    for name, array in arrays.items():
        array[...] = put(vectors[name][comm.rank].reshape(2, count))
    failed = xp.zeros(1, "i4")
    synchronize()
    MPI.Comm.Barrier(comm)
    launch("block_sums", 2, 64, team, *arrays.values(), count, failed)
    wrong = [name for name, array in arrays.items() if not np.array_equal(get(array).reshape(-1), twice(vectors[name]))]
    assert_everywhere(comm, not wrong and not get(failed)[0], f"{wrong}")


def twice(vectors):
    """Summed over the ranks, plus one, summed again, plus one."""
    with np.errstate(all="ignore"):
        once = fold(ops.SUM, vectors) + vectors[0].dtype.type(1)
        return fold(ops.SUM, [once] * len(vectors)) + vectors[0].dtype.type(1)


@one_communicator
def test_atomics_and_adding_signals(comm, team):
    grid, block = 2, 8
    words, drawn = comm.Alloc(3, "u8"), xp.zeros((4, grid * block), "u8")
    total, signal = comm.size * grid * block, xp.zeros(grid * block, "u8")
    launch("tickets", grid, block, team, words, drawn, signal)
    everywhere = np.stack(MPI.Comm.allgather(comm, get(drawn)))
    for kind, name in enumerate(("add_u64", "add_u32", "cas_u32", "cas_u64")):
        assert np.array_equal(np.sort(everywhere[:, kind].reshape(-1)), np.arange(total)), name
    assert np.array_equal(get(signal), np.full(grid * block, total))
    assert int(get(team.signal_words)[2]) == total
    if comm.rank == 0:
        assert get(words).view("u4").tolist() == [total, 0, total, total, total, 0]


@one_communicator
def test_blocks_of_a_grid(comm, team):
    grid, rounds = 5, 3
    values, seen = xp.zeros((rounds, grid), "i4"), xp.zeros((rounds, grid, grid), "i4")
    for _ in range(2):
        sums, lasts = xp.zeros(rounds, "i4"), xp.zeros(rounds, "i4")
        values[...] = seen[...] = 0
        launch("blocks", grid, 32, team, values, sums, lasts, seen, i4(rounds))
        expected = np.outer(np.arange(1, rounds + 1), np.arange(1, grid + 1))
        assert get(lasts).tolist() == [1] * rounds
        assert np.array_equal(get(sums), expected.sum(axis=1))
        assert np.array_equal(get(seen), np.repeat(expected[:, None], grid, axis=1))


@one_communicator
def test_barrier_among_some(comm, team):
    board, seen = comm.Alloc((3, 16), "i4"), xp.zeros((3, 32), "i4")
    synchronize()
    MPI.Comm.Barrier(comm)
    launch("parities", 3, 32, team, board, seen, i4(4))
    assert (get(seen) == 1).all()


@one_communicator
def test_fence_and_quiet(comm, team):
    words, taken = comm.Alloc(2, "u8"), xp.zeros(1, "u8")
    launch("fenced", 1, 1, team, words, taken)
    assert get(taken).tolist() == [(comm.rank - 1) % comm.size + 1000]


@one_communicator
def test_windows_of_later(comm, team):
    """Kernels reach arrays that were allocated after their team was made."""
    comm.Alloc(7, "u1")
    inbox = comm.Alloc(10 + 10 * comm.rank, "u1")  # as long as need be, not alike
    taken, failed = xp.zeros(10, "u1"), xp.zeros(1, "i4")
    launch("ring", 1, 32, team, inbox, put(row(comm.rank, 0, 10)), taken, 10, i4(1), i4(0), i4(2), failed)
    assert get(failed).tolist() == [0]
    assert np.array_equal(get(inbox)[:10], row((comm.rank - 1) % comm.size, 0, 10))


def test_a_team_knows_its_communicator(comm, team):
    out = xp.zeros(5, "i4")
    launch("describe", 1, 32, team, out)
    assert get(out).tolist() == [comm.rank, comm.size, 1, 1, 1]
    assert (team.rank, team.size) == (comm.rank, comm.size)


# ---- other ways to write and launch them ---------------------------------------------------------------


@one_communicator
def test_text_and_numbers(comm):
    """A kernel from a text, with parameters of all sizes, in a C++ template."""
    text = """
    template <class T>
    __global__ void fill(T* out, T a, double b, float c, long long d, unsigned char e, bool f, unsigned long long g) {
        out[blockIdx.x * blockDim.x + threadIdx.x] = a + T(b) + T(c) + T(d) + T(e) + T(f) + T(g >> 60);
    }
    """
    out = Output(64, "i2")
    values = (np.int16(-3), 2.0, np.float32(4), -(1 << 40) + 5, np.uint8(200), np.bool_(True), 0xF << 60)
    d.kernel(text, "fill<short>")(2, 32, [out.array, *values])
    assert out.read().tolist() == [-3 + 2 + 4 + 5 + 200 + 1 + 15] * 64
    assert not out.damage()
    if comm.rank == 0:  # no meeting
        with pytest.raises(RuntimeError, match="nonsense"):
            d.kernel("\nnonsense", "fill")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("language", ["C++", pytest.param("Python", marks=gpu_only)])
def test_ping_pong(language):
    """The example, between the first two ranks; it checks what comes back."""
    if language == "Python":
        pytest.importorskip("numba.cuda", reason="kernels written in Python need Numba")
    pair = WORLD.Split(0 if WORLD.rank < 2 else MPI.UNDEFINED)
    if pair == MPI.COMM_NULL:
        return
    kernels = ping_pong.kernels_in_cxx() if language == "C++" else ping_pong.kernels_in_python()
    with pyncclx.Communicator(pair) as comm:
        game = ping_pong.PingPong(comm, kernels, 5000)
        for nbytes, blocks in ((8, 1), (4999, 3), (100, 1), (300, 3)):
            assert game.seconds(nbytes, blocks, 32, 2) > 0


@gpu_only
@one_communicator
def test_raw_module(comm, team):
    options = ("-std=c++17", f"-I{pyncclx.include_path()}")
    kernel = xp.RawModule(code=SOURCE.read_text(), options=options).get_function("ring")
    inbox = comm.Alloc(999, "u1")

    def run(rows, taken, failed, first):
        numbers = 999, i4(3), i4(first), i4(2)
        kernel((1,), (64,), (team.pointer, inbox, rows, taken, *numbers, failed))

    check_ring(comm, inbox, run)


@gpu_only
@one_communicator
def test_numba(comm, team):
    cuda = pytest.importorskip("numba.cuda", reason="kernels written in Python need Numba")
    from support.device_kernels import everything, ring  # noqa: PLC0415

    inbox, compiled = comm.Alloc(999, "u1"), cuda.jit(ring)

    def run(rows, taken, failed, first):
        views = [cuda.as_cuda_array(array, sync=False) for array in (inbox, rows, taken, failed)]
        compiled[1, 64](team.pointer, *views, 3, first)

    check_ring(comm, inbox, run)
    words, source, results = comm.Alloc(128, "u8"), comm.Alloc(64, "u8"), xp.full(40, -1, "i8")
    source[...] = put(np.arange(64, dtype="u8"))
    synchronize()
    MPI.Comm.Barrier(comm)
    views = [cuda.as_cuda_array(array, sync=False) for array in (words, source, results)]
    cuda.jit(everything)[1, 64](comm.device_team().pointer, *views)
    assert [int(number) for number in get(results) if number != 1] == []

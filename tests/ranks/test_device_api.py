"""The device API: a program's own kernels, in C++ and in Numba, move data, signal, wait and meet."""

import functools
import importlib.util
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
import pyncclx.device as d
from arrays import Output, get, gpu_only, put, synchronize, xp
from everywhere import assert_everywhere, raises_everywhere
from pyncclx import Aborted, PeerTimeout, ops
from reference import contributions, fold

_path = Path(__file__).resolve().parents[2] / "examples" / "ping_pong.py"
_spec = importlib.util.spec_from_file_location("ping_pong", _path)
ping_pong = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(ping_pong)

WORLD = MPI.COMM_WORLD
SOURCE = Path(__file__).with_name("device_api.cu")
WHO = {"thread": 0, "warp": 1, "block": 2}
MEET = """
#include "pyncclx.cuh"
extern "C" __global__ void meet(pyncclx_team team, int first) {
    if (blockIdx.x >= first) pyncclx_grid_barrier(team, 5);
}
"""
TIMEOUT = 0.5 if WORLD.size <= 4 else 1.0
STRIDE = 8192

one_communicator = pytest.mark.parametrize("comm", ["reversed" if WORLD.size > 1 else "dup"], indirect=True)


@functools.cache
def kernels():
    """All of the file, by name."""
    return d.kernels(SOURCE, *re.findall(r"__global__ void (\w+)", SOURCE.read_text()))


def launch(name, grid, block, *args):
    """Run a kernel and wait for it."""
    kernels()[name](grid, block, args)
    synchronize()


def i4(value):
    return np.int32(value)


def row(rank, number, nbytes):
    """Bytes that tell whose they are."""
    return np.random.default_rng([rank, number, 7]).integers(0, 256, nbytes, np.uint8)


@pytest.fixture
def team(comm):
    made = comm.device_team()
    yield made
    synchronize()
    MPI.Comm.Barrier(comm)
    made.check()


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
    everybody = np.stack(MPI.Comm.allgather(comm, get(drawn)))
    for kind, name in enumerate(("add_u64", "add_u32", "cas_u32", "cas_u64")):
        assert np.array_equal(np.sort(everybody[:, kind].reshape(-1)), np.arange(total)), name
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


def test_a_team_knows_its_communicator(comm, team):
    out = xp.zeros(5, "i4")
    launch("describe", 1, 32, team, out)
    assert get(out).tolist() == [comm.rank, comm.size, 1, 1, 1]
    assert (team.rank, team.size) == (comm.rank, comm.size)


# ---- who is wrong is told ------------------------------------------------------------------------------

MISUSES = {
    0: r"pyncclx_put, called by a kernel: peer \d+ is no rank of the \d+ there are",
    1: "pyncclx_signal_set, .*: peer -1 is no rank",
    2: r"pyncclx_signal_add, .*: signal 1000 of 64; .*signals=",
    3: r"pyncclx_last_block, .*: counter 99 of 8; .*counters=",
    4: "pyncclx_put, .*: 8 bytes at 0x[0-9a-f]+ are not in an array",
    5: r"pyncclx_get, .*: \d+ bytes at .* are not in an array",
    6: "pyncclx_atomic_add, .*: the word at .* multiple of its 8 bytes",
    7: r"pyncclx_expect_size, .*: the kernel is made for \d+ ranks",
    8: "pyncclx_wait_until, .*: signal 64 of 64",
}


@one_communicator
def test_wrong_arguments_are_told_once(comm, team):
    inbox = comm.Alloc(4096, "u1")
    for which, text in MISUSES.items():
        result = xp.full(1, -1, "i4")
        launch("misuse", 1, 32, team, inbox, 4096, i4(which), result)
        with raises_everywhere(comm, ValueError, match=text):
            team.check()
        assert_everywhere(comm, int(get(result)[0]) == 0, f"{which} returned {get(result)}")
    array = put(np.ones(3, "f4"))
    comm.Allreduce(MPI.IN_PLACE, array)  # the communicator goes on
    assert get(array).tolist() == [comm.size] * 3


@one_communicator
def test_a_grid_that_is_too_large(comm):
    small, out = comm.device_team(signals=1, blocks=2), xp.zeros(5, "i4")
    with raises_everywhere(comm, ValueError, match=r"a grid of 3 blocks, the team was made for 2; .*blocks="):
        launch("describe", 3, 32, small, out)
    launch("describe", 3, 32, small.pointer, out)  # nobody on the host knows what the number is
    with raises_everywhere(comm, ValueError, match="pyncclx_barrier, .*: a grid of 3 blocks, the team was made for 2"):
        small.check()
    launch("describe", 2, 32, small, out)
    small.check()


@one_communicator
def test_a_grid_that_the_gpu_cannot_run_at_once(comm, monkeypatch):
    kernel = kernels()["describe"]
    monkeypatch.setattr(kernel._device, "most_blocks", lambda function, block: 20)
    with raises_everywhere(comm, ValueError, match="a grid of 30 blocks of 64 threads, the GPU can run 20 at once"):
        kernel(30, 64, [comm.device_team(), xp.zeros(5, "i4")])


@one_communicator
def test_wrong_numbers(comm):
    for wrong in ({"signals": -1}, {"blocks": 4 + comm.rank if comm.size > 1 else -1}):
        with raises_everywhere(comm, ValueError, match="device_team: signals, blocks and counters are the same"):
            comm.device_team(**wrong)
    with raises_everywhere(comm, TypeError):
        kernels()["describe"](1, 32, [comm.device_team(), "no array"])


@one_communicator
def test_windows_of_later(comm, team):
    """A team knows of arrays that were allocated after it was made."""
    comm.Alloc(7, "u1")
    inbox = comm.Alloc(10 + 10 * comm.rank, "u1")  # as long as need be, not alike
    taken, failed = xp.zeros(10, "u1"), xp.zeros(1, "i4")
    launch("ring", 1, 32, team, inbox, put(row(comm.rank, 0, 10)), taken, 10, i4(1), i4(0), i4(2), failed)
    assert get(failed).tolist() == [0]
    assert np.array_equal(get(inbox)[:10], row((comm.rank - 1) % comm.size, 0, 10))


def test_a_team_after_free():
    comm = pyncclx.Communicator().Dup()
    team, out = comm.device_team(), xp.full(5, -1, "i4")
    kernel, address = kernels()["describe"], team.pointer
    held = comm.memory_report()["device teams"]
    assert held >= 64 * 128 * 2
    comm.Free()
    for use in (lambda: team.pointer, team.check, lambda: team.signal_words, lambda: kernel(1, 32, [team, out])):
        with raises_everywhere(WORLD, MPI.Exception, match="device_team: its communicator has been freed"):
            use()
    kernel(1, 32, [address, out])  # too late: it finds no team
    assert get(out).tolist() == [0, 0, 0, 0, 0]
    assert "freed" in repr(team)


@pytest.fixture
def brief(monkeypatch):
    """A communicator whose kernels do not wait long."""
    monkeypatch.setenv("PYNCCLX_TIMEOUT", str(TIMEOUT))
    comm = pyncclx.Communicator().Dup()
    yield comm
    comm.Free()


def test_a_signal_that_never_comes(brief):
    team, result = brief.device_team(), xp.full(1, -1, "i4")
    launch("wait", 1, 64, team, i4(0), result)
    for look in (team.check, lambda: brief.team):
        with raises_everywhere(brief, PeerTimeout, match=r"wait_until \(signal 3\): .* for any rank .*signal 7"):
            look()
    assert get(result).tolist() == [0]


@pytest.mark.ranks(2)
def test_a_rank_that_does_not_come_to_the_barrier(brief):
    team, result, away = brief.device_team(), xp.full(1, -1, "i4"), brief.size - 1
    if brief.rank != away:
        launch("wait", 1, 64, team, i4(1), result)
        with pytest.raises(PeerTimeout) as raised:
            team.check()
        assert (raised.value.operation, raised.value.peer) == ("pyncclx_barrier (block 0)", away)
        assert get(result).tolist() == [0]
    WORLD.Barrier()


too_many = pytest.param(20_000, 1024, 0, r"\d+ of 20000", marks=gpu_only)


@pytest.mark.parametrize(("grid", "block", "first", "come"), [(3, 32, 1, "2 of 3"), too_many])
def test_a_grid_barrier_to_which_blocks_do_not_come(brief, grid, block, first, come):
    """One has left, or the GPU cannot run all; the host has seen a number, no team, and could not refuse."""
    team = brief.device_team()
    d.kernel(MEET, "meet")(grid, block, [team.pointer, i4(first)])
    with raises_everywhere(brief, PeerTimeout, match=rf"grid_barrier \(counter 5\): .* own grid, {come} had come"):
        team.check()


def test_abort():
    comm = pyncclx.Communicator().Dup()
    team, result = comm.device_team(), xp.full(1, -1, "i4")
    kernel = kernels()["wait"]
    timer = threading.Timer(0.2, comm.team.abort)
    timer.start()
    kernel(1, 32, [team, i4(0), result])
    synchronize()
    timer.join()
    with raises_everywhere(comm, Aborted, match=r"pyncclx_wait_until \(signal 3\), called by a kernel"):
        team.check()
    comm.Free()


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
    from device_kernels import everything, ring  # noqa: PLC0415

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

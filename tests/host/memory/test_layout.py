"""pyncclx/memory and cuda/protocol/layout.cuh agree: C++ reads what Python packs, and prints it."""

import itertools
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyncclx.collectives import transports
from pyncclx.failures import kernel_errors
from pyncclx.failures.kernel_errors import ABORTED, MISMATCH, TIMED_OUT, ErrorWords
from pyncclx.launch.call import MOST_EARLY_THREADS
from pyncclx.memory import called, layout, parameters
from pyncclx.memory.cstruct import offsets_of
from pyncclx.memory.parameters import AlltoallvArgs, BufferLocations, MoveArgs, ReduceArgs, TeamStruct
from pyncclx.system import paths
from support.lease import LANES

PROGRAM = r"""
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "protocol/layout.cuh"

static void print(const Team& t) {
    printf("team %d %d %u %u %u %u %u %u %llu %llu %llu %llu %llu", t.rank, t.size, t.operation, t.channels,
           t.slot_packets, t.chunk_nbytes, t.slot_rows, t.early, t.lines_offset, t.packets_offset, t.rings_offset,
           t.timeout_ns, u64(t.watch));
    printf(" %llu", u64(t.windows));
    for (char* base : t.base) printf(" %llu", u64(base));
    for (const Place& place : {t.send, t.recv}) printf(" %llu %llu", place.window, u64(place.begin));
    for (u64 word : t.called.words) printf(" %llu", word);
    printf("\n");
}

template <class Args>
static Args take() {  // the next bytes of the input, which must be the whole structure
    static_assert(sizeof(Args) % 8 == 0, "no padding at the end that Python would not pack");
    Args args;
    if (fread(&args, 1, sizeof args, stdin) != sizeof args) printf("too few bytes\n");
    print(args.team);
    return args;
}

template <class Args>
static void print_vector() {
    const Args a = take<Args>();
    printf("args %llu %llu %llu %d\n", u64(a.send), u64(a.recv), a.nbytes, a.root);
}

int main() {
    printf("constants %d %d %u %u %u", kMaxRanks, kRings, kDepth, kLanes, kPackNbytes);
    printf(" %zu %zu %zu", sizeof(LeaseHeader), offsetof(LeaseHeader, overflow), offsetof(LeaseHeader, recorded_late));
    printf(" %u %zu", kCalls, sizeof(CallRecord));
    printf(" %zu %zu", sizeof(ChannelControl), offsetof(ChannelControl, finished));
    printf(" %zu", offsetof(ChannelControl, entered));
    printf(" %u %u %llu %llu\n", kMostEarlyThreads, kPacketsNbytes, kStraightNbytes, kLinesNbytes);
    printf("Watch");
    const size_t words[] = {offsetof(Watch, abort), offsetof(Watch, failure), offsetof(Watch, operation),
                            offsetof(Watch, epoch), offsetof(Watch, channel), offsetof(Watch, peer),
                            offsetof(Watch, expected), offsetof(Watch, seen), offsetof(Watch, overflow),
                            offsetof(Watch, source), offsetof(Watch, wanted), offsetof(Watch, capacity)};
    for (size_t offset : words) printf(" %zu", offset / 8);
    printf("\nsizes %zu %zu\n", sizeof(Called), sizeof(Watch));
    printf("failures %llu %llu %llu overflows %llu %llu\n", u64(kTimedOut), u64(kAborted), u64(kMismatch),
           u64(kBadCounts), u64(kTruncated));
    printf("placements %d %d %d %d %d\n", kPacked, kSlots, kFixed, kSender, kPlaced);
    print_vector<ReduceArgs>();
    print_vector<MoveArgs>();
    const AlltoallvArgs a = take<AlltoallvArgs>();
    printf("args %llu %llu %lld %lld %lld %lld", u64(a.send), u64(a.recv), a.row_nbytes, a.send_rows, a.capacity,
           a.slot_rows);
    for (const void* p : {(const void*)a.send_counts, (const void*)a.send_displs, (const void*)a.recv_counts,
                          (const void*)a.recv_displs, (const void*)a.total, (const void*)a.status})
        printf(" %llu", u64(p));
    printf(" %d %d", a.placement, a.drop);
    for (const auto& row : a.fixed)
        for (i64 value : row) printf(" %lld", value);
    printf("\n");
    printf("left over %d\n", getchar() != EOF);
}
"""

LEAST, MOST = 64 << 10, 64 << 20  # bytes of a lease
RANKS = range(1, layout.MAX_RANKS + 1)


def sizes() -> Iterator[int]:
    """Lease sizes, dense where they are small, and not all of them round."""
    nbytes = LEAST
    while nbytes <= MOST:
        yield from (nbytes, nbytes + 8, nbytes + 4096 - 16)
        nbytes += max(4096, nbytes // 64 // 16 * 16)


def run(folder: Path, data: bytes) -> dict[str, list[list[str]]]:
    """What the program prints of `data`: the words of each line, by its first word."""
    source, program = folder / "layout.cpp", folder / "layout"
    source.write_text(PROGRAM)
    command = [
        "g++",
        "-std=c++17",
        "-DPYNCCLX_HOST",
        "-pthread",
        f"-I{paths.CUDA_DIR}",
        str(source),
        "-o",
        str(program),
    ]
    subprocess.run(command, check=True, timeout=100)
    lines = subprocess.run([str(program)], input=data, capture_output=True, check=True, timeout=100).stdout.decode()
    printed: dict[str, list[list[str]]] = {}
    for first, *words in map(str.split, lines.splitlines()):
        printed.setdefault(first, []).append(words)
    return printed


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles a program")
def test_kernels_read_what_python_packs(tmp_path):
    number = itertools.count(1 << 40)
    chosen = layout.plan(1 << 20, 7, 4)
    bases = [next(number) for _ in range(7)]
    places = [next(number) for _ in range(4)]
    timeout_ns, watch, windows = (next(number) for _ in range(3))
    team = TeamStruct.of(
        chosen, rank=3, operation=5, timeout_ns=timeout_ns, watch=watch, windows=windows, base=bases, early=True
    )
    call = called.pack_call("Allreduce(100, float32, SUM)")
    packed = team.pack() + BufferLocations(**dict(zip(offsets_of(BufferLocations), places, strict=True))).pack() + call
    vector = [[next(number), next(number), next(number), 6] for _ in range(2)]
    numbers_of = [[-next(number) for _ in range(7)] for _ in range(4)]
    single = [next(number) for _ in range(12)] + [2, 1]
    rows = single + [value for row in numbers_of for value in (*row, *[0] * (layout.MAX_RANKS - 7))]
    reduce, move = (
        each(**dict(zip(offsets_of(each), values, strict=True))).pack()
        for each, values in zip((ReduceArgs, MoveArgs), vector, strict=True)
    )
    alltoallv = AlltoallvArgs(**dict(zip(offsets_of(AlltoallvArgs), (*single, *numbers_of), strict=True)))
    assert alltoallv.numbers() == single
    printed = run(tmp_path, packed + reduce + packed + move + packed + alltoallv.pack())

    numbers = (3, 7, 5, chosen.channels, chosen.slot_packets, chosen.chunk_nbytes, chosen.slot_rows, 1)
    numbers += (chosen.lines_offset, chosen.packets_offset, chosen.rings_offset)
    numbers += (places[-1] + 1, places[-1] + 2, places[-1] + 3)
    numbers += (*bases, *[0] * (layout.MAX_RANKS - 7), *places, *struct.unpack("=8Q", call))
    assert printed["team"] == [[str(value) for value in numbers]] * 3
    assert printed["args"] == [[str(value) for value in args] for args in (*vector, rows)]
    assert printed["left"] == [["over", "0"]]

    constants = (
        layout.MAX_RANKS,
        layout.RINGS,
        layout.DEPTH,
        LANES,
        layout.PACK_NBYTES,
        layout.HEADER_NBYTES,
        layout.LEASE_OVERFLOW_OFFSET,
        layout.RECORDED_LATE_OFFSET,
        layout.CALLS,
        layout.CALLS_NBYTES,
        layout.CHANNEL_NBYTES,
        0,
        layout.ENTERED_OFFSET,
        MOST_EARLY_THREADS,
        transports.PACKETS_NBYTES,
        transports.STRAIGHT_NBYTES,
        transports.LINES_NBYTES,
    )
    assert printed["constants"] == [[str(value) for value in constants]]
    assert printed["Watch"] == [[str(index) for index in range(len(ErrorWords._fields))]]
    assert printed["sizes"] == [[str(called.NBYTES), str(kernel_errors.WORDS_NBYTES)]]
    failures, overflows = (TIMED_OUT, ABORTED, MISMATCH), (kernel_errors.BAD_COUNTS, kernel_errors.TRUNCATED)
    records = [*failures, "overflows", *overflows]
    assert printed["failures"] == [[str(value) for value in records]]
    placements = (parameters.PACKED, parameters.SLOTS, parameters.FIXED, parameters.SENDER, parameters.PLACED)
    assert printed["placements"] == [[str(value) for value in placements]]


@pytest.mark.parametrize("max_channels", [1, 2, 32, 64])
@pytest.mark.parametrize("ranks", RANKS)
def test_a_plan_fits_and_is_aligned(ranks, max_channels):
    for nbytes in sizes():
        plan = layout.plan(nbytes, ranks, max_channels)
        where = f"{nbytes} bytes: {plan}"
        assert plan.end <= nbytes, where
        assert 1 <= plan.channels <= max_channels, where
        assert plan.slot_packets >= layout.FEWEST_PACKETS, where
        assert plan.slot_packets % 2 == 0, where  # two packets make a Pack
        assert plan.chunk_nbytes > 0, where
        assert plan.chunk_nbytes % 128 == 0, where
        assert plan.lines_offset % 128 == 0, where
        assert plan.packets_offset % 128 == 0, where
        assert plan.rings_offset % layout.PACK_NBYTES == 0, where


@pytest.mark.parametrize("ranks", RANKS)
def test_a_larger_lease_is_no_worse(ranks):
    last = layout.plan(LEAST, ranks, 64)
    for nbytes in sorted(sizes()):
        plan = layout.plan(nbytes, ranks, 64)
        assert plan.channels >= last.channels, (nbytes, plan, last)
        if plan.channels == last.channels:
            assert plan.slot_packets >= last.slot_packets, (nbytes, plan, last)
            assert plan.chunk_nbytes >= last.chunk_nbytes, (nbytes, plan, last)
        last = plan


@pytest.mark.parametrize("ranks", RANKS)
def test_a_lease_is_used(ranks):
    """Rounding costs less than a tenth of a lease of 1 MiB."""
    plan = layout.plan(1 << 20, ranks, 64)
    assert plan.end > 0.9 * (1 << 20)


@pytest.mark.parametrize("ranks", RANKS)
def test_without_lines_all_is_for_packets_and_chunks(ranks):
    with_lines, without = (layout.plan(1 << 20, ranks, 64, lines) for lines in (True, False))
    assert with_lines.line_nbytes >= layout.ROW_PAYLOAD_NBYTES
    assert without.line_nbytes == without.slot_rows == 0
    assert without.chunk_nbytes > with_lines.chunk_nbytes or without.channels > with_lines.channels
    assert without.packets_offset == without.lines_offset


@pytest.mark.parametrize("ranks", range(2, 6))
def test_the_smallest_lease_does_without_lines(ranks):
    plan = layout.plan(4096, ranks, 64)
    assert plan.chunk_nbytes >= 128
    assert plan.end <= 4096


@pytest.mark.parametrize("ranks", RANKS)
def test_the_shortest_lease(ranks):
    """One that is shorter by less than what its parts are rounded to has no room."""
    least = layout.least_nbytes(ranks)
    assert layout.plan(least, ranks, 64).end <= least
    with pytest.raises(ValueError, match=f"too small for {ranks} ranks"):
        layout.plan(least - 128 * max(ranks - 1, 1), ranks, 64)


def test_a_lease_can_be_too_small():
    with pytest.raises(ValueError, match="a lease of 1024 bytes is too small for 8 ranks"):
        layout.plan(1024, 8, 64)

"""Kernels for short messages get none that is longer than packets and lines can carry."""

from dataclasses import replace

import pytest

from pyncclx.collectives import allgather, bcast, rooted
from pyncclx.collectives.transports import LINES_NBYTES, STRAIGHT_NBYTES
from pyncclx.memory import layout
from pyncclx.memory.layout import PACK_NBYTES

SHORT = {
    "allgather": (allgather.CHOOSE["Allgather"], True),
    "gather": (rooted.CHOOSE["Gather"], False),
    "bcast_direct": (bcast.choose, False),
}
LENGTHS = sorted({max(0, (odd << shift) + off) for odd in (1, 3, 5) for shift in range(26) for off in (-1, 0, 1, 15)})


def longest_part(nbytes, grid):
    """Bytes of the longest part that a block moves: Part of cuda/protocol/vector.cuh."""
    packs = -(-nbytes // PACK_NBYTES)
    return min(nbytes, -(-packs // grid) * PACK_NBYTES)


def longest_short(planned, both_ways):
    """The longest span that is not long: SpanWaysOf of cuda/exchange/span_ways.cuh."""
    most = (STRAIGHT_NBYTES if planned.windows else LINES_NBYTES) if both_ways else planned.line_nbytes
    return max(planned.slot_nbytes, min(planned.line_nbytes, most))


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("has_lines", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("kib", [512, 2 << 10, 96 << 10])
def test_short_messages_fit(kib, size, has_lines, windows):
    try:
        planned = replace(layout.plan(kib << 10, size, 64, has_lines), windows=windows)
    except ValueError:
        pytest.skip("so many ranks need a larger heap")
    for kernel, (choose, both_ways) in SHORT.items():
        most = longest_short(planned, both_ways)
        full = (part * planned.channels + off for part in (most, planned.slot_nbytes) for off in (-1, 0, 1))
        for nbytes in (*LENGTHS, *full):
            choice = choose(planned, nbytes)
            if choice.kernel == kernel:
                part = longest_part(nbytes, choice.grid)
                assert part <= most, f"{kernel}: a part of {part} of {nbytes} bytes, at most {most}; {choice}"
            else:
                assert choice.kernel.startswith(kernel.split("_")[0])
        assert choose(planned, 1).kernel == kernel

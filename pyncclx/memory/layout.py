"""What lies where in a lease (twin of cuda/protocol/layout.cuh)."""

from __future__ import annotations

from dataclasses import dataclass

from ..tuning import Limits

MAX_RANKS = 16
RINGS = 2
PACK_NBYTES = 16  # one Pack; also one packet on the wire, which carries half of it
HEADER_NBYTES = 128  # sizeof(LeaseHeader)
CALLS, CALLS_NBYTES = 4, 256  # kCalls, sizeof(CallRecord)
LEASE_OVERFLOW_OFFSET = 4  # LeaseHeader::overflow, a 32-bit word
CHANNEL_NBYTES = 768  # sizeof(ChannelControl), whose first word is `finished`
ENTERED_OFFSET = 16  # ChannelControl::entered
DEPTH = 2  # chunks of one ring
LANES = 2  # of a chain
HEADER_PACKETS = 2  # kHeader of cuda/exchange/span_ways.cuh
FEWEST_PACKETS = HEADER_PACKETS + 2  # of a slot
_CHUNK_UNIT = 128  # bytes of which a chunk is a multiple
ROW_NBYTES, ROW_PAYLOAD_NBYTES = 512, 480  # of a row of lines, which a warp sends at once

# A lease gives channels up rather than have shorter chunks than this. Not measured.
SMALLEST_CHUNK_NBYTES = 1 << 10
# Of a ring, divided among the peers. On 4 H200 (22 November 2026), Gather of 128 MB took 314 us with 28 KiB and 281
# with these, Allreduce 734 and 680; in longer rings Reduce_scatter_block is slower (design_notes.md,
# "The heap is 96 MiB").
MOST_CHUNK_NBYTES = 84 << 10
# Of a channel's slots, divided among the peers: where messages are longer, chunks are faster (same place).
MOST_PACKETS = 2 * (17 << 10) // PACK_NBYTES


@dataclass(frozen=True, slots=True)
class Layout:
    """Inner layout of a lease of `nbytes` bytes for a communicator of `size` ranks."""

    nbytes: int
    size: int
    channels: int
    slot_packets: int  # packets of one slot: 8 bytes of payload each
    chunk_nbytes: int
    limits: Limits = ()  # the measured lengths up to which kernels are chosen
    slot_rows: int = 0  # rows of lines of one slot; 0: no lines between these ranks
    windows: bool = False  # whether the communicator has some
    sharing: int = 1  # ranks of one GPU: their blocks wait for each other, so all of them must be on it at once

    @property
    def peers(self) -> int:
        """How many ranks have slots and rings in a lease: all but its owner."""
        return max(self.size - 1, 1)

    @property
    def lines_offset(self) -> int:
        return HEADER_NBYTES + CALLS_NBYTES + self.channels * CHANNEL_NBYTES

    @property
    def packets_offset(self) -> int:
        return self.lines_offset + self.channels * 2 * self.peers * self.slot_rows * ROW_NBYTES

    @property
    def rings_offset(self) -> int:
        return self.packets_offset + self.channels * 2 * self.peers * self.slot_packets * PACK_NBYTES

    @property
    def end(self) -> int:
        return self.rings_offset + RINGS * self.channels * self.peers * DEPTH * self.chunk_nbytes

    @property
    def slot_nbytes(self) -> int:
        """Payload that one channel can send to one peer as packets; the first of them are headers."""
        return (self.slot_packets - HEADER_PACKETS) * PACK_NBYTES // 2

    @property
    def line_nbytes(self) -> int:
        """Payload that one channel can send to one peer as lines."""
        return self.slot_rows * ROW_PAYLOAD_NBYTES

    @property
    def packet_nbytes(self) -> int:
        """The longest message to one peer that can go as packets, all channels together."""
        return self.slot_nbytes * self.channels


def least_nbytes(size: int) -> int:
    """Return the length of the shortest lease for which `plan` finds a layout."""
    peers = max(size - 1, 1)
    for_packets = 4 * FEWEST_PACKETS * PACK_NBYTES * 2 * peers  # which get a quarter of the room
    for_chunks = RINGS * DEPTH * _CHUNK_UNIT * peers
    room = max(for_packets, -(-for_chunks * 4 // 3))
    return HEADER_NBYTES + CALLS_NBYTES + CHANNEL_NBYTES + room


def plan(nbytes: int, size: int, max_channels: int, lines: bool = True) -> Layout:
    """Divide a lease among packets, chunks and `lines`, into as many channels as leave the chunks long.

    A lease that is too small for all has no lines.

    Raises
    ------
    ValueError
        If not even one channel fits.
    """
    channels = max_channels
    while channels >= 1:
        layout = _divide(nbytes, size, channels, lines)
        is_long = layout.chunk_nbytes >= SMALLEST_CHUNK_NBYTES or (channels == 1 and layout.chunk_nbytes > 0)
        if is_long and layout.slot_packets >= FEWEST_PACKETS:
            return layout
        channels //= 2
    if lines:
        return plan(nbytes, size, max_channels, lines=False)
    raise ValueError(f"a lease of {nbytes} bytes is too small for {size} ranks")


def _divide(nbytes: int, size: int, channels: int, lines: bool) -> Layout:
    """Give packets up to a quarter, chunks half of the rest, and lines what these leave."""
    peers = max(size - 1, 1)
    slots, chunks = channels * 2 * peers, channels * RINGS * peers * DEPTH
    room = nbytes - HEADER_NBYTES - CALLS_NBYTES - channels * CHANNEL_NBYTES
    for_packets = min(room // 4, (HEADER_PACKETS + MOST_PACKETS // peers) * slots * PACK_NBYTES)
    slot_packets = for_packets // (slots * PACK_NBYTES) // 2 * 2
    for_chunks = (room - for_packets) // (2 if lines else 1)
    chunk_nbytes = min(for_chunks // chunks, MOST_CHUNK_NBYTES // peers) // _CHUNK_UNIT * _CHUNK_UNIT
    for_lines = room - for_packets - chunks * chunk_nbytes if lines else 0
    return Layout(nbytes, size, channels, slot_packets, chunk_nbytes, slot_rows=for_lines // (slots * ROW_NBYTES))

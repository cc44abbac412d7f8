"""Layout of a lease (twin of cuda/protocol/layout.cuh)."""

from __future__ import annotations

from dataclasses import dataclass

from ..tuning import Limits

MAX_RANKS = 16
RINGS = 2
# Size of a Pack, and of a packet, half of which is payload.
PACK_NBYTES = 16
HEADER_NBYTES = 128  # sizeof(LeaseHeader)
CALLS, CALLS_NBYTES = 4, 256  # kCalls, sizeof(CallRecord)
LEASE_OVERFLOW_OFFSET, RECORDED_LATE_OFFSET = 4, 8  # LeaseHeader::overflow and recorded_late, 32-bit words
# sizeof(ChannelControl), whose first word is `finished`
CHANNEL_NBYTES = 768
ENTERED_OFFSET = 16  # ChannelControl::entered
DEPTH = 2  # chunks of a ring
HEADER_PACKETS = 2  # kHeader of cuda/exchange/span_ways.cuh
FEWEST_PACKETS = HEADER_PACKETS + 2  # packets of a slot
# The length of a chunk is a multiple of this number of bytes.
_CHUNK_UNIT = 128
# Bytes, and bytes of payload, of a row of LL128 lines: the lines that a warp stores at once.
ROW_NBYTES, ROW_PAYLOAD_NBYTES = 512, 480

# If chunks would be shorter than this, a lease has fewer channels. Not measured.
SMALLEST_CHUNK_NBYTES = 1 << 10
# Bytes of chunks in a ring, divided among the peers. On 4 H200 (22 November 2026), Gather of 128 MB took 281 us with
# this value, 314 us with 28 KiB; Allreduce took 680 us and 734 us. Longer rings make Reduce_scatter_block slower.
MOST_CHUNK_NBYTES = 84 << 10
# Packets of a channel's slots, divided among the peers. For longer messages chunks are faster (see above).
MOST_PACKETS = 2 * (17 << 10) // PACK_NBYTES


@dataclass(frozen=True, slots=True)
class Layout:
    """Inner layout of a lease of `nbytes` bytes for a communicator of `size` ranks."""

    nbytes: int
    size: int
    channels: int
    slot_packets: int  # packets of a slot, 8 bytes of payload each
    chunk_nbytes: int
    limits: Limits = ()  # measured message lengths for the choice of kernels
    slot_rows: int = 0  # LL128 rows of a slot; 0 if these ranks send no lines
    windows: bool = False  # whether the communicator has windows
    # Ranks that share one GPU. Their blocks wait for each other, so all must fit on the GPU at once.
    sharing: int = 1

    @property
    def peers(self) -> int:
        """Number of ranks with slots and rings in a lease: all but its owner."""
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
        """Payload in bytes of packets from one channel to one peer, without headers."""
        return (self.slot_packets - HEADER_PACKETS) * PACK_NBYTES // 2

    @property
    def line_nbytes(self) -> int:
        """Payload in bytes of LL128 lines from one channel to one peer."""
        return self.slot_rows * ROW_PAYLOAD_NBYTES

    @property
    def packet_nbytes(self) -> int:
        """Most bytes of a message to one peer that all channels together send as packets."""
        return self.slot_nbytes * self.channels


def least_nbytes(size: int) -> int:
    """Return the length of the shortest lease for which `plan` finds a layout."""
    peers = max(size - 1, 1)
    # At most a quarter of a lease holds packets; see `_divide`.
    for_packets = 4 * FEWEST_PACKETS * PACK_NBYTES * 2 * peers
    for_chunks = RINGS * DEPTH * _CHUNK_UNIT * peers
    room = max(for_packets, -(-for_chunks * 4 // 3))
    return HEADER_NBYTES + CALLS_NBYTES + CHANNEL_NBYTES + room


def plan(nbytes: int, size: int, max_channels: int, lines: bool = True) -> Layout:
    """Divide a lease among packets, chunks and LL128 lines, with many channels.

    The layout has as many channels as fit. Chunks have at least SMALLEST_CHUNK_NBYTES, unless there is only one
    channel. A lease that is too small for all three has no lines.

    Raises
    ------
    ValueError
        If the lease is too small for one channel.
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
    """Divide a lease: at most a quarter for packets, half of the rest for chunks.

    LL128 lines get what remains.
    """
    peers = max(size - 1, 1)
    slots, chunks = channels * 2 * peers, channels * RINGS * peers * DEPTH
    room = nbytes - HEADER_NBYTES - CALLS_NBYTES - channels * CHANNEL_NBYTES
    for_packets = min(room // 4, (HEADER_PACKETS + MOST_PACKETS // peers) * slots * PACK_NBYTES)
    slot_packets = for_packets // (slots * PACK_NBYTES) // 2 * 2
    for_chunks = (room - for_packets) // (2 if lines else 1)
    chunk_nbytes = min(for_chunks // chunks, MOST_CHUNK_NBYTES // peers) // _CHUNK_UNIT * _CHUNK_UNIT
    for_lines = room - for_packets - chunks * chunk_nbytes if lines else 0
    return Layout(nbytes, size, channels, slot_packets, chunk_nbytes, slot_rows=for_lines // (slots * ROW_NBYTES))

"""What lies where in a lease (twin of cuda/protocol/layout.cuh)."""

from __future__ import annotations

from dataclasses import dataclass

from ..tuning import Limits

MAX_RANKS = 16
RINGS = 2
PACK_NBYTES = 16  # one Pack; also one packet on the wire, which carries half of it
HEADER_NBYTES = 128  # sizeof(LeaseHeader)
CHANNEL_NBYTES = 640  # sizeof(ChannelControl)
DEPTH = 2  # chunks of one ring
LANES = 2  # of a chain
SMALLEST_CHUNK = 1024  # below it a lease gives channels up rather than shorten the chunks
FEWEST_PACKETS = 4
HEADER_PACKETS = 2  # kHeader of cuda/exchange/span_ways.cuh
ROW_NBYTES, ROW_PAYLOAD = 512, 480  # of a row of lines, which a warp sends at once
MOST_CHUNK = 84 << 10  # divided by the peers: more memory is slower, for it does not stay in the cache
MOST_PACKETS = 2 * (17 << 10) // PACK_NBYTES  # of a channel's slots together: more are slower than chunks, in any heap

LEASE_OVERFLOW_OFFSET = 4  # LeaseHeader::overflow, a 32-bit word


@dataclass(frozen=True, slots=True)
class Layout:
    """Inner layout of a lease of `nbytes` bytes for a communicator of `size` ranks."""

    nbytes: int
    size: int
    channels: int
    slot_packets: int  # packets of one slot: 8 bytes of payload each
    chunk_nbytes: int
    limits: Limits = ()  # which kernels are chosen for which messages
    slot_rows: int = 0  # rows of lines of one slot; 0: no lines between these ranks
    windows: bool = False  # the communicator has some
    sharing: int = 1  # ranks of one GPU: their blocks wait for each other, so all of them must be on it at once

    @property
    def peers(self) -> int:
        """How many ranks have slots and rings in a lease: all but its owner."""
        return max(self.size - 1, 1)

    @property
    def lines_offset(self) -> int:
        return HEADER_NBYTES + self.channels * CHANNEL_NBYTES

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
        """Payload that one channel can send to one peer as packets; the first packets say other things."""
        return (self.slot_packets - HEADER_PACKETS) * PACK_NBYTES // 2

    @property
    def line_nbytes(self) -> int:
        """Payload that one channel can send to one peer as lines."""
        return self.slot_rows * ROW_PAYLOAD

    @property
    def packet_nbytes(self) -> int:
        """The longest message to one peer that can go as packets, all channels together."""
        return self.slot_nbytes * self.channels


def plan(nbytes: int, size: int, max_channels: int, lines: bool = True) -> Layout:
    """Divide a lease among packets, chunks and `lines`, into as many channels as leave the chunks long.

    Packets get up to a quarter, chunks half of the rest, and lines what these leave; a lease that is too small for
    all has no lines.

    Raises
    ------
    ValueError
        If not even one channel fits.
    """
    channels, peers = max_channels, max(size - 1, 1)
    while channels >= 1:
        room = nbytes - HEADER_NBYTES - channels * CHANNEL_NBYTES
        slots = channels * 2 * peers
        for_packets = min(room // 4, (HEADER_PACKETS + MOST_PACKETS // peers) * slots * PACK_NBYTES)
        for_chunks = (room - for_packets) // 2 if lines else room - for_packets
        slot_packets = for_packets // (slots * PACK_NBYTES) // 2 * 2
        chunk_nbytes = min(for_chunks // (RINGS * channels * peers * DEPTH), MOST_CHUNK // peers) // 128 * 128
        if slot_packets >= FEWEST_PACKETS and (chunk_nbytes >= SMALLEST_CHUNK or (channels == 1 and chunk_nbytes > 0)):
            for_lines = room - for_packets - chunk_nbytes * RINGS * channels * peers * DEPTH if lines else 0
            slot_rows = for_lines // (slots * ROW_NBYTES)
            return Layout(nbytes, size, channels, slot_packets, chunk_nbytes, slot_rows=slot_rows)
        channels //= 2
    if lines:  # they can be done without
        return plan(nbytes, size, max_channels, lines=False)
    raise ValueError(f"a lease of {nbytes} bytes is too small for {size} ranks")

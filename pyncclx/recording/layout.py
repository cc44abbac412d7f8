"""Layout of a flight recorder's file: header, ring of entries, texts.

All numbers are little endian. The sequence number of an entry is written last, and makes it valid. Entry `n` is at
place ``n % CAPACITY``. Entries refer to a text by its offset; 0 is no text.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MAGIC = b"pyncclxR"
VERSION = 1
HEADER_NBYTES = 4096
CAPACITY = 2048  # entries
TEXTS_NBYTES = 256 << 10

# States of a process. ENDED_LATER is a clean end after a failure that the program has caught.
RUNNING, ENDED, FAILED, ENDED_LATER = range(4)
STATES = ("running", "ended", "failed", "ended")

# Kinds of entries. The collective ones of a communicator, COLLECTIVE to MEETING, are numbered alike on all ranks.
COLLECTIVE, HOST, SHUFFLE, MEETING, MESSAGE, ACCESS = range(6)
KINDS = ("collective", "host", "shuffle", "meeting", "message", "access")
COUNTED = (COLLECTIVE, HOST, SHUFFLE, MEETING)

# Flags of an entry.
ASIDE, PERSISTENT, CAPTURED, ROOTED, REPEATED = 1, 2, 4, 8, 16
FLAGS = {"nonblocking": ASIDE, "persistent": PERSISTENT, "captured": CAPTURED, "rooted": ROOTED, "repeated": REPEATED}

# A wildcard as peer or tag, or the peer of an operation without one.
ANY = -1


class Header(NamedTuple):
    """Beginning of the file."""

    magic: bytes = MAGIC
    version: int = VERSION
    entry_nbytes: int = 0
    capacity: int = CAPACITY
    texts_offset: int = 0
    texts_nbytes: int = TEXTS_NBYTES
    texts_used: int = 8  # 0 is no text
    pid: int = 0
    state: int = RUNNING
    # Offset from the monotonic clock of entries to the wall clock.
    realtime_ns: int = 0
    # Start of the process in ticks since boot (/proc/PID/stat).
    started: int = 0
    facts: int = 0  # text: JSON of the facts of the process


class Live(NamedTuple):
    """What a process waits for on the host, beside its entries."""

    since_ns: int = 0
    what: int = 0  # text; 0 while it does not wait
    comm: int = 0
    detail: int = 0


class Facts(NamedTuple):
    """Part of an entry that equal calls have in common."""

    operation: int = 0  # a text, as the next five
    comm: int = 0  # JSON of the communicator's identity
    algorithm: int = 0
    datatype: int = 0
    operator: int = 0
    site: int = 0  # file:line of the program
    elements: int = 0
    nbytes: int = 0
    stream: int = 0  # handle of the stream
    peer: int = ANY  # root, or the other rank, in MPI.COMM_WORLD
    tag: int = ANY
    signature: int = 0  # checksum of what must be equal on all ranks
    kind: int = COLLECTIVE
    flags: int = 0
    ended_ns: int = 0  # 0 if not ended, or unknown


HEADER = struct.Struct("<8sIIIIIIIIqQI")
LIVE = struct.Struct("<QIII")
FACTS = struct.Struct("<IIIIIIQQQiiIHHQ")
MATCH = struct.Struct("<ii")  # `Facts.peer` and `Facts.tag`
ENTRY = struct.Struct(f"<QQ{FACTS.size}sQ")  # monotonic ns, number, facts, sequence number

LIVE_OFFSET = 128
ENDED_OFFSET = 16 + FACTS.size - 8  # offset of `Facts.ended_ns` in an entry
MATCH_OFFSET = 16 + struct.calcsize("<IIIIIIQQQ")
SEQUENCE_OFFSET = ENTRY.size - 8
TEXTS_OFFSET = HEADER_NBYTES + CAPACITY * ENTRY.size
NBYTES = TEXTS_OFFSET + TEXTS_NBYTES

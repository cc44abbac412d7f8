"""What lies where in the file of a flight recorder: a header, a ring of entries, texts that entries refer to.

All numbers are little endian. An entry is whole once its sequence number is there, which is written last: entry `n` is
at place ``n % CAPACITY``. A text is referred to by its offset; 0 is none.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MAGIC = b"pyncclxR"
VERSION = 1
HEADER_NBYTES = 4096
CAPACITY = 2048  # entries
TEXTS_NBYTES = 256 << 10

# What a process is
RUNNING, ENDED, FAILED, ENDED_LATER = range(4)  # the last: after a failure that the program has caught
STATES = ("running", "ended", "failed", "ended")

# What an entry is about: the collective ones of a communicator, COLLECTIVE to MEETING, are numbered alike on all ranks.
COLLECTIVE, HOST, SHUFFLE, MEETING, MESSAGE, ACCESS = range(6)
KINDS = ("collective", "host", "shuffle", "meeting", "message", "access")
COUNTED = (COLLECTIVE, HOST, SHUFFLE, MEETING)

# Flags of an entry
ASIDE, PERSISTENT, CAPTURED, ROOTED, REPEATED = 1, 2, 4, 8, 16
FLAGS = {"nonblocking": ASIDE, "persistent": PERSISTENT, "captured": CAPTURED, "rooted": ROOTED, "repeated": REPEATED}

ANY = -1  # as a peer or a tag: any; as a peer of what has none, too


class Header(NamedTuple):
    """The beginning of the file."""

    magic: bytes = MAGIC
    version: int = VERSION
    entry_nbytes: int = 0
    capacity: int = CAPACITY
    texts_offset: int = 0
    texts_nbytes: int = TEXTS_NBYTES
    texts_used: int = 8  # 0 is no text
    pid: int = 0
    state: int = RUNNING
    realtime_ns: int = 0  # to add to the times of entries, which are those of the monotonic clock
    started: int = 0  # when the process was, in ticks since the machine was: /proc/PID/stat
    facts: int = 0  # a text: JSON of what the process is


class Live(NamedTuple):
    """What a process waits for on the host, beside its entries."""

    since_ns: int = 0
    what: int = 0  # a text; 0: it does not wait
    comm: int = 0
    detail: int = 0


class Facts(NamedTuple):
    """The part of an entry that equal calls have in common."""

    operation: int = 0  # a text, as the next five are
    comm: int = 0  # JSON of what the communicator is
    algorithm: int = 0
    datatype: int = 0
    operator: int = 0
    site: int = 0  # file:line of the program
    elements: int = 0
    nbytes: int = 0
    stream: int = 0  # its handle
    peer: int = ANY  # root, or the other rank, in MPI.COMM_WORLD
    tag: int = ANY
    signature: int = 0  # a checksum of what must be equal on all ranks
    kind: int = COLLECTIVE
    flags: int = 0
    ended_ns: int = 0  # 0: not, or not known


HEADER = struct.Struct("<8sIIIIIIIIqQI")
LIVE = struct.Struct("<QIII")
FACTS = struct.Struct("<IIIIIIQQQiiIHHQ")
MATCH = struct.Struct("<ii")  # `Facts.peer` and `Facts.tag`
ENTRY = struct.Struct(f"<QQ{FACTS.size}sQ")  # monotonic ns, number, facts, sequence number

LIVE_OFFSET = 128
ENDED_OFFSET = 16 + FACTS.size - 8  # of `Facts.ended_ns` in an entry
MATCH_OFFSET = 16 + struct.calcsize("<IIIIIIQQQ")
SEQUENCE_OFFSET = ENTRY.size - 8
TEXTS_OFFSET = HEADER_NBYTES + CAPACITY * ENTRY.size
NBYTES = TEXTS_OFFSET + TEXTS_NBYTES

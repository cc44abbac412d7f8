"""Detect dead processes of this node, through a shared page of each process.

Each process holds a robust mutex in its page. When the process dies, Linux sets a bit in the mutex: the *mark*. This
happens 0.1 to 10 ms after a SIGKILL, before Linux frees the process's memory, which can take more than a second.
Sockets and pidfds report the death after up to 1.2 s. The page also records facts that peers need after the process's
death: how it ended, when it last ran, and its notes about failed communicators. It lists the communicators that the
process is in, too.
"""

import ctypes
import mmap
import os
import threading
import time

from .failure_note import RECORD, Note
from .processes import Process, pid_namespace, process

NBYTES = 8192
# States of a process: running, ended normally, ended by an exception, or at the end of its program. In state ENDING,
# `atexit` functions and destructors may still communicate, so peers treat it as RUNNING until the mutex is marked.
RUNNING, ENDED, RAISED, ENDING = range(4)
_MUTEX_NBYTES = 64  # at the beginning of the page; larger than any pthread_mutex_t
_OFFSET_AT, _STATE_AT, _PID_AT, _BEAT_AT, _NOTES_AT, _TEXT_NBYTES_AT = 64, 68, 72, 80, 88, 92
_NAMESPACE_AT, _STARTED_AT, _CPU_AT, _MORE_AT = 96, 104, 112, 120
_TEXT_AT, _MOST_TEXT_NBYTES = 128, 384
_NOTES_BEGIN = 512
_NOTE_NBYTES = 128
_GROUPS_BEGIN, _GROUP_NBYTES = 4096, 16
_MOST_NOTES = (_GROUPS_BEGIN - _NOTES_BEGIN) // _NOTE_NBYTES
_NOT_LISTED = 0  # the place of a communicator for which the list has no room
_OWNER_DIED, _TID_MASK = 0x40000000, 0x3FFFFFFF  # FUTEX_OWNER_DIED, FUTEX_TID_MASK of linux/futex.h
STOPPED, COMPUTING, UNKNOWN = "stopped", "computing", ""  # why a process shows no heartbeat
_COMPUTING = 0.2  # a COMPUTING process has used a processor for at least this share of the time since its heartbeat
CLOSING_S = 2.0  # longest time from the mark until Linux has closed the process's files and devices
_ROBUST = _SHARED = 1  # PTHREAD_MUTEX_ROBUST, PTHREAD_PROCESS_SHARED


class _Page:
    """A page of this or another process, mapped into this process."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, NBYTES)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def _word(self, offset: int) -> ctypes.c_uint32:
        return ctypes.c_uint32.from_address(self._address + offset)

    def _long(self, offset: int) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self._address + offset)


class Presence(_Page):
    """The page of this process; peers map it by `fd`.

    Examples
    --------
    >>> presence = Presence()
    >>> seen = PeerPresence(os.dup(presence.fd))
    >>> presence.hold()
    True
    >>> seen.has_died, seen.pid == os.getpid()
    (False, True)
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("pyncclx-presence")
        os.ftruncate(self.fd, NBYTES)
        super().__init__(self.fd)
        # Re-entrant, because a destructor that frees a communicator may run while another one is being listed.
        self._lock = threading.RLock()
        self._places: dict[bytes, int] = {}  # keys: communicators in the list
        self._free = list(range(_GROUPS_BEGIN, NBYTES, _GROUP_NBYTES))
        self._identify()

    def _identify(self) -> None:
        self._long(_PID_AT).value, self._long(_NAMESPACE_AT).value = os.getpid(), pid_namespace()
        self._long(_STARTED_AT).value = (process("self") or Process()).started

    def hold(self) -> bool:
        """Lock the mutex; return whether Linux will mark it when the process ends.

        Call it on a thread that lives as long as the process.
        """
        library, attribute = ctypes.CDLL(None), ctypes.create_string_buffer(_MUTEX_NBYTES)
        mutex = ctypes.c_void_p(self._address)
        library.pthread_mutexattr_init(attribute)
        refused = library.pthread_mutexattr_setpshared(attribute, _SHARED)
        refused |= library.pthread_mutexattr_setrobust(attribute, _ROBUST)
        if refused or library.pthread_mutex_init(mutex, attribute) or library.pthread_mutex_lock(mutex):
            return False
        me = threading.get_native_id()
        words = range(0, _MUTEX_NBYTES, 4)  # the holder is in the first word in glibc, in the second in musl
        offset = next((at for at in words if self._word(at).value & _TID_MASK == me), None)
        # If the holder's word is not found, peers read a word that Linux never marks.
        self._word(_OFFSET_AT).value = _OFFSET_AT if offset is None else offset
        self.beat(time.monotonic_ns())
        return offset is not None

    def beat(self, now_ns: int) -> None:
        """Write a heartbeat, so that peers see that this process runs."""
        self._long(_CPU_AT).value = time.process_time_ns()
        self._long(_BEAT_AT).value = now_ns

    def end(self, state: int, text: str = "") -> None:
        """Write to the page that this process is ending by itself, and why."""
        data = text.encode()[:_MOST_TEXT_NBYTES]
        self._map[_TEXT_AT : _TEXT_AT + len(data)] = data
        self._word(_TEXT_NBYTES_AT).value = len(data)
        self.beat(time.monotonic_ns())
        self._word(_STATE_AT).value = state

    def end_with_interpreter(self) -> object:
        """Return an object whose deletion changes this process's state ENDING to ENDED."""
        return _AtEnd(self, self._word(_STATE_AT), self._long(_BEAT_AT))

    def note(self, note: Note) -> None:
        """Write a note to the page, for peers to read."""
        with self._lock:
            number = self._word(_NOTES_AT).value
            at = _NOTES_BEGIN + number % _MOST_NOTES * _NOTE_NBYTES
            self._map[at : at + RECORD.size] = note.pack()
            self._word(_NOTES_AT).value = number + 1

    def enter(self, group: bytes) -> None:
        """Add a communicator, named as in a `Note`, to those that this process is in."""
        with self._lock:
            place = self._places[group] = self._free.pop() if self._free else _NOT_LISTED
            if place == _NOT_LISTED:
                self._word(_MORE_AT).value += 1
            else:
                self._map[place : place + _GROUP_NBYTES] = group

    def leave(self, group: bytes) -> None:
        """Remove a communicator from the list, if it is there."""
        with self._lock:
            place = self._places.pop(group, None)
            if place == _NOT_LISTED:
                self._word(_MORE_AT).value -= 1
            elif place is not None:
                self._map[place : place + _GROUP_NBYTES] = bytes(_GROUP_NBYTES)
                self._free.append(place)


class _AtEnd:
    """Object whose deletion sets the state ENDED, even after modules are gone."""

    def __init__(self, page: _Page, state: ctypes.c_uint32, beat: ctypes.c_int64) -> None:
        self._page, self._state, self._beat = page, state, beat
        self._ending, self._ended, self._now = ENDING, ENDED, time.monotonic_ns
        self._pid, self._getpid = os.getpid(), os.getpid

    def __del__(self) -> None:
        if self._state.value == self._ending and self._getpid() == self._pid:
            self._beat.value = self._now()
            self._state.value = self._ended


class PeerPresence(_Page):
    """Another process's page, mapped from a file descriptor, which is then closed."""

    def __init__(self, fd: int) -> None:
        try:
            super().__init__(fd)
        finally:
            os.close(fd)
        self.pid, self._started = self._long(_PID_AT).value, self._long(_STARTED_AT).value
        self._has_number_here = self._long(_NAMESPACE_AT).value == pid_namespace() != 0
        self._state, self._beat, self._count = self._word(_STATE_AT), self._long(_BEAT_AT), self._word(_NOTES_AT)
        self._mutex = self._word(self._word(_OFFSET_AT).value)
        self._read = 0
        self._marked_s: float | None = None  # time when the mark was first seen

    def _is_marked(self) -> bool:
        """Return whether Linux has marked the mutex."""
        marked = bool(self._mutex.value & _OWNER_DIED)
        if marked and self._marked_s is None:
            self._marked_s = time.monotonic()
        return marked

    def may_be_in(self, group: bytes) -> bool:
        """Return whether the process is in a communicator, or its list is full."""
        return self._map.find(group, _GROUPS_BEGIN) >= 0 or self._word(_MORE_AT).value > 0

    def is_quiet(self) -> bool:
        """Return whether the process runs and has no note left for `new_notes` to read."""
        quiet = self._count.value == self._read and self._state.value in (RUNNING, ENDING)
        return quiet and not self._is_marked()

    @property
    def has_died(self) -> bool:
        """Whether the process has ended without a call of `Presence.end`."""
        return self._is_marked() and not self.has_left

    @property
    def state(self) -> int:
        """State of the process: RUNNING, ENDED or RAISED."""
        state = self._state.value
        if state == ENDING:
            return ENDED if self._is_marked() else RUNNING
        return state

    @property
    def has_left(self) -> bool:
        """Whether the program has ended, even if its process still exists."""
        return self._state.value != RUNNING

    @property
    def text(self) -> str:
        """The reason that the process gave for its end."""
        nbytes = min(self._word(_TEXT_NBYTES_AT).value, _MOST_TEXT_NBYTES)
        return self._map[_TEXT_AT : _TEXT_AT + nbytes].decode(errors="replace")

    @property
    def beat_ns(self) -> int:
        """Time of the process's last heartbeat, or of its end: monotonic clock, ns."""
        return self._beat.value

    def new_notes(self) -> list[Note]:
        """Return the notes written since the last call."""
        count = self._count.value
        if count == self._read:
            return []
        notes = []
        for number in range(max(self._read, count - _MOST_NOTES), count):
            at = _NOTES_BEGIN + number % _MOST_NOTES * _NOTE_NBYTES
            note = Note.unpack(self._map[at : at + RECORD.size])
            if note is None:  # still being written; the next call returns it
                break
            notes.append(note)
            self._read = number + 1
        return notes

    def is_gone(self) -> bool:
        """Return whether the process and all its work, also on a GPU, have ended.

        Linux has then closed all of its files and devices, and /proc shows the end. /proc does not show processes of
        another PID namespace, so such a process counts as gone when its mark is older than `CLOSING_S`.
        """
        if not self._has_number_here:
            return self._is_marked() and time.monotonic() - (self._marked_s or 0.0) >= CLOSING_S
        found = process(self.pid)
        return found is not None and (found.has_ended or found.started != self._started)

    def why_still(self) -> str:
        """Return why heartbeats are missing: STOPPED, COMPUTING or UNKNOWN."""
        found = process(self.pid) if self._has_number_here else None
        if found is None or found.started != self._started:
            return UNKNOWN
        if found.state in ("T", "t"):
            return STOPPED
        since_s = (time.monotonic_ns() - self.beat_ns) / 1e9
        used_s = found.cpu_s - self._long(_CPU_AT).value / 1e9
        return COMPUTING if used_s > _COMPUTING * since_s else UNKNOWN

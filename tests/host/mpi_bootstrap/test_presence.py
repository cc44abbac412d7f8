"""Pages of processes: a death is marked, an end by itself is told from it, notes arrive whole."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from mpi_bootstrap import presence as pages
from mpi_bootstrap.failure_note import Note
from mpi_bootstrap.presence import (
    _MOST_NOTES,
    COMPUTING,
    ENDED,
    ENDING,
    RAISED,
    RUNNING,
    STOPPED,
    UNKNOWN,
    PeerPresence,
    Presence,
)

NOTE = Note(b"g" * 16, "timed out", 1, 2, 3, 4, 5, 6, "Allreduce")


@pytest.fixture
def process():
    """A process with a page; it ends as the word says that it is sent."""
    presence, (begin, begun), (orders, order) = Presence(), os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os._exit(_live(presence, begun, orders))
    os.read(begin, 1)
    yield presence, pid, lambda word: os.write(order, word)
    with suppress(ChildProcessError):  # the test has waited for it
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, signal.SIGKILL)  # also if it computes or is stopped, because a test has failed
            os.waitpid(pid, 0)
    for fd in (presence.fd, begin, begun, orders, order):
        os.close(fd)


@pytest.fixture
def child(process):
    """The same, as another process sees it."""
    presence, *others = process
    return PeerPresence(os.dup(presence.fd)), *others


def _live(presence, begun, orders):
    presence._identify()
    presence.hold()
    os.write(begun, b"x")
    word = os.read(orders, 20)
    if word == b"end":
        presence.end(ENDED)
    elif word == b"raise":
        presence.end(RAISED, "ValueError: mine")
    elif word == b"destructor":
        end = presence.end_with_interpreter()
        presence.end(ENDING)
        os.read(orders, 20)
        del end
    elif word == b"compute":
        presence.beat(time.monotonic_ns())
        while True:
            pass
    return 0


def until(condition):
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return condition()


def test_a_process_that_is_killed(child):
    seen, pid, _ = child
    assert not seen.has_died
    assert seen.is_quiet()
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: seen.has_died)
    os.waitpid(pid, 0)
    assert not seen.is_quiet()


def test_a_process_that_leaves_without_a_word(child):
    """As by os._exit: for its peers that is a death."""
    seen, pid, order = child
    order(b"nothing")
    os.waitpid(pid, 0)
    assert seen.has_died


@pytest.mark.parametrize(("word", "state", "text"), [(b"end", ENDED, ""), (b"raise", RAISED, "ValueError: mine")])
def test_a_process_that_ends_by_itself(child, word, state, text):
    seen, pid, order = child
    assert seen.state == RUNNING
    order(word)
    os.waitpid(pid, 0)
    assert not seen.has_died
    assert (seen.state, seen.text) == (state, text)


@pytest.mark.parametrize("how", ["deleted", "killed"])
def test_a_process_whose_destructors_run(process, how):
    """It is at work until they are over, or it dies: that is its end."""
    presence, pid, order = process
    seen = PeerPresence(os.dup(presence.fd))
    order(b"destructor")
    assert until(lambda: presence._word(pages._STATE_AT).value == ENDING)
    assert (seen.state, seen.is_quiet(), seen.has_died) == (RUNNING, True, False)
    if how == "killed":
        os.kill(pid, signal.SIGKILL)
    else:
        order(b"go on")
    os.waitpid(pid, 0)
    assert (seen.state, seen.has_died) == (ENDED, False)


def test_why_a_process_shows_no_beat(child, monkeypatch):
    """It is stopped, or computes where no other thread of it runs."""
    seen, pid, order = child
    assert seen.why_still() == UNKNOWN
    monkeypatch.setattr(pages, "_COMPUTING", 0.02)  # on a busy machine it gets a small share of a processor
    order(b"compute")
    assert until(lambda: seen.why_still() == COMPUTING)
    os.kill(pid, signal.SIGSTOP)
    assert until(lambda: seen.why_still() == STOPPED)
    os.kill(pid, signal.SIGKILL)
    os.kill(pid, signal.SIGCONT)
    os.waitpid(pid, 0)
    assert seen.why_still() == UNKNOWN


def test_a_process_is_gone_after_its_end(child):
    seen, pid, order = child
    assert not seen.is_gone()
    order(b"end")
    assert until(seen.is_gone)  # a zombie so far
    os.waitpid(pid, 0)
    assert seen.is_gone()


def test_a_number_that_another_process_has(child):
    """The process that had it before is gone."""
    seen, _, _ = child
    seen._started -= 1
    assert seen.is_gone()


def test_a_process_that_cannot_be_looked_for(child, monkeypatch):
    """It may run."""
    seen, _, _ = child

    def fail(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Path, "read_text", fail)
    assert not seen.is_gone()
    assert seen.why_still() == UNKNOWN


@pytest.mark.parametrize("number", [os.getpid(), 1 << 30])
def test_a_process_in_another_pid_namespace(process, monkeypatch, number):
    """Its number here is free, or another process's; the mark counts, some time after it came."""
    presence, pid, _ = process
    presence._long(pages._NAMESPACE_AT).value += 1
    presence._long(pages._PID_AT).value = number
    seen = PeerPresence(os.dup(presence.fd))
    assert not seen.is_gone()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert not seen.is_gone()
    monkeypatch.setattr(pages, "CLOSING_S", 0.01)
    assert until(seen.is_gone)


OTHER_NAMESPACE = """
import os, socket, sys
import mpi4py
mpi4py.rc.initialize = False
from mpi_bootstrap.presence import Presence
presence, channel = Presence(), socket.socket(fileno=int(sys.argv[1]))
presence.hold()
socket.send_fds(channel, [b"x"], [presence.fd])
channel.recv(1)
os._exit(9)
"""


@pytest.mark.parametrize("proc", [[], ["--mount-proc"]])
def test_a_process_in_a_pid_namespace_of_its_own(monkeypatch, proc):
    unshare = ["unshare", "--pid", "--fork", *proc]
    refused = subprocess.run([*unshare, "true"], stderr=subprocess.PIPE, text=True, check=False)
    if refused.returncode:
        pytest.skip(f"no PID namespace can be made: {refused.stderr.strip()}")
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    program = [sys.executable, "-c", OTHER_NAMESPACE, str(theirs.fileno())]
    monkeypatch.setattr(pages, "CLOSING_S", 0.01)
    with subprocess.Popen([*unshare, *program], pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        seen = PeerPresence(socket.recv_fds(ours, 1, 1)[1][0])
        assert seen.pid == 1
        assert not seen.is_gone()
        ours.close()
        assert until(seen.is_gone)
    assert process.returncode == 9


def test_notes():
    presence = Presence()
    seen = PeerPresence(os.dup(presence.fd))
    assert seen.new_notes() == []
    presence.note(NOTE)
    assert not seen.is_quiet()
    assert seen.new_notes() == [NOTE]
    assert seen.new_notes() == []
    for number in range(3 * _MOST_NOTES):  # more than there is room for: the last ones are there
        presence.note(NOTE._replace(epoch=number))
    assert [note.epoch for note in seen.new_notes()] == list(range(2 * _MOST_NOTES, 3 * _MOST_NOTES))
    os.close(presence.fd)


def test_a_note_that_is_being_written_is_none():
    data = bytearray(NOTE.pack())
    assert Note.unpack(bytes(data)) == NOTE
    data[30] ^= 1
    assert Note.unpack(bytes(data)) is None


def test_the_list_of_communicators():
    """A peer sees which communicators a process is in; if the list is full, it may be in any."""
    presence = Presence()
    seen, groups = PeerPresence(os.dup(presence.fd)), [number.to_bytes(16, "big") for number in range(1, 300)]
    for each in groups[:200]:
        presence.enter(each)
    presence.leave(groups[7])
    presence.leave(b"")  # a communicator that was never listed
    assert [seen.may_be_in(each) for each in groups] == [i != 7 and i < 200 for i in range(299)]
    for each in groups[200:]:
        presence.enter(each)
    assert all(map(seen.may_be_in, groups))
    for each in groups:
        presence.leave(each)
    assert not any(map(seen.may_be_in, groups))

"""The ring of the flight recorder: its order, its end, and what is left of a process that was killed."""

import itertools
import mmap
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mpi_bootstrap.processes import process
from pyncclx.recording import folders, layout, ring
from pyncclx.recording.layout import FACTS, Facts, Live

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def own():
    return ring.Ring(mmap.mmap(-1, layout.NBYTES))


def read(own):
    return layout.Reading(bytes(own.memory)).record()


def test_an_entry_says_what_it_was_given(own):
    text = own.text
    facts = Facts(
        *map(text, ("Bcast", '{"name": "world"}', "bcast_chain", "float64", "SUM", "a.py:7 in f")),
        *(5, 40, 1 << 40, 3, 9, 77),
        layout.COLLECTIVE,
        layout.ROOTED,
    )
    sequence = own.add(12, facts)
    own.end(sequence)
    found = read(own)
    (entry,) = found["entries"]
    assert 0 < entry.pop("began_ns") <= entry.pop("ended_ns")
    assert found["comms"] == {entry.pop("comm"): {"name": "world"}}
    first = {"sequence": 1, "number": 12, "operation": "Bcast", "algorithm": "bcast_chain", "datatype": "float64"}
    second = {"operator": "SUM", "site": "a.py:7 in f", "elements": 5, "nbytes": 40, "stream": 1 << 40}
    third = {"peer": 3, "tag": 9, "signature": 77, "kind": "collective", "flags": ["rooted"]}
    assert entry == first | second | third


def test_what_is_over_at_once(own):
    """All that equal calls have in common is there, each time with its own times."""
    facts = Facts(own.text("Send"), nbytes=40, peer=3, tag=9, kind=layout.MESSAGE, flags=layout.PERSISTENT)
    write = own.writer_of_ended(FACTS.pack(*facts))
    for _ in range(2):
        write()
    first, second = read(own)["entries"]
    assert 0 < first["began_ns"] <= first["ended_ns"] <= second["began_ns"] <= second["ended_ns"]
    assert (first["sequence"], second["sequence"]) == (1, 2)
    own.end(own.add(0, facts))
    for entry in (first, second, read(own)["entries"][-1]):
        assert (entry["operation"], entry["nbytes"], entry["peer"], entry["tag"]) == ("Send", 40, 3, 9)
        assert (entry["kind"], entry["flags"], entry["number"]) == ("message", ["persistent"], 0)


def test_the_last_entries_stay(own):
    """By both ways to write one, and beyond the end several times."""
    write = own.writer(FACTS.pack(*Facts(own.text("Repeated"))), itertools.count(100))
    count = 2 * layout.CAPACITY + 7
    for each in range(count):
        if each % 3:
            write()
        else:
            own.add(each, Facts(own.text("Added")))
    entries = read(own)["entries"]
    assert [entry["sequence"] for entry in entries] == list(range(count - layout.CAPACITY + 1, count + 1))
    assert all((entry["operation"] == "Added") == ((entry["sequence"] - 1) % 3 == 0) for entry in entries)
    numbers = [entry["number"] for entry in entries if entry["operation"] == "Repeated"]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_what_is_overwritten_is_not_changed_any_more(own):
    first = own.add(1, Facts(own.text("old")))
    for each in range(layout.CAPACITY):
        own.add(each, Facts(own.text("new")))
    own.end(first)
    own.match(first, 5, 6)
    own.rewrite(first, Facts(own.text("old")))
    own.number(first, 99)
    own.end(0)  # of what was not recorded
    assert all(e["operation"] == "new" and e["ended_ns"] is None and e["peer"] == -1 for e in read(own)["entries"])
    assert read(own)["entries"][-1]["number"] == layout.CAPACITY - 1


def test_threads_do_not_lose_entries(own):
    def work():
        facts = FACTS.pack(*Facts())
        write, write_over = own.writer(facts, itertools.count(1)), own.writer_of_ended(facts)
        for _ in range(layout.CAPACITY // 16):
            write()
            write_over()
            own.add(0, Facts())
            write_over()

    threads = [threading.Thread(target=work) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert [entry["sequence"] for entry in read(own)["entries"]] == list(range(1, layout.CAPACITY + 1))


def test_texts_are_written_once_and_end_quietly(own):
    assert own.text("a") == own.text("a") != own.text("b")
    assert own.text("") == 0
    texts = [f"{number:04}" + "x" * 1000 for number in range(400)]
    places = [own.text(text) for text in texts]
    assert places[-1] == 0
    found = layout.Reading(bytes(own.memory))
    assert [found.text(place) for place in places if place] == texts[: len(places) - places.count(0)]


def test_texts_of_what_is_gone_make_room(own):
    """But not before the entries that refer to them are gone, too."""
    first = own.passing_text("communicator 0")
    own.add(1, Facts(comm=first))
    own.release(first)
    second = own.passing_text("communicator 1")
    assert second not in (0, first)
    for _ in range(layout.CAPACITY):
        own.add(1, Facts(comm=second))
    assert own.passing_text("communicator 2") == first
    for number in range(3000):
        place = own.passing_text(f"communicator {number}")
        own.release(place)
        for _ in range(layout.CAPACITY // 1000):
            own.add(1, Facts(comm=place))
        assert place


def test_a_wait_is_shown(own):
    own.live(Live(ring.now(), own.text("the device"), 0, own.text("detail")))
    live = read(own)["live"]
    assert (live["what"], live["detail"]) == ("the device", "detail")
    own.live(Live())
    assert read(own)["live"] is None


PROGRAM = """
import os, signal, sys
from mpi4py import MPI
import numpy as np, pyncclx
from pyncclx.recording.ring import RING
comm = pyncclx.Communicator(MPI.COMM_WORLD)
x = np.ones(10, "f4")
for _ in range(3):
    comm.Allreduce(MPI.IN_PLACE, x)
own = RING.get()
print(own and own.path, flush=True)
"""


def run(program, **variables):
    environment = {**os.environ, "PYNCCLX_DEVICE": "host", "PYTHONPATH": str(ROOT), "PYNCCLX_HEAP": "2M", **variables}
    # A parent of its own: by it, processes that no launcher has started are a job.
    command = ["sh", "-c", '"$0" "$@"; exit $?', sys.executable, "-c", PROGRAM + program]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    return ended, ended.stdout.split()[0]


def test_what_was_killed_leaves_its_entries():
    ended, path = run("os.kill(os.getpid(), signal.SIGKILL)")
    assert ended.returncode == 128 + signal.SIGKILL
    found = folders.read(Path(path))
    assert [entry["operation"] for entry in found["entries"]] == ["Allreduce"] * 3
    assert [entry["number"] for entry in found["entries"]] == [1, 2, 3]
    assert found["entries"][0]["site"].endswith("in <module>")
    assert (found["state"], found["condition"]) == ("running", "")
    assert found["process"]["settings"]["PYNCCLX_HEAP"] == "2M"


def test_what_ends_leaves_nothing():
    ended, path = run("")
    assert ended.returncode == 0
    assert not Path(path).parent.exists()


def test_a_child_changes_nothing():
    program = """
from pyncclx.recording import layout
if os.fork() == 0:
    own.is_now(layout.ENDED)
    os._exit(0)
os.wait()
print(own.state == layout.RUNNING, own.path.exists())
"""
    ended, _ = run(program)
    assert ended.stdout.split()[1:] == ["True", "True"], ended.stderr


def test_it_can_be_turned_off():
    ended, path = run("comm.Send(x, MPI.PROC_NULL)", PYNCCLX_RECORD="0")
    assert (ended.returncode, path) == (0, "None"), ended.stderr


def test_without_a_folder_it_is_in_memory(monkeypatch):
    def refuse():
        raise PermissionError

    monkeypatch.setattr(folders, "base", refuse)
    memory, path = ring._mapped()
    assert path is None
    assert len(memory) == layout.NBYTES


def test_leftovers_go(tmp_path, monkeypatch):
    """All but the newest, of jobs whose processes are gone; a running one stays."""
    monkeypatch.setattr(folders, "base", lambda: tmp_path)
    running, own = tmp_path / "running", tmp_path / "own"
    gone = [tmp_path / f"gone{number}" for number in range(folders.MOST_KEPT + 3)]
    for age, folder in enumerate([own, running, *gone]):
        folder.mkdir()
        header = layout.Header(pid=os.getpid(), started=process("self").started)
        if folder in gone:
            header = header._replace(started=1)  # another process that had this number
        (folder / "0-1.ring").write_bytes(layout.HEADER.pack(*header))
        os.utime(folder, (1e9 * 2 - age, 1e9 * 2 - age))
    monkeypatch.setattr(folders.time, "time", lambda: 2e9)
    folders.clean(own)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("own", "running"),
        *(folder.name for folder in gone[: folders.MOST_KEPT]),
    }


@pytest.mark.parametrize("data", [b"", b"short", bytes(layout.NBYTES)])
def test_other_files_are_refused(tmp_path, data):
    path = tmp_path / "0-1.ring"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="no file of pyncclx's flight recorder"):
        folders.read(path)

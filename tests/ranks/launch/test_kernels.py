"""Kernels that ranks prepare together: who compiles what, who waits how, and what all raise."""

import dataclasses
import itertools
import logging
import re
import time

import pytest

import mpi_bootstrap
from pyncclx import backends
from pyncclx.errors import CollectiveMismatch
from pyncclx.launch import kernels
from support.everywhere import raises_everywhere

numbers = itertools.count()


def part(compiled, compile_=lambda: None):
    """A part of two kernels that no other test has; its image has its name."""
    name = f"kernel {next(numbers)}"

    def compile_part():
        compiled.append(name)
        compile_()
        return name.encode()

    names = [f"{name}, first", f"{name}, second"]
    return kernels.Part(names=names, compile=compile_part, load=lambda image: dict.fromkeys(names, image.decode()))


def share(comm, *parts):
    return kernels.share(comm, backends.select(), parts)


def test_ranks_compile_different_parts_at_once(comm):
    compiled = []
    barrier = lambda: mpi_bootstrap.sleeping_barrier(everybody)  # noqa: E731  returns only if all compile at once
    everybody = comm.Dup()
    parts = [part(compiled, barrier) for _ in range(comm.size)]
    loaded = share(comm, *parts)
    everybody.Free()
    assert loaded == {name: name.partition(",")[0] for each in parts for name in each.names}
    assert compiled == [parts[comm.rank].names[0].partition(",")[0]]


def test_more_parts_than_ranks(comm):
    compiled = []
    parts = [part(compiled) for _ in range(2 * comm.size + 1)]
    loaded = share(comm, *parts)
    assert loaded == {name: name.partition(",")[0] for each in parts for name in each.names}
    assert len(compiled) == 2 + (comm.rank == 0)


def test_what_one_rank_lacks_is_compiled_for_it(comm):
    compiled = []
    parts = [part(compiled), part(compiled)]
    if comm.rank > 0:
        kernels._loaded.update(dict.fromkeys(parts[1].names, "loaded before"))
    loaded = share(comm, *parts)
    assert loaded[parts[1].names[0]] == ("loaded before" if comm.rank > 0 else parts[1].names[0].partition(",")[0])
    assert share(comm, *parts) == loaded
    assert len(mpi_bootstrap.allgather_bytes(comm, b"".join(name.encode() for name in compiled))) == comm.size


def test_a_part_that_does_not_compile_raises_on_all_ranks(comm):
    def fail():
        raise RuntimeError("no compiler")

    parts = [part([], fail if i == comm.size - 1 else lambda: None) for i in range(comm.size)]
    with raises_everywhere(comm, RuntimeError, match="no compiler"):
        share(comm, *parts)


def test_different_kernels_raise_on_all_ranks(comm):
    if comm.size == 1:
        pytest.skip("needs two ranks")
    parts = part([]), part([])
    with raises_everywhere(comm, CollectiveMismatch, match="ranks disagree"):
        share(comm, parts[min(comm.rank, 1)])


def test_functions_that_differ_are_compiled_by_each_rank(comm):
    """What one rank has captured must not come to another one in an image."""
    compiled = []
    parts = [dataclasses.replace(part(compiled), called=b"captured %d" % comm.rank) for _ in range(2)]
    parts.append(part(compiled))
    loaded = share(comm, *parts)
    names = [each.names[0].partition(",")[0] for each in parts]
    assert [loaded[each.names[1]] for each in parts] == names
    assert compiled == names


def test_numbers_of_functions_are_no_names(comm):
    """Each process counts its own functions."""
    number, mine = next(numbers), []

    def compile_part():
        mine.append(number)
        return b"image"

    names = [f"kernel {number}<float, UserOp#{number + 10 * comm.rank}>"]
    load = lambda image: dict.fromkeys(names, image)  # noqa: E731
    assert share(comm, kernels.Part(names=names, compile=compile_part, load=load)) == {names[0]: b"image"}
    assert len(mine) == (comm.rank == 0)


def test_ranks_sleep_while_one_compiles(comm):
    """Waiting inside of MPI keeps a processor busy, which the compiler needs."""
    slow = part([], lambda: time.sleep(1.5))
    mpi_bootstrap.sleeping_barrier(comm)
    began = time.process_time()
    share(comm, slow)
    assert time.process_time() - began < 0.7


def test_rank_0_reports_a_long_compilation(comm, caplog):
    caplog.set_level(logging.INFO, "pyncclx")
    slow, fast = part([], lambda: time.sleep(1.3)), part([])
    share(comm, slow)
    share(comm, fast)
    texts = [record.message for record in caplog.records]
    if comm.rank > 0:
        assert texts == []
        return
    begun, done = texts
    name = slow.names[0]
    architecture = re.escape(backends.select().architecture)
    assert re.match(rf"compiling {re.escape(name)} … for {architecture}, \d+\.\d s so far; kept in /", begun)
    assert re.match(rf"{re.escape(name)} … for {architecture}: ready after \d+\.\d s", done)


def test_a_compilation_may_take_longer_than_kernels_wait(comm, monkeypatch):
    monkeypatch.setenv("PYNCCLX_TIMEOUT", "0.2")
    slow = part([], lambda: time.sleep(1))
    assert share(comm, slow) == dict.fromkeys(slow.names, slow.names[0].partition(",")[0])

"""Kernels are compiled in the background by a process in nobody's way, which ends with the one that has started it."""

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx.backends.compilers import ahead, cache
from pyncclx.launch import kernels
from pyncclx.launch.sources import FILES
from pyncclx.operators.bound_op import bound_op
from support import fake_driver

nvrtc = pytest.importorskip("pyncclx.backends.compilers.nvrtc", reason="needs cuda-bindings")
BARRIER, ALLREDUCE = "collectives/barrier.cu", "collectives/allreduce.cu"
LONG = "allreduce_two_shot<float, Sum>"  # takes seconds to compile
ADD = ("float", "Sum")
NICE = ahead.NICE


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    """A cache and a helper of this test."""
    monkeypatch.setenv("PYNCCLX_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("PYNCCLX_READY", "0")
    monkeypatch.setattr(ahead, "_HELPER", ahead.PerProcess(ahead._Helper, lasting=True))
    monkeypatch.setattr(ahead, "NICE", 0)  # a busy machine would let it wait for minutes
    yield tmp_path / "own"
    if helper() is not None:
        helper().kill()
        helper().wait()
        helper().stdin.close()


def helper():
    made = ahead._HELPER.made
    return made and made._process


def wait_until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def status(pid):
    """State, nice value and more of a process, as proc(5) numbers them from 3 on; None if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def has_ended(pid):
    fields = status(pid)
    return fields is None or fields[0] == "Z"


def has_loaded_nvrtc(pid):
    return "libnvrtc.so" in Path(f"/proc/{pid}/maps").read_text()


def program():
    """Return the program as a module."""
    spec = importlib.util.spec_from_file_location("background", ahead._PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def never(*arguments):
    raise AssertionError("compiled again")


def test_it_has_the_lowest_priority_on_all_processors(monkeypatch):
    monkeypatch.setattr(ahead, "NICE", NICE)
    ahead.compile_ahead(BARRIER, ["barrier"], "sm_90")
    wait_until(lambda: int(status(helper().pid)[16]) == 19)
    assert os.sched_getaffinity(helper().pid) >= os.sched_getaffinity(0)


def test_what_was_compiled_in_the_background_is_found(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nowhere")])  # Python passes over what is no string
    ahead.compile_ahead(BARRIER, ["barrier"], "sm_90")
    wait_until(lambda: nvrtc.is_cached(BARRIER, ["barrier"], "sm_90"))
    monkeypatch.setattr(nvrtc, "compile_kernels", never)
    assert list(nvrtc.compile_cached(BARRIER, ["barrier"], "sm_90").lowered_names) == ["barrier"]


def test_one_process_for_all_up_to_a_number(monkeypatch):
    monkeypatch.setattr(ahead, "MOST", 2)
    pids = set()
    for architecture in "sm_80", "sm_80", "sm_90", "sm_100":
        ahead.compile_ahead(BARRIER, ["barrier"], architecture)
        pids.add(helper().pid)
    assert len(pids) == 1
    wait_until(lambda: nvrtc.is_cached(BARRIER, ["barrier"], "sm_90"))
    assert len(ahead._HELPER.made._asked) == 2
    assert not nvrtc.is_cached(BARRIER, ["barrier"], "sm_100")


def test_nobody_waits_for_it():
    """It is stopped while it compiles, as if it got no processor."""
    ahead.compile_ahead(ALLREDUCE, [LONG], "sm_90")
    wait_until(lambda: has_loaded_nvrtc(helper().pid))
    os.kill(helper().pid, signal.SIGSTOP)
    wait_until(lambda: status(helper().pid)[0] == "T")
    name = "allreduce_one_shot<float, Sum>"
    assert list(nvrtc.compile_cached(ALLREDUCE, [name], "sm_90").lowered_names) == [name]
    with cache._locked(nvrtc._name(ALLREDUCE, [LONG], "sm_90")):  # which compile_cached would do
        pass


PARENT = f"""
import time
from pyncclx.backends.compilers import ahead
ahead.NICE = 0
ahead.compile_ahead({ALLREDUCE!r}, [{LONG!r}], "sm_90")
print(ahead._HELPER.made._process.pid, flush=True)
time.sleep(600)
"""


def test_it_ends_with_its_parent_and_leaves_nothing(own):
    """However it ends; while it compiles."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        wait_until(lambda: has_loaded_nvrtc(pid))
        process.kill()
    wait_until(lambda: has_ended(pid))
    assert [path for path in own.iterdir() if path.suffix != ".cubin"] == []


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not show who waits for a lock")
def test_of_two_jobs_one_compiles_at_a_time(own):
    """The other one finds in the cache what the first has compiled."""
    with program().alone():
        ahead.compile_ahead(BARRIER, ["barrier"], "sm_90")
        wait_until(lambda: re.search(rf"-> FLOCK .* {helper().pid} ", Path("/proc/locks").read_text()))
        assert not has_loaded_nvrtc(helper().pid)
        nvrtc.compile_cached(BARRIER, ["barrier"], "sm_90")
    ahead.compile_ahead(BARRIER, ["barrier"], "sm_80")
    wait_until(lambda: nvrtc.is_cached(BARRIER, ["barrier"], "sm_80"))
    wait_until(lambda: sorted(path.suffix for path in own.iterdir()) == [".cubin", ".cubin"])


def test_it_is_no_rank():
    """It would be a second process with the parent's rank."""
    code = f"""
import contextlib, runpy
names = runpy.run_path({ahead._PROGRAM.as_posix()!r})
names["compile_kernels"].__globals__["writing"] = contextlib.nullcontext()
assert names["compile_kernels"]({BARRIER!r}, ["barrier"], "sm_90")
from mpi4py import MPI
assert not MPI.Is_initialized()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert nvrtc.is_cached(BARRIER, ["barrier"], "sm_90")


def test_without_room_it_ends(monkeypatch):
    """Nothing is compiled that nobody could find."""
    monkeypatch.setattr(cache, "_keep", lambda name, content: None)
    assert not nvrtc.compile_beside(BARRIER, ["barrier"], "sm_90", contextlib.nullcontext())


# ---- what is compiled ahead ---------------------------------------------------------------------------------------


class Device:
    """Compiles nothing; notes what is to be compiled ahead."""

    architecture, compiles_together, loads_beside_kernels = "sm_90", False, True

    def __init__(self):
        self.ahead = []

    def compile(self, file, instantiations, called=None, *, within=()):
        return "\n".join(instantiations).encode()

    def compile_ahead(self, file, several):
        self.ahead.append((file, several))

    def load(self, image, called=None):
        return dict.fromkeys(image.decode().split("\n"), 1)


class Team:
    """What `kernels.get` needs of one."""

    def __init__(self):
        self.device, self.functions, self.errors = Device(), {}, None


@pytest.fixture
def team(monkeypatch):
    monkeypatch.setattr(kernels, "_loaded", {})
    monkeypatch.setattr(kernels, "_not_looked_for", list(kernels.LIKELY))
    monkeypatch.setenv("PYNCCLX_AHEAD", "1")
    return Team()


def test_short_kernels_that_move_bytes_and_the_others_of_the_operation(team):
    for _ in range(2):
        kernels.get(MPI.COMM_SELF, team, ALLREDUCE, "allreduce_one_shot", *ADD)
    others = [[f"{kernel}<float, Sum>"] for kernel in FILES[ALLREDUCE].kernels if kernel != "allreduce_one_shot"]
    *of_bytes, last = team.device.ahead
    assert last == (ALLREDUCE, others)
    expected = {each: f"{each}<false>" for each in ("allgather", "alltoall", "gather", "scatter")}
    expected["bcast"] = "bcast_direct<false>"
    assert dict(of_bytes) == {f"collectives/{file}.cu": [[name]] for file, name in expected.items()}


def test_off_by_a_setting_and_for_a_programs_operator(team, monkeypatch):
    template = bound_op(lambda a, b: a, np.dtype("f4")).template
    kernels.get(MPI.COMM_SELF, team, ALLREDUCE, "allreduce_one_shot", *template)
    monkeypatch.setenv("PYNCCLX_AHEAD", "0")
    kernels.get(MPI.COMM_SELF, team, ALLREDUCE, "allreduce_one_shot", *ADD)
    assert team.device.ahead == []
    monkeypatch.setenv("PYNCCLX_AHEAD", "perhaps")
    with pytest.raises(ValueError, match="PYNCCLX_AHEAD is 'perhaps'"):
        kernels.get(MPI.COMM_SELF, team, ALLREDUCE, "allreduce_two_shot", *ADD)


def test_a_gpu_asks_for_what_the_cache_has_not(monkeypatch):
    asked = []
    with fake_driver.installed() as fake:
        gpu = object.__new__(fake.module("kernels").GpuKernels)
        gpu.architecture = "sm_90"
        monkeypatch.setattr(ahead, "compile_ahead", lambda *arguments: asked.append(arguments))
        nvrtc.compile_cached(BARRIER, ["barrier"], "sm_90")
        gpu.compile_ahead(BARRIER, [["barrier"]])
        assert asked == []
        gpu.compile_ahead(ALLREDUCE, [[LONG]])
    assert asked == [(ALLREDUCE, [LONG], "sm_90")]

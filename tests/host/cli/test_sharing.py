"""What `info` finds out of how ranks share memory."""

import json
import os
import socket
import sys
from pathlib import Path

import pytest
from mpi4py import MPI

import launch
from pyncclx.tools.cli import sharing

ROOT = Path(__file__).resolve().parents[3]
FINE = {"descriptors": None, "proc": None, "pid_namespace": 1, "user_namespace": 2, "ptrace_scope": 1}


def test_all_is_fine_here():
    found = sharing.of_rank(MPI.COMM_SELF)
    assert (found["descriptors"], found["proc"]) == (None, None)
    assert found["pid_namespace"] == os.stat("/proc/self/ns/pid").st_ino


def test_descriptors_that_are_refused(monkeypatch):
    """As in a sandbox without Unix sockets."""

    def refuse(*arguments):
        raise PermissionError("no sockets")

    monkeypatch.setattr(socket, "socket", refuse)
    assert sharing.of_rank(MPI.COMM_SELF)["descriptors"].startswith("no sockets")


def test_a_letter_that_does_not_arrive(monkeypatch):
    monkeypatch.setattr(sharing, "_SECONDS", 0.0)
    monkeypatch.setattr(sharing.Mailbox, "post", lambda *arguments: True)
    assert "has not arrived" in sharing.of_rank(MPI.COMM_SELF)["descriptors"]


def test_paths_in_proc(tmp_path):
    fd = os.memfd_create("right")
    path = f"/proc/{os.getpid()}/fd/{fd}"
    for opened in (sharing.opened, sharing.in_a_child):
        assert opened(path, "right") is None
        assert "another process" in opened(path, "wrong")
        assert "No such file" in opened("/proc/0/fd/3", "right")
    os.close(fd)


@pytest.mark.parametrize(("text", "scope"), [("0\n", 0), ("3\n", 3), ("?\n", None), (None, None)])
def test_ptrace_scope(tmp_path, text, scope):
    if text:
        (tmp_path / "sys/kernel/yama").mkdir(parents=True)
        (tmp_path / "sys/kernel/yama/ptrace_scope").write_text(text)
    assert sharing.ptrace_scope(tmp_path) == scope


def test_a_job_is_as_good_as_its_worst_rank():
    ranks = [FINE, FINE | {"proc": "no", "pid_namespace": 7, "ptrace_scope": 2}, FINE | {"pid_namespace": 9}]
    facts = sharing.combined(ranks, (0, 0, 1))
    assert facts == {
        "descriptors_refused": None,
        "proc_refused": "rank 1: no",
        "pid_namespaces": 2,
        "user_namespaces": 1,
        "ptrace_scope": 2,
    }
    assert [*sharing.problems(facts)] == []
    refused, several, scope = sharing.advice(facts, on_host=True)
    assert "rank 1: no" in refused
    assert "go through MPI" in refused
    assert [*sharing.advice(facts, on_host=False)] == [several, scope]
    assert "several PID namespaces" in several
    assert "ptrace_scope is 2" in scope
    assert "does not open" in sharing.line(facts)


def test_ranks_that_cannot_send_descriptors():
    facts = sharing.combined([FINE | {"descriptors": "refused"}], (0,))
    (problem,) = sharing.problems(facts)
    assert "rank 0: refused" in problem
    assert "are refused" in sharing.line(facts)


def test_a_system_without_yama():
    facts = sharing.combined([FINE | {"ptrace_scope": None}], (0,))
    assert facts["ptrace_scope"] is None
    assert [*sharing.advice(facts, on_host=True)] == []


@pytest.mark.parametrize("count", [1, 3])
def test_info_has_it(count):
    arguments = "-m", "pyncclx", "info", "--json"
    command = launch.mpiexec(count, *arguments) if count > 1 else [sys.executable, *arguments]
    done = launch.ended(command, launch.environment("host") | {"PYTHONPATH": str(ROOT)}, 100, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)["sharing"]
    assert (found["descriptors_refused"], found["proc_refused"]) == (None, None)
    assert (found["pid_namespaces"], found["user_namespaces"]) == (1, 1)

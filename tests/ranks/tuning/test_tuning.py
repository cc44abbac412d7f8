"""`python -m pyncclx tune` writes a table by which the next communicators choose algorithms."""

import json

import pytest
from mpi4py import MPI

from pyncclx import tuning
from pyncclx.tools.bench import tune
from pyncclx.tools.cli import parse


@pytest.fixture
def tuned(comm, tmp_path_factory, monkeypatch):
    """A cache folder that all ranks share, and the arguments of a short run."""
    folder = MPI.Comm.bcast(comm, tmp_path_factory.mktemp("tuned") if comm.rank == 0 else None)
    monkeypatch.setattr(tune, "cache_directory", lambda: folder)
    monkeypatch.setattr(tuning, "cache_directory", lambda: folder)
    return folder, parse(["tune", "-b", "64", "-e", "256", "-n", "1"])


@pytest.mark.parametrize("comm", ["world"], indirect=True)
def test_table(comm, tuned, capsys):
    folder, arguments = tuned
    kind = comm.team.device.kind
    path = folder / tuning.file_name(kind)
    if comm.rank == 0:
        path.write_text(json.dumps({"environment": {}, "limits": {"77": {"bcast_direct": 5}}}))
    tune.run(arguments)
    MPI.Comm.Barrier(comm)
    table = tuning.read(path)
    limits = table["limits"][str(comm.size)]
    assert table["limits"]["77"] == {"bcast_direct": 5}
    assert table["environment"][str(comm.size)]["device"] == kind
    assert len(limits) == sum(len(algorithms) - 1 for algorithms in tuning.ALGORITHMS.values())
    with comm.Dup() as dup:
        assert dict(dup.team.layout.limits) == limits
    printed = capsys.readouterr().out
    assert (f"# allreduce, {comm.size} ranks" in printed) == (comm.rank == 0)
    assert printed.count("*") == (3 * len(tuning.ALGORITHMS) + len(tuning.ALGORITHMS) if comm.rank == 0 else 0)


@pytest.mark.usefixtures("heap")
@pytest.mark.parametrize("comm", ["world"], indirect=True)
def test_rank_0_decides(comm, tuned):
    """Its table counts, whatever the others have."""
    folder, _ = tuned
    name = tuning.file_name(comm.team.device.kind)
    if comm.rank == 0:
        (folder / name).write_text(json.dumps({"limits": {str(comm.size): {"bcast_direct": 33}}}))
    MPI.Comm.Barrier(comm)
    with comm.Dup() as dup:
        assert dup.team.layout.limits == (("bcast_direct", 33),)
        assert "the measured table has bcast_direct up to 33 bytes" in dup.explain("Bcast", 33)
        assert "the built-in rule has allreduce_one_shot up to" in dup.explain("Allreduce", 33)

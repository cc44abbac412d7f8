"""python -m pyncclx run and info, and mpi4py's own programs under the first."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import launch
from pyncclx.system import settings
from pyncclx.tools.cli import doctor

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
import numpy as np
from mpi4py import MPI
import mpi4py.MPI
comm = MPI.COMM_WORLD
assert mpi4py.MPI is MPI and MPI.__name__ == "pyncclx.MPI" and __name__ == "__main__" and __file__ == sys.argv[0]
x, y = np.ones(1000), np.zeros(1000)
comm.Allreduce(x, y)
assert comm.blocking == "host" and (y == comm.size).all() and comm.allreduce(1) == comm.size
request = comm.Allgather_init(x[:1], y[: comm.size])
for _ in range(3):
    MPI.Prequest.Startall([request])
    request.Wait()
win = MPI.Win.Allocate(8000, 8, comm=comm)
win.Fence()
win.Put(x, 0)
win.Fence()
win.Free()
if sys.argv[1] == "raise" and comm.rank == comm.size - 1:
    raise ValueError("the reason")
if sys.argv[1] == "raise":
    comm.recv(source=comm.size - 1)
sys.exit(0)
"""


def ranks(count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m pyncclx` on some ranks of the host device."""
    return launch.job(count, "-m", "pyncclx", *arguments, PYNCCLX_HEAP="512K")


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def test_an_exception_ends_all_ranks(program: str) -> None:
    done = ranks(2, "run", program, "raise")
    assert done.returncode != 0
    assert "the reason" in done.stderr


@pytest.mark.parametrize("module", ["helloworld", "ringtest", "pingpong"])
def test_mpi4py_bench(module: str) -> None:
    short = ["-n", "8", "-l", "10", "-s", "0"] if module == "pingpong" else []
    done = ranks(2, "run", "-m", "mpi4py.bench", module, *short)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_info_without_mpiexec() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pyncclx", "info"], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for word in ("GPUs:", "MPI:", "Launcher:", "Kernel cache:", "Host compiler:", "NCCL"):
        assert word in done.stdout
    assert lines[-1].startswith("-> ")
    assert len(lines) < 24 + len(settings.SETTINGS)


def info(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`python -m pyncclx info` in one process."""
    environment = {**launch.environment("host"), "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-m", "pyncclx", "info", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


def test_info_as_json() -> None:
    done = info("--json", PYNCCLX_HAEP="1M")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert {each["name"] for each in printed["settings"]} == {each.name for each in settings.SETTINGS}
    device = next(each for each in printed["settings"] if each["name"] == "PYNCCLX_DEVICE")
    assert (device["value"], device["source"]) == ("host", "environment")
    assert printed["problems"] == []
    assert any("PYNCCLX_HEAP" in text for text in printed["advice"])
    assert printed["mpi"]["name"] in ("Open MPI", "MPICH")


@pytest.mark.parametrize("arguments", [(), ("--json",)])
@pytest.mark.parametrize(("name", "value"), [("TIMEOUT", "soon"), ("DEVICE", "cpu"), ("ENGINE", "ucx")])
def test_info_exits_with_1_if_programs_would_not_run(arguments: tuple[str, ...], name: str, value: str) -> None:
    done = info(*arguments, **{f"PYNCCLX_{name}": value})
    assert done.returncode == 1, done.stderr
    assert f"PYNCCLX_{name} is '{value}'" in done.stdout


def test_info_asks_for_nothing_that_is_so() -> None:
    assert "PYNCCLX_DEVICE=host" not in info().stdout
    if launch.gpus() == 0:
        assert "-> No GPU: the kernels can run on the CPU, slowly: PYNCCLX_DEV" in info(PYNCCLX_DEVICE="").stdout


def over_nodes(tmp_path: Path, count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m pyncclx` on some ranks, in turn on one of two pretend nodes."""
    program = tmp_path / "over_nodes.py"
    program.write_text(
        "import os, sys\nfrom mpi4py import MPI\nfrom pyncclx.tools import cli\n"
        "os.environ['PYNCCLX_NODE'] = str(MPI.COMM_WORLD.rank % 2)\n"
        f"sys.argv[1:] = {list(arguments)}\ncli.main()\n"
    )
    return launch.job(count, str(program), seconds=200)


def test_info_of_several_nodes(tmp_path: Path) -> None:
    done = over_nodes(tmp_path, 3, "info", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    printed = json.loads(done.stdout)["between_nodes"]
    assert (printed["ranks_of_nodes"], printed["rails"], printed["engine"]) == ([2, 1], 1, "mpi")
    assert [node["ranks"] for node in printed["nodes"]] == [[0, 2], [1]]
    assert all(node["host"] for node in printed["nodes"])


def test_doctor() -> None:
    done = ranks(2, "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["ok"] * len(doctor.TRIALS)
    assert lines[-1] == "All works, on 2 rank(s)."


def test_doctor_on_several_nodes(tmp_path: Path) -> None:
    """The doctor leaves out trials that cannot run over nodes; all others succeed."""
    done = over_nodes(tmp_path, 2, "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout
    assert done.stdout.splitlines()[-1] == "All works, on 2 rank(s)."


def test_doctor_names_the_rank_and_the_element(tmp_path: Path) -> None:
    """A trial whose result is wrong on rank 1."""
    program = tmp_path / "wrong.py"
    program.write_text(
        "import numpy as np\nfrom mpi4py import MPI\nfrom pyncclx.tools.cli import doctor, parse\n"
        "def wrong(job):\n"
        "    job.compare('Trial', job.array(np.array([5, 6 + job.comm.rank])), np.array([5, 6]))\n"
        "    return ''\n"
        "doctor.TRIALS['Allreduce'] = wrong\n"
        "doctor.run(parse(['doctor']))\n"
    )
    done = launch.job(2, str(program), PYNCCLX_HEAP="512K")
    assert done.returncode == 1
    assert done.stdout.splitlines()[1].startswith("FAILED Allreduce")
    text = "rank 1: AssertionError: Trial: 1 of 2 elements are wrong: element 1 is 7, not 6"
    assert done.stdout.splitlines()[2].strip() == text


def test_a_file_and_its_arguments(tmp_path: Path) -> None:
    """As Python has it: `__file__` is absolute. What spawns itself by that name finds it in the child's arguments."""
    (tmp_path / "there.py").write_text("import sys; print(__name__, __file__ == sys.argv[0], sys.argv, sys.path[0])")
    command = [sys.executable, "-m", "pyncclx", "run", "there.py", "-m", "x"]
    environment = {**launch.environment("host"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split(maxsplit=2)[:2] == ["__main__", "True"]
    assert str([str(tmp_path / "there.py"), "-m", "x"]) in done.stdout
    assert done.stdout.split()[-1] == str(tmp_path.resolve())


@pytest.mark.parametrize("how", ["-c", "-"])
def test_code(how: str) -> None:
    code = "import sys\nfrom mpi4py import MPI\nprint(MPI.__name__, __name__, sys.argv)"
    command = [sys.executable, "-m", "pyncclx", "run", how, *([code] if how == "-c" else []), "x", "-y"]
    environment = {**launch.environment("host"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, input=code, text=True, check=True)
    assert done.stdout.strip() == f"pyncclx.MPI __main__ {[how, 'x', '-y']}"


LATE = """
import mpi4py
mpi4py.rc.initialize = False
mpi4py.rc.thread_level = "single"
{first}
from mpi4py import MPI as theirs
{then}
assert not MPI.Is_initialized()
assert MPI.Init_thread(MPI.THREAD_SERIALIZED) == MPI.THREAD_SERIALIZED == MPI.Query_thread()
import numpy as np
x = np.full(100, 1.0)
MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, x)
assert (x == MPI.COMM_WORLD.size).all()
MPI.COMM_WORLD.free()
MPI.Finalize()
print("ended")
"""
SETTINGS = """
import mpi4py
mpi4py.rc(thread_level="serialized", errors="fatal", recv_mprobe=False)
from mpi4py import MPI
assert MPI.Query_thread() == MPI.THREAD_SERIALIZED
assert MPI.COMM_WORLD.Get_errhandler() == MPI.ERRORS_ARE_FATAL
print("ended")
"""


@pytest.mark.parametrize("first", ["", "import pyncclx; pyncclx.Op", "from pyncclx.operators.ops import AVG"])
def test_a_late_init(tmp_path: Path, first: str) -> None:
    """`rc.initialize = False` under the runner: a program of any order of imports initialises MPI itself."""
    program = tmp_path / "late.py"
    program.write_text(LATE.format(first=first, then="MPI = theirs\nassert MPI.__name__ == 'pyncclx.MPI'"))
    done = ranks(2, "run", "--report", str(program))
    assert (done.returncode, done.stdout.split()[:1]) == (0, ["ended"]), done.stderr


def test_a_late_init_with_the_swapped_import(tmp_path: Path) -> None:
    program = tmp_path / "late.py"
    program.write_text(LATE.format(first="from pyncclx import MPI", then=""))
    done = launch.job(2, str(program), PYNCCLX_HEAP="512K")
    assert (done.returncode, done.stdout.split()) == (0, ["ended"] * 2), done.stderr


def test_settings_of_mpi4py(tmp_path: Path) -> None:
    program = tmp_path / "settings.py"
    program.write_text(SETTINGS)
    done = ranks(2, "run", str(program))
    assert (done.returncode, done.stdout.split()) == (0, ["ended"] * 2), done.stderr


@pytest.mark.parametrize("words", [[], ["--gpu-aware"]], ids=["by_itself", "gpu_aware"])
def test_programs_that_ask_whether_mpi_is_gpu_aware(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """A package with the names of heat's decides, and reads what it has decided, as heat does."""
    package = tmp_path / "heat" / "core"
    package.mkdir(parents=True)
    (tmp_path / "heat" / "__init__.py").write_text("from .core import communication\n")
    (package / "__init__.py").touch()
    (package / "_config.py").write_text("from mpi4py import MPI\nGPU_AWARE_MPI = False\n")
    (package / "communication.py").write_text("from ._config import GPU_AWARE_MPI\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import os, heat\nprint(heat.core.communication.GPU_AWARE_MPI, os.environ.get('PYLOPS_MPI_CUDA_AWARE'))\n"
    )
    monkeypatch.delenv("PYLOPS_MPI_CUDA_AWARE", raising=False)
    done = launch.job(1, "-m", "pyncclx", "run", *words, str(program), PYTHONPATH=f"{ROOT}:{tmp_path}")
    expected = ["True", "1"] if words else ["False", "None"]
    assert (done.returncode, done.stdout.split()) == (0, expected), done.stderr


def test_importing_pyncclx_initialises_nothing() -> None:
    code = "import pyncclx, sys; assert 'mpi4py.MPI' not in sys.modules; "
    code += "print(all(map(pyncclx.__getattr__, pyncclx.__all__)))"
    environment = {**launch.environment("host"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


SPAWNS = """
import sys
import numpy as np
from mpi4py import MPI
child = "--child" in sys.argv
other = MPI.Comm.Get_parent() if child else MPI.COMM_WORLD.Spawn(sys.executable, [__file__, "--child"], 1)
assert MPI.__name__ == "pyncclx.MPI" and sys.argv[0] == __file__
with other.Merge(child) as both:
    x = np.full(1000, 1.0)
    both.Allreduce(MPI.IN_PLACE, x)
    assert (x == 2).all()
other.Disconnect()
if not child:
    print("ended")
"""


def test_what_a_program_spawns(tmp_path: Path) -> None:
    """It runs under the runner, too: else the ranks of one communicator disagree on who moves arrays, and hang."""
    program = tmp_path / "spawns.py"
    program.write_text(SPAWNS)
    done = ranks(1, "run", str(program))
    assert (done.returncode, done.stdout.split()) == (0, ["ended"]), done.stderr

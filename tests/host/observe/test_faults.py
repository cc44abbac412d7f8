"""Programs go wrong on three ranks, and what they leave is analysed: support/faulty.py has what each does."""

import json
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import launch

ROOT = Path(__file__).resolve().parents[3]
RANKS = 3
SECONDS = 150.0
CAUSES = {  # of the program: the verdict's cause, the ranks, and a part of the sentence
    "dead": ("dead", [1], "rank 1 died"),
    "stalled_before": ("stalled before the call", [1], "in stalled_before; its last call was Bcast #40"),
    "exception": ("exception", [1], "KeyError: 'no such batch'"),
    "stopped": ("stopped", [1], "rank 1 is stopped"),
    "ended": ("ended", [1], "the program of rank 1 has ended"),
    "different_operation": ("different operation", [1], "rank 1 made Bcast"),
    "different_root": ("different argument", [1], "has the root 2 on rank 1, where the others have 0"),
    "different_operator": ("different argument", [1], "has the operator MAX on rank 1, where the others have SUM"),
    "different_type": ("different argument", [1], "has the type int32 on rank 1, where the others have float32"),
    "different_count": ("different argument", [1], "has the count 500 on rank 1, where the others have 1000"),
    "order_of_communicators": ("order of communicators", None, "use communicators in different orders"),
    "missing_partner": ("missing message partner", [0], "rank 1 waits in Recv from rank 0 with tag 7"),
    "mutual_receives": ("missing message partner", [0, 1], "has sent no such message"),
    "unmatched_tag": ("unmatched tag", [0], "rank 0 sent with tag 8, and rank 1 waits for one with tag 7"),
    "lock_cycle": ("lock cycle", [0, 1], "rank 0 waits for rank 1 in Lock of rank 1"),
    "full_capacity": ("full capacity", [1], "rank 1 has room for 2 rows from rank 1, which sent 4"),
    "gpu_error": ("GPU error", [1], "cudaErrorIllegalAddress"),
    "compile_wait": ("compile wait", [0], "rank 0 compiles allreduce_one_shot<short, BitXor>"),
    "settings_differ": ("settings differ", [1], "PYNCCLX_CHECK is '1' on rank 1 and not set on the others"),
    "slow_rank": ("slow rank", [1], "rank 1 is slow: of the last 50 calls it came last to"),
    "healthy": (None, None, ""),
}
SAMPLED = ("dead", "healthy")
UNTIMED = (*SAMPLED, "exception", "gpu_error", "full_capacity", "slow_rank")  # where no wait ends at PYNCCLX_TIMEOUT


def cause_of(name):
    return pytest.param(name, marks=() if name in SAMPLED else pytest.mark.thorough)


@contextmanager
def failed(folder, name):
    """Run the program until it has ended, or all ranks have dumped by a signal; end it after the block."""
    variables = {**launch.environment("host"), "PYNCCLX_DUMP": str(folder)}
    variables |= {"PYNCCLX_TIMEOUT": "60" if name in UNTIMED else "3"}
    variables |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PYNCCLX_HEAP": "8M"}
    command = launch.mpiexec(RANKS, str(ROOT / "tests/support/faulty.py"), name)
    with (folder / "out").open("w") as out, launch.own_folder() as own:
        job = subprocess.Popen(command, env=variables | own, stdout=out, stderr=out, start_new_session=True)
        deadline = time.monotonic() + SECONDS
        while job.poll() is None and time.monotonic() < deadline and not all_have_dumped(folder):
            time.sleep(0.1)
        try:
            yield
        finally:
            launch.end(job)


def all_have_dumped(folder):
    records = [json.loads(path.read_text()) for path in folder.glob("rank-*.json")]
    return len(records) == RANKS and all("SIGUSR1" in record["reason"] for record in records)


def analyse(folder):
    command = [sys.executable, "-m", "pyncclx", "analyze", "--json", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=ROOT)
    verdicts = json.loads(done.stdout or pytest.fail(done.stderr))
    assert done.returncode == bool(verdicts), done.stderr
    return verdicts


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [cause_of(name) for name in CAUSES])
def test_the_cause_is_named(tmp_path, name):
    cause, ranks, part = CAUSES[name]
    with failed(tmp_path, name):
        verdicts = analyse(tmp_path)
    out = (tmp_path / "out").read_text()
    if cause is None:
        assert verdicts == [], out
        return
    assert verdicts, out
    assert verdicts[0]["cause"] == cause, (verdicts, out)
    assert ranks in (None, verdicts[0]["ranks"])
    assert part in verdicts[0]["sentence"]
    if name == "dead":
        no_dump_of_the_dead(tmp_path)


def no_dump_of_the_dead(folder):
    """It has none, of course; here its flight recorder is on another host, too."""
    assert not (folder / "rank-1.json").exists()
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    for path in folder.glob("rank-*.json"):
        (elsewhere / path.name).write_text(json.dumps(json.loads(path.read_text()) | {"file": None}))
    (verdict, *_) = analyse(elsewhere)
    assert (verdict["cause"], verdict["ranks"]) == ("dead", [1])
    assert "it has left no record" in verdict["sentence"]
    shutil.rmtree(elsewhere)

"""A long-lived job of ranks that performs one program after another, and is replaced when one hangs or raises."""

import contextlib
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import launch
from programs.program import Program
from programs.rank import receive, send
from programs.ways import WAYS

HEAP = "8M"  # of ranks on the host device
# CUDA distributes the streams of a process among so many queues. With two, a kernel that waits for a peer may block the
# kernel that the peer waits for (docs/sharp_bits.md).
QUEUES = "8"
START_S = 120.0  # until all ranks have called in
# PYNCCLX_TIMEOUT of the ranks. A busy machine may not run one of them for many seconds.
TIMEOUT_S = "20"
HANG_S = 30.0  # without an answer from any rank
AFTER_ERROR_S = 1.0  # for the other ranks, once one has raised
ABREAST = 2  # ways that perform programs at once
KERNELS = ("float64", "int32", "complex128", "bytes"), ("SUM", "MAX", "MIN")  # which programs use, as draw/ has them
WORKER = str(Path(__file__).resolve().parent / "worker.py")


@dataclass
class Outcome:
    """What the ranks returned; by rank, None where there was no answer."""

    notes: list[list[tuple[str, Any]] | None]
    errors: list[str] = field(default_factory=list)  # in words
    detail: str = ""  # tracebacks, stacks of ranks that hang


class Job:
    """The ranks of one way."""

    def __init__(self, way: str, ranks: int) -> None:
        self.way, self.ranks = way, ranks
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def perform(self, program: Program) -> Outcome:
        """Perform a program on all ranks."""
        return self.perform_all([program])[0]

    def perform_all(self, programs: Sequence[Program]) -> list[Outcome]:
        """Perform programs one after another; what comes after one that hangs or raises, in a new job."""
        outcomes: list[Outcome] = []
        while len(outcomes) < len(programs):
            outcomes += self._perform(programs[len(outcomes) :])
        return outcomes

    def _perform(self, programs: Sequence[Program]) -> list[Outcome]:
        """Perform programs; return the outcomes up to the first that hangs or raises."""
        if self._process is None:
            self._start()
        answers: list[list[Any]] = [[] for _ in range(self.ranks)]
        try:
            for link in self._links:
                send(link, [program.listing() for program in programs])
            self._collect(answers, len(programs))
        except OSError:
            pass
        done = itertools.takewhile(
            lambda of_ranks: all(answer and not answer[1] for answer in of_ranks), itertools.zip_longest(*answers)
        )
        outcomes = [Outcome([answer[0] for answer in of_ranks]) for of_ranks in done]
        if len(outcomes) < len(programs):
            at = len(outcomes)
            outcomes.append(self._failed([each[at] if len(each) > at else None for each in answers]))
        return outcomes

    def _failed(self, answers: list[Any]) -> Outcome:
        """Return the outcome of a program that some ranks have not done, and end the job."""
        outcome = Outcome([answer[0] if answer else None for answer in answers])
        for rank, answer in enumerate(answers):
            if answer and answer[1]:
                outcome.errors.append(f"rank {rank}, {answer[1]}")
                outcome.detail += f"rank {rank}: {answer[2]}\n"
        silent = [rank for rank, answer in enumerate(answers) if answer is None]
        if silent:
            outcome.errors.append(f"ranks {silent} did not end")
            outcome.detail += self._stacks(silent)
        self.end()
        return outcome

    def _start(self) -> None:
        self.starts += 1
        way = WAYS[self.way]
        self._folder = tempfile.TemporaryDirectory(prefix="programs-")
        path = f"{self._folder.name}/link"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(self.ranks)
            listener.settimeout(START_S)
            variables = launch.environment(launch.device(self.ranks)) | {"PYNCCLX_TIMEOUT": TIMEOUT_S} | way.variables
            variables |= launch.folder_of(self._folder.name)
            if variables.get("PYNCCLX_DEVICE") == "host":
                variables.setdefault("PYNCCLX_HEAP", HEAP)
            else:
                variables.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", QUEUES)
            runner = ["-m", "pyncclx", "run"] if way.start == "runner" else []
            self._output = open(f"{self._folder.name}/output", "w+b")  # noqa: SIM115  as long as the job
            self._process = subprocess.Popen(
                launch.mpiexec(self.ranks, *runner, WORKER, self.way, path),
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=launch.end_with_parent,  # noqa: PLW1509  it takes no lock
            )
            self._links, self._processes = [None] * self.ranks, [-1] * self.ranks
            try:
                for _ in range(self.ranks):
                    link, _ = listener.accept()
                    rank, pid = receive(link)
                    self._links[rank], self._processes[rank] = link, os.pidfd_open(pid)
            except (OSError, TypeError):
                text = self._said()
                self.end()
                raise SystemExit(f"the job {self.way} of {self.ranks} ranks did not start:\n{text}") from None

    def _collect(self, answers: list[list[Any]], count: int) -> None:
        """Receive so many answers of each rank, or those to the first program that some rank does not do."""
        most, end = count, time.monotonic() + HANG_S
        rank_of = dict(zip(self._links, range(self.ranks), strict=True))
        while time.monotonic() < end:
            left = [link for link, rank in rank_of.items() if len(answers[rank]) < count]
            if not left:
                return
            ready, _, _ = select.select(left, [], [], end - time.monotonic())
            for link in ready:
                of_rank = answers[rank_of[link]]
                of_rank.append(receive(link))
                if of_rank[-1] and not of_rank[-1][1]:
                    end = end if count < most else time.monotonic() + HANG_S
                elif len(of_rank) <= count:
                    count = len(of_rank)
                    end = min(end, time.monotonic() + AFTER_ERROR_S + float(TIMEOUT_S))

    def _said(self) -> str:
        self._output.seek(0)
        return self._output.read().decode(errors="replace")[-4000:]

    def _stacks(self, ranks: list[int]) -> str:
        """Return where ranks are that did not end, and what the job has printed."""
        for rank in ranks:
            self._signal(rank, signal.SIGUSR2)
        time.sleep(0.3)
        texts = [f"rank {rank} is at\n{Path(f'{self._folder.name}/link.{rank}').read_text()}" for rank in ranks]
        return "\n".join([*texts, self._said()])

    def _signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank. By then its process number may be that of another process."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._processes[rank], number)

    def end(self) -> None:
        """End the ranks; the next program starts new ones."""
        if self._process is None:
            return
        for link in self._links:
            if link is not None:
                link.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)
        for rank, process in enumerate(self._processes):
            if process >= 0:
                self._signal(rank, signal.SIGKILL)
                os.close(process)
        launch.end(self._process)
        self._output.close()
        self._folder.cleanup()
        self._process = None


class Jobs:
    """One job for each way, of one number of ranks."""

    def __init__(self, ways: list[str], ranks: int) -> None:
        self.ranks = ranks
        self.by_way = {way: Job(way, ranks) for way in ways}
        self._threads = ThreadPoolExecutor(ABREAST)

    def perform_all(self, programs: Sequence[Program]) -> dict[str, list[Outcome]]:
        """Perform programs in each way, some ways at once."""
        running = {way: self._threads.submit(job.perform_all, programs) for way, job in self.by_way.items()}
        return {way: each.result() for way, each in running.items()}

    def end(self) -> None:
        for job in self.by_way.values():
            job.end()
        self._threads.shutdown()  # not before: what a thread has started ends with it


def build_kernels() -> None:
    """Compile the kernels of the host device that programs use, so that no rank waits for a compiler."""
    types, operators = KERNELS
    command = ["-m", "pyncclx", "build", "--arch", "host", "--types", *types, "--ops", *operators]
    subprocess.run([sys.executable, *command], env=launch.environment("host"), check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def jobs(ways: list[str], ranks: int) -> Iterator[Jobs]:
    """Jobs that end with the block."""
    made = Jobs(ways, ranks)
    try:
        yield made
    finally:
        made.end()

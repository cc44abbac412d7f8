"""Fixtures and rules for tests on several ranks, each rank a pytest of its own (mpiexec -n N pytest).

Four rules: all ranks run the same tests; the outcome of a test is agreed (a failure on one rank is a
failure on all, and no rank goes on alone into the next test); a test that hangs ends the whole run and
shows the stacks; only rank 0 reports. For one process the third rule alone matters.
"""

import faulthandler
import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from support import crashes, open_receives, sample

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
VENDOR = MPI.get_vendor()[0]

# Seconds that a test may take, unless it is marked `timeout(seconds)`.
TIMEOUT = 300.0
# Seconds that a rank on which it failed waits for the others, who may be stuck without it.
GRACE = 30.0
# Seconds from the first rank's last word to the end, in which the other ranks can write theirs.
LINGER = 1.0

# With PYNCCLX_TEST_NODES=a,a,b,b ranks 0 and 1 are on one pretend node, ranks 2 and 3 on another.
NODES = os.environ.get("PYNCCLX_TEST_NODES", "")
if NODES:
    os.environ["PYNCCLX_NODE"] = NODES.split(",")[RANK]

# A file to which a rank that ends a hanging run adds its last words; those of one that crashes are in a file beside it.
# tests/run.py shows them again at its end.
LAST_WORDS = os.environ.get("PYNCCLX_TEST_LAST_WORDS")

OUTCOMES = ("passed", "skipped", "failed")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    if RANK > 0:
        config.option.xmlpath = None


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "timeout(seconds): end the whole run if the test takes longer")
    config.addinivalue_line("markers", "ranks(minimum, maximum=None): skip unless the run has that many ranks")
    config.addinivalue_line("markers", "one_node: not over pretend nodes (`python tests/run.py nodes`)")
    config.addinivalue_line("markers", "thorough: not in the sample that `make test` runs, but in `make test-all`")
    config.pluginmanager.register(Watchdog(), "watchdog")
    if LAST_WORDS:
        config.pluginmanager.register(crashes.Crashes(LAST_WORDS, RANK, SIZE), "crashes")
    if SIZE > 1:
        config.pluginmanager.register(Agreement(config.pluginmanager.getplugin("watchdog")), "agreement")
    if RANK > 0:
        config.pluginmanager.unregister(name="terminalreporter")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave the collected tests out of garbage collections, which many tests make: else each takes half a second."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and "PYNCCLX_TEST_MAY_BE_NONE" in os.environ:
        session.exitstatus = pytest.ExitCode.OK


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        mark = item.get_closest_marker("ranks")
        if mark is not None:
            item.add_marker(_skip_unless(*mark.args, **mark.kwargs))
    if NODES:
        _keep(config, items, [item for item in items if not _needs_one_node(item)])
    if _has_sample(config):
        _keep(config, items, _sample(items))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of which the sample has nothing here: each rank would read them."""
    is_file = collection_path.suffix == ".py" and not NODES and _has_sample(config)
    return True if is_file and not sample.has_file(collection_path, SIZE, VENDOR) else None


def _has_sample(config: pytest.Config) -> bool:
    return not (sample.ALL or any("::" in argument for argument in config.args))


def _keep(config: pytest.Config, items: list[pytest.Item], kept: list[pytest.Item]) -> None:
    remaining = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in remaining])
    items[:] = kept


def _needs_one_node(item: pytest.Item) -> bool:
    """Whether a test names a kernel, or is about what happens inside one node."""
    algorithm = item.callspec.params.get("algorithm") if hasattr(item, "callspec") else None
    return algorithm is not None or item.get_closest_marker("one_node") is not None


def _sample(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that `make test` runs, see support/sample.py."""
    tests = []
    for item in items:
        function = item.nodeid if "host" in item.path.parts else item.nodeid.split("[")[0]
        mark = item.get_closest_marker("ranks")
        here = item.path, SIZE, VENDOR, mark.args[0] if mark else 1
        if item.get_closest_marker("thorough") is None and (NODES or sample.has_test(function, *here)):
            # A list of cases with several arguments has one identifier for each case.
            identifiers = item.callspec._idlist if hasattr(item, "callspec") else ()
            part = sample.ALL_VALUES if NODES else sample.share(*here)
            tests.append((function, dict(enumerate(identifiers)), item, part))
    return sample.sampled(tests, VENDOR if SIZE in sample.SHARING else (SIZE, VENDOR))


def _skip_unless(minimum: int, maximum: int | None = None) -> pytest.MarkDecorator:
    fits = minimum <= SIZE <= (maximum or SIZE)
    wanted = f"{minimum} ranks or more" if maximum is None else f"{minimum} to {maximum} ranks"
    return pytest.mark.skipif(not fits, reason=f"needs {wanted}, there are {SIZE}")


# ---- communicators -------------------------------------------------------------------------------------


def _halves() -> MPI.Comm:
    return WORLD.Split(RANK * 2 // SIZE, key=RANK)


def _reversed() -> MPI.Comm:
    return WORLD.Split(0, key=-RANK)


COMMUNICATORS = {"world": lambda: WORLD, "dup": WORLD.Dup, "halves": _halves, "reversed": _reversed}
ALONE = ("world", "dup")
OVER_NODES = ("dup", "reversed")
# In the sample, by the number of ranks, and with another MPI library.
SAMPLED = {1: ("dup",), 2: ("dup", "reversed"), 3: ("dup", "reversed"), 4: ("halves", "reversed"), 8: ("reversed",)}
SAMPLED_AGAIN = ("world", "reversed")


def _communicators() -> tuple[str, ...]:
    if SIZE == 1:
        return ALONE if sample.ALL else SAMPLED[1]
    if NODES:  # in reversed order the assignment is another one, unless it is the same from both ends
        nodes = NODES.split(",")
        is_same = [nodes.index(each) for each in nodes] == [nodes[::-1].index(each) for each in nodes[::-1]]
        return OVER_NODES if is_same else OVER_NODES[:1]
    if sample.ALL:
        return tuple(COMMUNICATORS)
    return SAMPLED.get(SIZE, tuple(COMMUNICATORS)) if VENDOR == sample.OPEN_MPI else SAMPLED_AGAIN


@pytest.fixture(scope="module", params=_communicators())
def comm(request: pytest.FixtureRequest) -> Iterator[MPI.Intracomm]:
    """A pyncclx communicator: of all ranks, a duplicate, of each half, of the ranks in reversed order."""
    import pyncclx  # noqa: PLC0415  the tests of mpi_bootstrap run without it

    kind = request.param if not NODES or request.param in _communicators() else OVER_NODES[0]
    communicator = pyncclx.Communicator(COMMUNICATORS[kind]())
    yield communicator
    if kind != "world":
        communicator.Free()


@pytest.fixture(scope="module", autouse=True)
def nodes_are_known() -> None:
    """A process asks once on which node it is: before the tests of a module, which may pretend other nodes."""
    if SIZE > 1 and "pyncclx" in sys.modules:
        import pyncclx  # noqa: PLC0415  as above
        from pyncclx.messages.context import CONTEXT  # noqa: PLC0415

        CONTEXT.get()
        assert pyncclx.Communicator(WORLD).node_topology.size == SIZE


@pytest.fixture
def heap(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A heap of its own, of the default size, for the communicators made in a test."""
    from pyncclx import backends  # noqa: PLC0415  as above
    from pyncclx.memory.heap import HEAP, Heap  # noqa: PLC0415

    monkeypatch.delenv("PYNCCLX_HEAP", raising=False)
    before, own = HEAP.made, Heap(backends.select())
    HEAP.set(own)
    yield own
    HEAP.reset()
    if before is not None:
        HEAP.set(before)
    backends.select().synchronize()
    MPI.COMM_WORLD.Barrier()
    for peer in own.peers.values():
        peer.close()
    MPI.COMM_WORLD.Barrier()
    own.memory.close()


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    """What a test leaves open would be the next test's."""
    yield
    open_receives.assert_none()


# ---- no test hangs -------------------------------------------------------------------------------------


class Watchdog:
    """Ends this process, and with it the MPI job, when a test has taken too long."""

    def __init__(self) -> None:
        self._stderr = os.dup(2)  # what tests write is captured, a last word must not be
        self._timer = threading.Timer(0.0, self._end)
        self._deadline = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        mark = item.get_closest_marker("timeout")
        seconds = float(mark.args[0]) if mark is not None else TIMEOUT
        self._deadline = time.monotonic() + seconds
        self._arm(seconds, f"{item.nodeid} has not finished after {seconds:g} s")
        # Python code cannot end a process whose C code holds the interpreter; this can.
        faulthandler.dump_traceback_later(seconds + 5 * LINGER, exit=True, file=self._stderr)
        try:
            return (yield)
        finally:
            self._timer.cancel()
            faulthandler.cancel_dump_traceback_later()

    def hurry(self, last_word: str) -> None:
        """Give the test `GRACE` seconds more, but never more than it had."""
        self._arm(min(GRACE, self._deadline - time.monotonic()), last_word)

    def _arm(self, seconds: float, last_word: str) -> None:
        self._timer.cancel()
        self._timer = threading.Timer(seconds, self._end, [last_word])
        self._timer.daemon = True
        self._timer.start()

    def _end(self, last_word: str) -> None:
        first, _, rest = last_word.partition("\n")
        words = f"\nrank {RANK} of {SIZE}: {first}, in {_place()}\n{rest}\n{_stacks()}"
        os.write(self._stderr, words.encode())
        if LAST_WORDS:
            with open(LAST_WORDS, "a") as file:
                file.write(words)
        time.sleep(LINGER)
        os._exit(1)


def _frames(thread: threading.Thread) -> list[traceback.FrameSummary]:
    """Where a thread is, less the frames of the test runner."""
    stack = traceback.extract_stack(sys._current_frames().get(thread.ident or 0))
    return [frame for frame in stack if not _of_the_runner(frame.filename)]


def _stacks() -> str:
    """Where all threads are."""
    stacks = {thread.name: _frames(thread) for thread in threading.enumerate()}
    return "".join(
        "".join([f"{name}:\n", *traceback.format_list(frames)]) for name, frames in stacks.items() if frames
    )


def _place() -> str:
    """Where the threads are that a test may wait for, in one line: the table at the end of a run shows no more."""
    main, *others = sorted(threading.enumerate(), key=lambda thread: thread is not threading.main_thread())
    busy = [thread for thread in others if thread.name.startswith("pyncclx") and not _rests(thread)]
    return "; ".join([_line(main), *(f"{thread.name}: {_line(thread)}" for thread in busy)])


def _line(thread: threading.Thread) -> str:
    inner = reversed(_frames(thread))
    return crashes.in_one_line((Path(frame.filename).name, frame.lineno, frame.name) for frame in inner)


def _rests(thread: threading.Thread) -> bool:
    """Return whether a thread of the library waits for work: in the function that it began with, or one further."""
    return len(_frames(thread)) <= 2


def _of_the_runner(filename: str) -> bool:
    folders = {"_pytest", "pytest", "pluggy"}.intersection(Path(filename).parts)
    return bool(folders) or filename in (__file__, threading.__file__, "<frozen runpy>")


# ---- one outcome ---------------------------------------------------------------------------------------


class Agreement:
    """Makes all ranks collect the same tests and give each phase of each test the same outcome."""

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog
        self._comm = WORLD.Dup()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        collected = (session.testsfailed, [item.nodeid for item in session.items])
        if len({str(other) for other in self._comm.allgather(collected)}) > 1:
            pytest.exit("the ranks have not collected the same tests", returncode=1)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            self._watchdog.hurry(f"{report.nodeid}: the other ranks do not finish what failed here: {_text(report)}")
        counts = self._count(report.outcome)
        if counts["failed"] or min(counts["passed"], counts["skipped"]) > 0:
            texts = self._comm.allgather(_text(report) if report.outcome != "passed" else "")
            report.outcome = "failed"
            report.longrepr = _by_rank(texts)
            report.sections = []
        return report

    def pytest_unconfigure(self) -> None:
        if sys.__stdout__ is not None:
            sys.__stdout__.flush()
        self._comm.Barrier()  # rank 0 has reported; mpiexec may end the job at the first non-zero exit

    def _count(self, outcome: str) -> dict[str, int]:
        """How many ranks had which outcome. Waits for the slowest without keeping its processor busy."""
        mine = np.array([outcome == each for each in OUTCOMES], np.int64)
        counts = np.empty_like(mine)
        request = self._comm.Iallreduce(mine, counts)
        while not request.Test():
            time.sleep(0.0005)
        return dict(zip(OUTCOMES, counts.tolist(), strict=True))


def _text(report: pytest.TestReport) -> str:
    """The text of a report: the reason in one line, the traceback, what was printed."""
    crash = getattr(report.longrepr, "reprcrash", None)
    reason = crash.message if crash else report.longrepr[-1] if isinstance(report.longrepr, tuple) else ""
    captured = [f"---- {title}\n{content}" for title, content in report.sections]
    return "\n".join([*reason.splitlines()[:1], str(report.longrepr), *captured])


def _by_rank(texts: list[str]) -> str:
    """What went wrong on which ranks, equal texts once."""
    ranks: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        ranks.setdefault(text, []).append(rank)
    return "\n".join(
        f"rank {', '.join(map(str, where))} of {len(texts)}: {text}" for text, where in ranks.items() if text
    )

"""The cache of compiled code: what is in it is not made again, and what is damaged is; two processes, a full disk."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from pyncclx.backends.compilers import cache
from pyncclx.system import cache_folders, notes

NAME = cache.file_name("kernel", ("sources", 1), ".bin")


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    """The cache of this test."""
    folder = tmp_path / "own"
    monkeypatch.setenv("PYNCCLX_CACHE", str(folder))
    notes._warned.clear()
    return folder


def never():
    raise AssertionError("made again")


def test_made_once(own):
    made = []

    def make():
        made.append(1)
        return b"code"

    assert [cache.read_or_make(NAME, make) for _ in range(2)] == [b"code", b"code"]
    assert made == [1]
    assert list(own.iterdir()) == [own / NAME]


def test_names_have_all_of_the_key():
    keys = [("a", "bc"), ("ab", "c"), ("a", "b", "c"), ("a", "bc", None), (b"a", "bc")]
    assert len({cache.file_name("kernel", key, ".bin") for key in keys}) == len(keys)
    assert cache.file_name("kernel", keys[0], ".bin").startswith("kernel-")


@pytest.mark.parametrize("damage", ["truncated", "longer", "changed", "empty", "of the format before"])
def test_a_damaged_file_is_made_anew(own, damage, caplog):
    code = os.urandom(1000)
    cache.read_or_make(NAME, lambda: code)
    whole = (own / NAME).read_bytes()
    changed = bytes([*whole[:500], whole[500] ^ 1, *whole[501:]])
    damaged = {"truncated": whole[:-1], "longer": whole + b"\0", "changed": changed, "empty": b""}
    (own / NAME).write_bytes({**damaged, "of the format before": code}[damage])
    assert cache.find(NAME) is None
    assert cache.read_or_make(NAME, lambda: code) == code
    assert cache.read_or_make(NAME, never) == code
    assert [record.message for record in caplog.records] == [f"{own / NAME} is damaged, and made anew"]


def test_folders_that_are_only_read(own, tmp_path, monkeypatch):
    """What they have is not made, what they have not is kept in the last; a damaged file is another folder's matter."""
    shared = tmp_path / "shared"
    monkeypatch.setenv("PYNCCLX_CACHE", str(shared))
    cache.read_or_make(NAME, lambda: b"shared")
    monkeypatch.setenv("PYNCCLX_CACHE", f"{shared}:{own}")
    shared.chmod(0o755)
    assert cache.read_or_make(NAME, never) == b"shared"
    assert cache.read_or_make("other", lambda: b"own") == b"own"
    assert {path.name for path in shared.iterdir()} == {NAME}
    assert {path.name for path in own.iterdir()} == {"other"}
    (shared / NAME).write_bytes(b"")
    assert cache.read_or_make(NAME, lambda: b"own") == b"own"
    assert (shared / NAME).read_bytes() == b""


def test_ready_made_files_come_first(own, tmp_path, monkeypatch):
    monkeypatch.setattr(cache_folders, "READY_DIR", tmp_path / "ready")
    cache.read_or_make(NAME, lambda: b"own")
    (tmp_path / "ready").mkdir()
    (tmp_path / "ready" / NAME).write_bytes(cache._sealed(zlib.compress(b"ready")))
    assert cache.read_or_make(NAME, never) == b"ready"


def test_what_is_built_for_others_is_smaller(own, tmp_path, monkeypatch):
    """Where Python has no lzma it is made anew."""
    code = b"".join(number.to_bytes(4, "little") for number in range(9000))
    cache.read_or_make("own", lambda: code)
    shared = tmp_path / "shared"
    cache_folders.use(shared)
    try:
        assert cache.read_or_make(NAME, lambda: code) == code
    finally:
        cache_folders._output.clear()
    assert (shared / NAME).stat().st_size < 0.8 * (own / "own").stat().st_size
    shared.chmod(0o755)
    monkeypatch.setenv("PYNCCLX_CACHE", f"{shared}:{own}")
    assert cache.read_or_make(NAME, never) == code
    monkeypatch.setattr(cache, "lzma", None)
    assert cache.read_or_make(NAME, lambda: b"made anew") == b"made anew"
    assert cache.read_or_make("own", never) == code


MADE = multiprocessing.get_context("fork").Value("i", 0)  # how many processes have made the file


def fill(number: int) -> bytes:
    """Make the file as one of several processes, each of which would write something else."""

    def make() -> bytes:
        with MADE.get_lock():
            MADE.value += 1
        time.sleep(0.3)
        return str(number).encode()

    return cache.read_or_make(NAME, make)


def test_processes_that_fill_it_at_once(own):
    """One makes the file, and all read it."""
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert len(set(pool.map(fill, range(4), chunksize=1))) == 1
    assert MADE.value == 1
    assert [path.name for path in own.iterdir()] == [NAME]


def test_a_full_disk(own, monkeypatch, caplog, tmp_path):
    """Kernels go to the private folder; if that is full too, the process has what was made, and there is no file."""
    private, full = tmp_path / "private", [own]
    private.mkdir()
    monkeypatch.setattr(cache_folders, "private_directory", lambda: private)
    write = cache.write

    def write_unless_full(path, data):
        if path.parent in full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, data)

    monkeypatch.setattr(cache, "write", write_unless_full)
    assert cache.find_or_make("first", lambda: b"code") == (private / "first", b"code")
    full.append(private)
    assert cache.find_or_make("second", lambda: b"code") == (None, b"code")
    assert cache.read_or_make("third", lambda: b"code") == b"code"
    assert [record.message for record in caplog.records] == [
        f"compiled kernels cannot be kept in {folder} (No space left on device)" for folder in full
    ]
    assert [path.name for path in own.iterdir()] == []


def test_locks_of_killed_processes_are_removed(own):
    """Not those that a process holds, nor what is no lock."""
    killed = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, signal\nfrom pyncclx.backends.compilers import cache\n"
            f"cache.find_or_make({NAME!r}, lambda: os.kill(os.getpid(), signal.SIGKILL))",
        ],
        check=False,
        env={**os.environ, "PYNCCLX_CACHE": str(own)},
    )
    assert killed.returncode == -signal.SIGKILL
    left = own / f".{NAME}.lock"
    assert left.exists()

    def make():
        cache.find_or_make("other", lambda: b"")
        assert {path.name for path in own.iterdir()} == {".held.lock", "held.lock", "other"}
        return b""

    (own / "held.lock").touch()
    cache.find_or_make("held", make)
    assert {path.name for path in own.iterdir()} == {"held.lock", "held", "other"}


def test_what_a_dead_process_left_is_removed(own):
    left = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os\nfrom pathlib import Path\nfrom pyncclx.backends.compilers import cache\n"
            f"with cache.unfinished(Path({str(own)!r})) as folder:\n"
            "    (folder / 'half.so').touch(); print(folder, flush=True); os._exit(9)",
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYNCCLX_CACHE": str(cache_folders.cache_directory())},
    )
    assert Path(left.stdout.strip(), "half.so").exists()
    with cache.unfinished(own) as mine:
        assert list(own.iterdir()) == [mine]
        with cache.unfinished(own):
            assert mine.exists()
    assert list(own.iterdir()) == []

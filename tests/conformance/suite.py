"""mpi4py's own tests: fetched from PyPI at a pinned release, kept in the cache, never in this repository."""

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from pyncclx.system.cache_folders import cache_directory

RELEASE = "4.1.2"
SHA256 = "56860286dc45f20e8821e93cb06669e30462348bf866f685553fa4b712d58d02"
FOLDER = f"mpi4py-{RELEASE}"


def fetch() -> Path:
    """The folder of mpi4py's sources, downloaded if it is not there yet.

    Raises
    ------
    subprocess.CalledProcessError
        If pip cannot download it.
    ValueError
        If what came is not what was pinned.
    """
    folder = cache_directory() / FOLDER
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            archive = _download(Path(scratch))
            with tarfile.open(archive) as tar:
                tar.extractall(scratch, filter="data")
            (Path(scratch) / FOLDER).rename(folder)
    return folder


def _download(scratch: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--no-binary", "mpi4py", "--dest", str(scratch), f"mpi4py=={RELEASE}"], check=True)
    archive = scratch / f"{FOLDER}.tar.gz"
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != SHA256:
        raise ValueError(f"{archive.name} has SHA-256 {digest}, expecting {SHA256}")
    return archive

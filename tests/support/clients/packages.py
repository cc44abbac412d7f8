"""Packages of clients from the package index, in an environment beside the one that runs the tests."""

import platform
import subprocess
import sysconfig
import venv
from pathlib import Path

from pyncclx.system.cache_folders import cache_directory


class Packages:
    """Packages of clients, in an environment beside this one: they are found after this one's."""

    def __init__(self) -> None:
        self.folder = cache_directory() / f"clients-{platform.python_version()}"
        scheme = {"base": str(self.folder), "platbase": str(self.folder)}
        self.site = Path(sysconfig.get_path("purelib", "posix_prefix", scheme))
        self._python = self.folder / "bin" / "python"
        if not self._python.exists():
            venv.create(self.folder, with_pip=True)
            own = sysconfig.get_path("purelib")
            (self.site / "beside.pth").write_text(f"import site; site.addsitedir({own!r})\n")

    def install(self, requirement: str) -> str:
        """Install a package if it is not there; return why that fails, or ""."""
        done = self.folder / f"has {requirement}".replace("/", "_")
        if done.exists():
            return ""
        alone = ["--no-deps", "--no-build-isolation"] if requirement.startswith("=") else []
        failed = self._pip("install", *alone, requirement.removeprefix("="))
        if not failed:
            done.touch()
        return failed

    def source(self, requirement: str) -> tuple[str, Path]:
        """Unpack a source package; return why that fails, or "", and its folder."""
        folder = self.folder / "sources" / requirement
        if not list(folder.glob("*.tar.gz")):
            from_source = ("--no-deps", "--no-build-isolation", "--no-binary", ":all:")
            if failed := self._pip("download", *from_source, "-d", str(folder), requirement):
                return failed, folder
        archive = next(folder.glob("*.tar.gz"))
        unpacked = folder / archive.name.removesuffix(".tar.gz")
        if not unpacked.is_dir():
            subprocess.run(["tar", "-xzf", str(archive), "-C", str(folder)], check=True)
        return "", unpacked

    def _pip(self, *arguments: str) -> str:
        command = [str(self._python), "-m", "pip", arguments[0], "-q", "--disable-pip-version-check", *arguments[1:]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = [
            line.strip() for line in done.stderr.splitlines() if line.strip() and not line.startswith(("WARN", "hint"))
        ]
        return "" if done.returncode == 0 else " ".join(said[-6:]) or "pip failed"

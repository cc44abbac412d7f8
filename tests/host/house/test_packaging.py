"""The packages contain every module and CUDA source, and importing them loads no CUDA library."""

import configparser
import contextlib
import functools
import importlib.util
import json
import re
import runpy
import subprocess
import sys
import types
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")

# What a program that only wants MPI must not pay for.
HEAVY = {"cupy", "numba", "cuda", "torch", "jax", "matplotlib", "ml_dtypes"}


def lines(section: str, option: str) -> list[str]:
    """A setup.cfg list, less its comments."""
    listed = (line.strip() for line in SETUP[section][option].splitlines())
    return [line for line in listed if line and not line.startswith("#")]


def in_child(program: str) -> str:
    """Run a program in a fresh interpreter with the repository's root first on its path."""
    child = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert child.returncode == 0, child.stderr
    return child.stdout


def imported(statement: str) -> set[str]:
    """Top-level modules that a statement brings in."""
    program = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    return {name.partition(".")[0] for name in json.loads(in_child(program).splitlines()[-1])}


def test_no_python_in_the_cuda_folder() -> None:
    """A cuda/__init__.py would hide NVIDIA's `cuda`, which CuPy and Numba import, from programs run here."""
    assert list((ROOT / "cuda").rglob("*.py")) == []


@pytest.mark.parametrize("module", ["cuda.bindings", "cuda.core", "cupy", "numba.cuda"])
def test_nvidias_packages_are_found_from_the_root(module: str) -> None:
    top = module.partition(".")[0]
    if top != "cuda" and importlib.util.find_spec(top) is None:
        pytest.skip(f"{top} is not installed")
    in_child(f"import {module}")


def test_every_package_is_listed() -> None:
    folders = {
        path.parent for top in ("pyncclx", "mpi_bootstrap") for path in (ROOT / top).rglob("__init__.py")
    }
    packages = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    data = {package for package in lines("options", "packages") if package.startswith("pyncclx.cuda")}
    assert packages | data == set(lines("options", "packages"))


def test_every_cuda_source_is_packaged() -> None:
    folders = dict(line.split(" = ") for line in lines("options", "package_dir"))
    patterns = {
        ROOT / folder: SETUP["options.package_data"][package].replace(",", " ").split()
        for package, folder in folders.items()
        if package.startswith("pyncclx.cuda")
    }
    sources = [path for path in (ROOT / "cuda").rglob("*") if path.is_file()]
    left_out = [
        path for path in sources if not any(fnmatch(path.name, each) for each in patterns[path.parent])
    ]
    assert sources
    assert left_out == []


def test_types_are_advertised() -> None:
    assert (ROOT / "pyncclx" / "py.typed").exists()
    assert (ROOT / "mpi_bootstrap" / "py.typed").exists()


@pytest.mark.parametrize("package", ["pyncclx", "mpi_bootstrap"])
def test_import_is_light(package: str) -> None:
    """Nothing that costs time or touches a GPU is imported before it is used."""
    brought = imported(f"import {package}") - imported("import numpy, mpi4py.MPI")
    assert brought & HEAVY == set()


def numbers_of(text: str, distribution: str) -> set[str]:
    """The versions that a recipe or setup.cfg names beside a distribution, as "1.26" and "3"."""
    named = re.search(rf"\b{distribution}\b([^\n\"]*)", text)
    assert named, f"{distribution} is not named"
    return set(re.findall(r"\d+(?:\.\d+)*", named.group(1)))


@pytest.mark.parametrize("distribution", ["mpi4py", "numpy"])
def test_recipes_require_what_setup_does(distribution: str) -> None:
    required = numbers_of(SETUP["options"]["install_requires"], distribution)
    conda = (ROOT / "packaging/conda/recipe.yaml").read_text()
    assert numbers_of(conda.partition("run:")[2], distribution) == required
    spack = numbers_of((ROOT / "packaging/spack/package.py").read_text(), f"py-{distribution}@")
    # Spack's ranges include their end: 1.26:2 is all before 3
    assert spack == {str(int(each) - 1) if each == "3" else each for each in required}


def test_recipes_have_the_version_the_python_and_extras_that_exist() -> None:
    conda = (ROOT / "packaging/conda/recipe.yaml").read_text()
    assert f'version: "{SETUP["metadata"]["version"]}"' in conda
    assert f"python {SETUP['options']['python_requires']}" in conda
    for recipe in ("Dockerfile", "apptainer.def"):
        (extras,) = re.findall(r"/src\[([\w,]+)\]", (ROOT / "packaging" / recipe).read_text())
        assert set(extras.split(",")) <= set(SETUP["options.extras_require"])


class Recorder(types.ModuleType):
    """What Spack gives a recipe, which only records the directives."""

    def __init__(self) -> None:
        super().__init__("spack.package")
        self.directives: list[tuple[str, str]] = []
        for name in ("license", "version", "depends_on", "conflicts"):
            setattr(self, name, functools.partial(self._record, name))
        self.when = self._when

    def _record(self, directive: str, spec: str, **options: object) -> None:
        assert set(options) <= {"type", "when", "branch", "msg"}
        self.directives.append((directive, spec))

    @contextlib.contextmanager
    def _when(self, condition: str) -> Iterator[None]:
        self.directives.append(("when", condition))
        yield


def test_spacks_recipe_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    spack = Recorder()
    monkeypatch.setitem(sys.modules, "spack.package", spack)
    monkeypatch.setitem(sys.modules, "spack", types.ModuleType("spack"))
    for name, architectures in (("cuda", ("80", "90")), ("python", ())):
        system = types.ModuleType(f"spack_repo.builtin.build_systems.{name}")
        base = type(f"{name.capitalize()}Package", (), {"cuda_arch_values": architectures})
        setattr(system, base.__name__, base)
        monkeypatch.setitem(sys.modules, system.__name__, system)
    for name in ("spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    recipe = runpy.run_path(str(ROOT / "packaging/spack/package.py"))["PyPyncclx"]
    assert recipe.git
    assert ("depends_on", "py-mpi4py@4.1.1:") in spack.directives
    assert ("depends_on", "py-cupy@14: +cuda cuda_arch=90") in spack.directives


def test_the_workflow_runs_what_continuous_integration_runs() -> None:
    """Every `make` target and script that it names exists."""
    workflow = (ROOT / ".github/workflows/tests.yml").read_text()
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert "run: bash .ci/run" in workflow
    assert set(re.findall(r"run: make ([\w-]+)", workflow)) <= set(targets)

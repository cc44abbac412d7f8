"""python -m pyncclx build: what it selects, and that programs find what it has compiled."""

import importlib
import shutil
from pathlib import Path, PurePath

import pytest

from pyncclx.backends import host
from pyncclx.backends.compilers import gxx
from pyncclx.launch import kernels
from pyncclx.launch.sources import FILES
from pyncclx.system import cache_folders
from pyncclx.tools import cli
from pyncclx.tools.cli import build

ALLREDUCE = "collectives/allreduce.cu"
EVERY = [PurePath(file).stem for file in FILES]


def selected(architecture, operations=EVERY, types=build.TYPES, operators=build.OPERATORS):
    return list(build.selected([architecture], operations, types, operators))


def test_every_kernel_is_of_a_type_and_operator():
    templates = {unit.template for unit in selected("host", ["allreduce", "reduce_chain", "barrier", "collect"])}
    types = {"float", "double", "Half", "Bfloat16", "int", "long long"}
    assert templates == {()} | {(element, name) for element in types for name in ("Sum", "Max", "Min", "Prod")}
    assert {unit.template for unit in selected("host", types=["bytes"]) if unit.file != "windows/rma.cu"} == {()}
    few = selected("host", ["allreduce", "barrier"], ["float32"], ["SUM", "MAX"])
    assert [unit.template for unit in few] == [("float", "Sum"), ("float", "Max")]


def test_a_gpu_has_a_unit_for_each_kernel_the_host_device_for_each_template():
    arguments = ["allreduce"], ["float32"], ["SUM"]
    assert [unit.kernels for unit in selected("sm_90", *arguments)] == [(name,) for name in FILES[ALLREDUCE].kernels]
    assert [unit.kernels for unit in selected("host", *arguments)] == [FILES[ALLREDUCE].kernels]


def run(*arguments):
    options = cli.parse(["build", *map(str, arguments)])
    try:
        options.run(options)
    finally:
        cache_folders._output.clear()  # the command sets the folder of its process


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_host_device_finds_what_it_compiled(tmp_path, monkeypatch, capsys):
    shared = tmp_path / "shared"
    run("--arch", "host", "--operations", "barrier", "--output", shared)
    assert capsys.readouterr().out.startswith("1 kernels in ")
    assert [path.suffix for path in shared.iterdir()] == [".so"]
    assert shared.stat().st_mode & 0o777 == 0o755
    monkeypatch.setenv("PYNCCLX_CACHE", f"{shared}:{tmp_path / 'own'}")
    monkeypatch.setattr(cache_folders, "READY_DIR", Path("/nowhere"))
    monkeypatch.setattr(gxx, "_compile", None)
    image = kernels.compile_image(host.Device(), "collectives/barrier.cu", ("barrier",), ())
    assert Path(image.decode()).parent == shared


class Gpu:
    """Compiles as `GpuKernels` does, without a GPU."""

    compiles_together = False

    def __init__(self, architecture="sm_90"):
        self.architecture = architecture

    def compile(self, file, instantiations, called=None, *, within=()):
        nvrtc = importlib.import_module("pyncclx.backends.compilers.nvrtc")
        return nvrtc.compile_cached(file, instantiations, self.architecture).dump()


def test_a_gpu_finds_what_it_compiled(tmp_path, monkeypatch):
    nvrtc = pytest.importorskip("pyncclx.backends.compilers.nvrtc", reason="needs cuda-bindings")
    shared = tmp_path / "shared"
    run("--arch", "sm_90", "--operations", "barrier", "point_to_point", "--output", shared, "--types", "bytes")
    assert len(list(shared.iterdir())) == 1 + len(FILES["messages/point_to_point.cu"].kernels)
    monkeypatch.setenv("PYNCCLX_CACHE", f"{shared}:{tmp_path / 'own'}")
    monkeypatch.setattr(nvrtc, "compile_kernels", lambda *arguments: pytest.fail("compiled again"))
    for file in ("collectives/barrier.cu", "messages/point_to_point.cu"):
        for part in kernels._parts(Gpu(), file, FILES[file].kernels, ()):
            assert list(nvrtc.Binary.load(part.compile()).lowered_names) == part.names


def test_other_compilers_of_the_same_cuda_find_it_too(tmp_path, monkeypatch):
    """Those of another major version compile for themselves: their drivers may not load it."""
    nvrtc = pytest.importorskip("pyncclx.backends.compilers.nvrtc", reason="needs cuda-bindings")
    major, minor = nvrtc._version()
    ready = tmp_path / "ready"
    run("--arch", "sm_90", "--operations", "barrier", "--output", ready, "--types", "bytes")
    monkeypatch.setattr(cache_folders, "READY_DIR", ready)
    monkeypatch.setenv("PYNCCLX_CACHE", str(tmp_path / "own"))
    compiled = []
    made = nvrtc.compile_kernels("collectives/barrier.cu", ["barrier"], "sm_90")
    monkeypatch.setattr(nvrtc, "compile_kernels", lambda *arguments: compiled.append(arguments) or made)
    for version, times in (((major, minor + 1), 0), ((major + 1, 0), 1), ((major + 1, 0), 1), ((major + 1, 1), 2)):
        monkeypatch.setattr(nvrtc, "_version", lambda version=version: version)
        assert Gpu().compile("collectives/barrier.cu", ["barrier"]) == made.dump()
        assert len(compiled) == times


@pytest.mark.parametrize(
    ("architecture", "built", "taken"),
    [
        ("sm_90", "sm_90 sm_80 compute_120", "sm_90"),
        ("sm_89", "sm_80 sm_90 compute_120", "sm_80"),  # the same generation
        ("sm_121", "sm_120 compute_120", "sm_120"),
        ("sm_121", "sm_121 sm_120", "sm_121"),
        ("sm_130", "sm_120 compute_120", "compute_120"),  # newer than the compiler
        ("sm_110", "sm_100 compute_120", None),  # the compiler has it
    ],
)
def test_a_gpu_takes_what_runs_there(architecture, built, taken, tmp_path, monkeypatch):
    """Code that is ready for another GPU; without any, its own is compiled."""
    nvrtc = pytest.importorskip("pyncclx.backends.compilers.nvrtc", reason="needs cuda-bindings")
    monkeypatch.setattr(nvrtc, "supported", lambda: (75, 80, 86, 89, 90, 100, 103, 110, 120, 121))
    monkeypatch.setattr(nvrtc, "compile_kernels", lambda file, names, target: nvrtc.Binary(target.encode(), {}))
    ready = tmp_path / "ready"
    run("--arch", *built.split(), "--operations", "barrier", "--output", ready, "--types", "bytes")
    monkeypatch.setattr(cache_folders, "READY_DIR", ready)
    monkeypatch.setenv("PYNCCLX_CACHE", str(tmp_path / "own"))
    image = Gpu(architecture).compile("collectives/barrier.cu", ["barrier"])
    assert nvrtc.Binary.load(image).cubin.decode() == (taken or architecture)
    assert len(list((tmp_path / "own").glob("*"))) == (taken is None)


def test_a_gpu_that_is_newer_than_the_compiler(tmp_path, monkeypatch):
    """Its driver makes machine code of PTX, which ends with a zero byte, of the newest GPU that the compiler has."""
    nvrtc = pytest.importorskip("pyncclx.backends.compilers.nvrtc", reason="needs cuda-bindings")
    monkeypatch.setenv("PYNCCLX_CACHE", str(tmp_path / "own"))
    binary = nvrtc.Binary.load(Gpu("sm_990").compile("collectives/barrier.cu", ["barrier"]))
    assert f".target sm_{max(nvrtc.supported())}" in binary.cubin.decode()
    assert f".entry {binary.lowered_names['barrier']}(" in binary.cubin.decode()
    assert binary.cubin[-1:] == b"\0"


def test_a_kernel_that_does_not_compile_ends_it(tmp_path, monkeypatch):
    def fail(source, instantiations):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(gxx, "_compile", fail)
    with pytest.raises(RuntimeError, match="no compiler"):
        run("--arch", "host", "--operations", "barrier", "--output", tmp_path)

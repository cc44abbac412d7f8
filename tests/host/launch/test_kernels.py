"""Which kernels are compiled together: on a GPU the one that is asked for, on the host device those of a template."""

import time

import numpy as np
import pytest

import pyncclx
from pyncclx.launch import kernels
from pyncclx.launch.sources import FILES
from pyncclx.operators.bound_op import bound_op
from pyncclx.system import notes

PACKING, ALLREDUCE, RMA = "derived/packing.cu", "collectives/allreduce.cu", "windows/rma.cu"
ADD = ("float", "Sum")


class Device:
    """Records what it compiles; an image is the kernels' names."""

    architecture = "fake"

    def __init__(self, *, compiles_together):
        self.compiles_together = self.loads_beside_kernels = compiles_together
        self.compiled = []
        self.busy_s = 0.0  # loading takes as long

    def compile(self, file, instantiations, called=None, *, within=()):
        self.compiled.append((file, list(instantiations), len(within)))
        return "\n".join(instantiations).encode()

    def load(self, image, called=None):
        time.sleep(self.busy_s)
        return {name: (name, self) for name in image.decode().split("\n")}


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(kernels, "_loaded", {})
    return Device(compiles_together=False)


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setattr(kernels, "_loaded", {})
    return Device(compiles_together=True)


def test_kernels_of_a_gpu_are_compiled_one_by_one(gpu):
    for _ in range(2):
        assert kernels.load_template(gpu, RMA, "accumulate", *ADD) == ("accumulate<float, Sum>", gpu)
        assert list(kernels.load_alone(gpu, PACKING)) == ["pack", "unpack"]
    assert gpu.compiled == [(RMA, ["accumulate<float, Sum>"], 0), (PACKING, ["pack<>"], 0), (PACKING, ["unpack<>"], 0)]


def test_loading_that_waits_for_a_busy_gpu_is_explained(gpu, host, monkeypatch, capsys):
    """CUDA waits for all work on the GPU; what that work waits for may come behind this call."""
    monkeypatch.setattr(notes, "LONG_S", 0.1)
    monkeypatch.setattr(notes.LOGGER, "hasHandlers", lambda: False)
    for device, busy_s, explained in (gpu, 0.0, False), (gpu, 0.3, True), (host, 0.3, False):
        kernels._loaded.clear()
        device.busy_s = busy_s
        kernels.load_template(device, RMA, "accumulate", *ADD)
        assert ("loading accumulate<float, Sum> waits for all" in capsys.readouterr().err) == explained


def test_kernels_of_the_host_device_are_compiled_by_template(host):
    """A library of the whole file would serve as well."""
    name = "allreduce_two_shot<float, Sum>"
    assert kernels.load_template(host, ALLREDUCE, "allreduce_two_shot", *ADD) == (name, host)
    assert list(kernels.load_alone(host, PACKING)) == ["pack", "unpack"]
    names = [f"{kernel}<float, Sum>" for kernel in FILES[ALLREDUCE].kernels]
    every = len(FILES[ALLREDUCE].kernels) * len(FILES[ALLREDUCE].templates())
    assert host.compiled == [(ALLREDUCE, names, every), (PACKING, ["pack<>", "unpack<>"], 2)]


def test_no_more_of_a_programs_operator_is_compiled(gpu):
    template = bound_op(lambda a, b: a, np.dtype("f4")).template
    made = kernels.load_template(gpu, ALLREDUCE, "allreduce_one_shot", *template)
    assert made == (f"allreduce_one_shot<{template[0]}, UserOp>", gpu)
    assert list(kernels._loaded) == [f"allreduce_one_shot<{', '.join(template)}>"]


def test_of_records_too(gpu):
    point = pyncclx.Op(lambda a, b, result: None, np.dtype([("x", "f4"), ("y", "f4"), ("z", "f4")]))
    template = bound_op(point.fn, point.dtype).template
    kernels.load_template(gpu, ALLREDUCE, "allreduce_two_shot_lines", *template)
    (compiled,) = gpu.compiled
    assert compiled[0] == "collectives/records.cu"
    assert compiled[1] == [f"allreduce_records_two_shot<{', '.join(template[:-1])}, UserOp>"]

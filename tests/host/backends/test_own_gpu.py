"""Which GPU is a process's, and that calls make it the current one."""

from pathlib import Path

import numpy as np
import pytest

import launch
from pyncclx.arrays import places
from pyncclx.system import driver
from support import fake_driver
from support.fake_arrays import FakeTensor, fake_cupy

KINDS = {"cupy": fake_cupy, "torch": lambda array, gpu: FakeTensor(array, ordinal=gpu)}


@pytest.fixture
def undecided(monkeypatch):
    monkeypatch.setattr(driver, "_chosen", [])
    monkeypatch.setattr(places, "host_arrays", lambda: False)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_array_decides(undecided, kind):
    for gpu in (3, 1):
        array = KINDS[kind](np.ones(2), gpu)
        assert places.place(array, places.reader_of(array)) == "device"
    assert driver.chosen_gpu() == 3


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_array_decides_nothing(undecided, kind):
    for gpu, length in ((3, 0), (2, 1)):
        array = KINDS[kind](np.ones(length), gpu)
        assert places.place(array, places.reader_of(array)) == "device"
    assert driver.chosen_gpu() == 2


def test_what_a_program_has_chosen_stays(undecided):
    driver.choose_gpu(1)
    array = fake_cupy(np.ones(2), 3)
    places.place(array, places.reader_of(array))
    assert driver.chosen_gpu() == 1


def test_host_arrays_decide_nothing(undecided):
    places.place(np.ones(2), places.reader_of(np.ones(2)))
    assert driver.chosen_gpu() is None


def test_the_gpu_becomes_current_if_another_is(monkeypatch):
    with fake_driver.installed() as fake:
        monkeypatch.setattr(fake.module("driver").GpuProperties, "__init__", lambda self: None)
        device, used = fake.module("streams").GpuStreams(), []
        device.ordinal, device._gpu = 1, type("Gpu", (), {"use": lambda self: used.append(1)})()
        with fake.Stream() as _:
            for fake.gpu, expected in ((1, []), (0, [1]), (1, [1])):
                device.current_stream()
                assert used == expected


@pytest.mark.skipif(launch.gpus() < 2, reason="takes two GPUs")
def test_arrays_on_a_gpu_that_is_not_current():
    program = Path(__file__).parents[2] / "support" / "first_array.py"
    done = launch.job(2, "-m", "mpi4py", str(program), where="gpu", seconds=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.split("\n"))[1:] == ["rank 0 on GPU 0", "rank 1 on GPU 1"]

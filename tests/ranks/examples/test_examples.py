"""The programs in examples/ that sort and move rows by counts on the device, without what they print and draw."""

import argparse
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

from pyncclx import Prequest, Request
from support.arrays import get, put, synchronize, xp
from support.everywhere import assert_everywhere

pytest.importorskip("tqdm")
sys.path.extend(str(folder) for folder in Path(__file__).resolve().parents[3].glob("examples/**/"))
import hash_table
import jacobi
import jacobi_persistent
import moe_overlap
import moe_overlap_device
import particles
import particles_model
import sample_sort
import tensor_parallel
import tensor_parallel_step
import weight_transfer
from common import weight_plan
from common.overlap import device_of

pytestmark = pytest.mark.parametrize("comm", ["reversed"], indirect=True)


@pytest.mark.parametrize("name", [*sample_sort.DISTRIBUTIONS, "two values"])
def test_sample_sort(comm, name):
    """Parts of unequal lengths; no rank gets more than regular sampling promises."""
    for least in (1, 40):
        lengths = [least + 3 * rank for rank in range(comm.size)]
        random, whole = np.random.default_rng(least), sum(lengths)
        keys = (
            random.integers(0, 2, whole, "u8")
            if name == "two values"
            else sample_sort.DISTRIBUTIONS[name](random, whole)
        )
        own = slice(sum(lengths[: comm.rank]), sum(lengths[: comm.rank + 1]))
        rows = np.stack([keys, np.arange(whole, dtype="u8")], axis=1)
        room = max(lengths) + max(lengths) // 4 + comm.size + 1
        result = sample_sort.sample_sort(comm, put(rows[own]), room, oversample=4)
        total, dropped = int(get(result.total)[0]), get(result.dropped)
        parts = MPI.Comm.allgather(comm, get(result.rows)[:total])
        assert_everywhere(comm, not dropped.any(), f"{dropped} rows dropped")
        assert_everywhere(comm, np.array_equal(np.concatenate(parts), rows[np.argsort(keys, kind="stable")]))


def test_ties_of_lines(comm):
    """Lines that begin alike, on all ranks, are put in order by the rest."""
    lines = [b"the same %d\n" % number for number in np.random.default_rng(5).permutation(7 * comm.size)]
    parts = np.array_split(np.arange(len(lines), dtype="u8"), comm.size)
    part = np.stack([np.full(7, 8, "u8"), parts[comm.rank]], axis=1)
    numbers = MPI.Comm.allgather(comm, sample_sort.solve_ties(comm, part, lines))
    assert [lines[n] for each in numbers for n in each] == sorted(lines)


def test_particles(comm):
    """Fast ones, of which many change rank in every step, are where NumPy moves them."""
    random, count = np.random.default_rng(3), 500
    everything = np.concatenate([random.random((count, 2)), 300 * random.standard_normal((count, 2))], axis=1)
    everything = np.column_stack([everything, np.arange(count)])
    domain = particles.Domain(comm, xp, everything, count)
    tally = domain.tally()
    assert_everywhere(comm, tally[0] == count and tally[1] == count * (count - 1) // 2)
    for centres in particles_model.orbit(8):
        particles_model.advance(xp, domain.particles, centres)
        particles_model.advance(np, everything, centres)
        before = domain.tally()
        domain.exchange()
        assert_everywhere(comm, np.array_equal(before, domain.tally()), "lost")
    own = get(domain.particles)[: int(get(domain.total)[0])]
    parts = MPI.Comm.allgather(comm, own)
    found = np.concatenate(parts)
    assert np.array_equal(found[np.argsort(found[:, 4])], everything)
    assert (domain.rank_of(np, own) == comm.rank).all()
    assert comm.size == 1 or int(get(domain.moved)[0]) > 0


def test_hash_table(comm):
    """Few entries, so that words meet; a table that is too small raises."""
    words = [f"word {i * i % 23}" for i in range(40)]
    table = hash_table.Table(comm, xp, 23)
    for word in words[comm.rank :: comm.size]:
        table.add(word)
    table.finish()
    found = [pair for part in MPI.Comm.allgather(comm, table.entries()) for pair in part]
    table.free()
    expected = {hash_table.key_of(word): words.count(word) for word in words}
    assert_everywhere(comm, len(found) == len(expected) and dict(found) == expected)
    small = hash_table.Table(comm, xp, 1)
    more_than_entries = [f"{comm.rank} {i}" for i in range(comm.size + 1)]
    with pytest.raises(RuntimeError, match="all 1 entries of rank"):
        [small.add(word) for word in more_than_entries]
    small.finish()
    small.free()


@pytest.mark.parametrize("kind", [tensor_parallel.Gather, tensor_parallel.Scatter])
@pytest.mark.parametrize("full", [tensor_parallel_step.FULL, 64])
def test_tensor_parallel(comm, kind, full, monkeypatch):
    """With and without overlap, in pieces or not, and by NumPy: the same bits. A wrong one would be seen."""
    monkeypatch.setattr(tensor_parallel_step, "FULL", full)
    pytest.importorskip("ml_dtypes" if xp is np else "torch")
    step = kind(comm, device_of(comm), 8 * comm.size, 16 * comm.size)
    assert_everywhere(comm, step.is_right())
    result = step.device.get(step.out)
    assert_everywhere(comm, step.agrees(result))
    if comm.rank == 0:
        result[0, 0] += 1
    assert step.agrees(result) == (comm.rank != 0)
    step.free()


def test_moe_overlap(comm):
    """With and without overlap the same bits, and in each layer what NumPy makes. A wrong number would be seen."""
    pytest.importorskip("ml_dtypes" if xp is np else "torch")
    options = argparse.Namespace(experts=2 * comm.size + 1, k=3, layers=2, largest=100)
    device = moe_overlap_device.device_of(comm)
    layers = moe_overlap.Layers(comm, device, (10 * comm.size, 32, 16), options)
    assert_everywhere(comm, layers.is_right(1 if xp is np else 16))
    batch = layers.batches[1]
    before, after = (device.get(x[3:4])[0] for x in batch.x[1:])
    assert_everywhere(comm, batch.inputs.agree(3, before, after))
    after[0] += 0.05 * np.abs(after).max() * (comm.rank == 0)
    assert batch.inputs.agree(3, before, after) == (comm.rank != 0)
    layers.free()


@pytest.mark.parametrize("messages", [False, True])
def test_jacobi_persistent(comm, messages):
    """Parts of unequal sizes; the kernel, jacobi.py and NumPy give the same bits, and others without the neighbours."""
    cart = comm.Create_cart(MPI.Compute_dims(comm.size, 2))
    size = 4 * max(cart.dims) + 1
    start = np.random.default_rng(4).random((size + 2, size + 2))
    module, options = SimpleNamespace(DOUBLE=MPI.DOUBLE, Prequest=Prequest, Request=Request), argparse.Namespace()
    options.size, options.mpi4py = size, False
    plate = jacobi.Plate(module, cart, xp, options, messages)
    ours = jacobi_persistent.PersistentPlate(cart, xp, size)
    assert_everywhere(comm, jacobi_persistent.check(cart, plate, ours, start))
    ours.sides = ours.no_sides
    assert_everywhere(comm, jacobi_persistent.check(cart, plate, ours, start) == (comm.size == 1))
    plate.free()
    cart.Free()


def test_weight_transfer(comm):
    """Matrices that no number of ranks divides; and weights of the version before would be seen."""
    transfer = weight_transfer.Transfer(comm, xp, weight_plan.model(13))
    assert_everywhere(comm, transfer.check(3, places=1) == 0)
    assert_everywhere(comm, transfer.check(5, places=2) == 0)
    transfer.version += 1
    if transfer.trains:
        transfer.send()
    if transfer.generates:
        weights = transfer.receive()
        assert int(get(transfer.wrong(weights))) == weights.size
        transfer.release()
    synchronize()
    MPI.Comm.Barrier(comm)
    transfer.free()

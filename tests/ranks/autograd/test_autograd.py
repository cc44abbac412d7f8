"""pyncclx.autograd: values against NumPy, gradients against differences of the function over all ranks' inputs."""

import importlib

import numpy as np
import pytest
from mpi4py import MPI

from support.arrays import HOST
from support.everywhere import assert_everywhere

torch = pytest.importorskip("torch")
autograd = importlib.import_module("pyncclx.autograd")

pytestmark = pytest.mark.parametrize("comm", ["reversed"], indirect=True)
DEVICE = "cpu" if HOST else "cuda"
# Functions of a tensor that all ranks have, and of tensors of their own; with dimensions.
SAME = {"copy": [()], "scatter": [(0,), (1,), (-2,)]}
OWN = {"reduce": [()], "all_reduce": [()], "gather": [(0,), (1,)], "all_gather": [(0,), (2,), (-2,)]}
OWN |= {"reduce_scatter": [(0,), (1,)], "all_to_all": [(0, 0), (1, 0), (0, 2)]}
CASES = [(name, dims) for each in (SAME, OWN) for name, every in each.items() for dims in every]
REPLICATED = ("reduce", "gather")  # with the same result on all ranks


def inputs(comm, name):
    """All ranks' tensors, the same numbers everywhere, so that each rank can tell what must come out."""
    shape = (comm.size, comm.size, 2)
    return np.random.default_rng(5).normal(size=shape if name in SAME else (comm.size, *shape))


def expected(name, all_of_them, rank, size, dims):
    """What a rank gets, by NumPy."""
    parts = [np.array_split(each, size, dims[0]) for each in all_of_them] if dims else []
    return {
        "copy": lambda: all_of_them[rank],
        "reduce": lambda: all_of_them.sum(0),
        "all_reduce": lambda: all_of_them.sum(0),
        "scatter": lambda: parts[rank][rank],
        "gather": lambda: np.concatenate(all_of_them, dims[0]),
        "all_gather": lambda: np.concatenate(all_of_them, dims[0]),
        "reduce_scatter": lambda: sum(part[rank] for part in parts),
        "all_to_all": lambda: np.concatenate([part[rank] for part in parts], dims[-1]),
    }[name]()


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dense", [True, False])
def test_values(comm, case, dense):
    """Each function returns what NumPy computes, and leaves its argument alone, also one that is not contiguous."""
    name, dims = case
    numbers = inputs(comm, name)
    if name in SAME:
        numbers = np.broadcast_to(numbers, (comm.size, *numbers.shape))
    own = torch.tensor(numbers[comm.rank], device=DEVICE)
    x = own if dense else own.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    found = getattr(autograd, name)(x, comm, *dims).cpu().numpy()
    assert_everywhere(comm, np.allclose(found, expected(name, numbers, comm.rank, comm.size, dims), 1e-14, 1e-14))
    assert np.array_equal(x.cpu().numpy(), numbers[comm.rank])


def program(comm, name, dims):
    """A function from all ranks' inputs to all ranks' results, the same on each rank, by way of one function."""
    weight = 1 + comm.rank

    def results(numbers):
        numbers = autograd.copy(numbers, comm)
        x = autograd.reduce(numbers * weight, comm) if name in SAME else numbers[comm.rank] * weight
        y = getattr(autograd, name)(x, comm, *dims)
        return y if name in REPLICATED else autograd.gather((y * y * weight)[None], comm)

    return results


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients(comm, case):
    """The gradient, and the gradient of the gradient, are those of the whole program over all ranks' inputs.

    All ranks make the same small changes at the same time, so differences show the whole program's gradient.
    """
    numbers = torch.tensor(inputs(comm, case[0]), device=DEVICE, requires_grad=True)
    run = program(comm, *case)
    assert torch.autograd.gradcheck(run, numbers, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, numbers, fast_mode=True)


def test_wrong_adjoint_is_seen(comm, monkeypatch):
    """Without the sum of gradients in `copy` the check fails, wherever there are two ranks or more."""
    functions = importlib.import_module("pyncclx.autograd.functions")
    monkeypatch.setitem(functions.ADJOINTS, "copy", "copy")
    numbers = torch.tensor(inputs(comm, "reduce"), device=DEVICE, requires_grad=True)
    is_right = torch.autograd.gradcheck(program(comm, "reduce", ()), numbers, fast_mode=True, raise_exception=False)
    assert is_right == (comm.size == 1)


def test_two_layers_have_the_gradients_of_one_rank(comm):
    """A tensor parallel network, with and without sequence parallel regions, against PyTorch on one rank."""
    random = np.random.default_rng(3)
    x, up, down = (torch.tensor(random.normal(size=s), device=DEVICE) for s in ((8 * comm.size, 5), (5, 12), (12, 5)))
    up, down = (torch.cat([each] * comm.size, dim) for each, dim in ((up, 1), (down, 0)))
    whole = [each.clone().requires_grad_() for each in (x, up, down)]
    (torch.relu(whole[0] @ whole[1]) @ whole[2]).square().sum().backward()
    gradients = [each.grad.chunk(comm.size, dim)[comm.rank] for each, dim in zip(whole, (0, 1, 0), strict=True)]
    for ends in (autograd.copy, autograd.reduce), (autograd.all_gather, autograd.reduce_scatter):
        is_divided = ends[0] is autograd.all_gather
        mine = [x.chunk(comm.size)[comm.rank] if is_divided else x]
        mine += [up.chunk(comm.size, 1)[comm.rank], down.chunk(comm.size, 0)[comm.rank]]
        mine = [each.clone().requires_grad_() for each in mine]
        ends[1](torch.relu(ends[0](mine[0], comm) @ mine[1]) @ mine[2], comm).square().sum().backward()
        wanted = [gradients[0] if is_divided else whole[0].grad, *gradients[1:]]
        right = [torch.allclose(a.grad, b, 1e-12) for a, b in zip(mine, wanted, strict=True)]
        assert_everywhere(comm, all(right), f"{ends}: {right}")


def test_lengths_that_cannot_be_divided(comm):
    """All ranks raise, before anything is sent; and the next call is right."""
    x = torch.ones(comm.size + 1, 3, device=DEVICE)
    for name in ("scatter", "reduce_scatter", "all_to_all"):
        if comm.size > 1:
            with pytest.raises(ValueError, match=rf"dimension 0 .*\({comm.size + 1}, 3\).* {comm.size} ranks"):
                getattr(autograd, name)(x, comm)
    total = autograd.reduce(x, comm)
    assert MPI.Comm.allreduce(comm, bool((total == comm.size).all()), MPI.LAND)

"""The collectives of torch.distributed on the backend "pyncclx", against NumPy."""

import numpy as np
import pytest
from mpi4py import MPI

from support.arrays import HOST
from support.everywhere import assert_everywhere, raises_everywhere

torch = pytest.importorskip("torch")
dist = torch.distributed

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
ROOT = SIZE - 1
DEVICE = "cpu" if HOST else "cuda"
POISON = -7
ROWS = 3  # the number of rows of each rank's tensor; a row has 5 elements

pytestmark = [
    pytest.mark.parametrize("dense", [True, False], ids=["dense", "strided"]),
    # Each rank chooses for itself; in the first calls of a kind, ranks choose differently.
    pytest.mark.parametrize("later", [RANK % 2 == 0, False, True], ids=["mixed", "sync", "async"]),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # names that PyTorch has replaced
]


def numbers(rank, rows=ROWS):
    """A rank's elements, whose digits say which one of which rank each is."""
    return 100.0 * (rank + 1) + np.arange(rows * 5, dtype="f4").reshape(rows, 5)


def tensor(array, dense, dtype=torch.float32):
    """A tensor of these elements; the strided one is a part of a larger tensor, transposed."""
    array = torch.as_tensor(np.array(array)).to(DEVICE, dtype)
    if dense:
        return array
    wide = torch.full((array.shape[1], 2 * array.shape[0]), POISON, device=DEVICE).to(dtype)
    part = wide[:, ::2].t()
    part.copy_(array)
    assert array.numel() < 2 or not part.is_contiguous()
    return part


def poisoned(rows, dense, dtype=torch.float32):
    return tensor(np.full((rows, 5), POISON), dense, dtype)


def do(function, *args, later, **options):
    """Call a function of torch.distributed; with `later`, wait for its work."""
    work = function(*args, async_op=later, **options)
    assert later == (work is not None)
    if later:
        work.wait()


def check(found, expected):
    """All ranks have what NumPy says, else all fail."""
    array = np.stack([each.double().cpu().numpy() for each in found]) if isinstance(found, list) else found
    array = array.double().cpu().numpy() if isinstance(array, torch.Tensor) else array
    assert_everywhere(WORLD, np.array_equal(array, expected), f"{array} is not {expected}")


EVERY = np.stack([numbers(rank) for rank in range(SIZE)])
BITS = EVERY.astype("i8")
# tests/kernels.py has compiled the kernels for these types.
REDUCTIONS = {
    "SUM": (torch.float32, EVERY.sum(0)),
    "PREMUL_SUM": (torch.float32, EVERY.sum(0) / 2),
    "AVG": (torch.bfloat16, np.full((ROWS, 5), (SIZE + 1) / 2)),
    "PRODUCT": (torch.float64, EVERY.astype("f8").prod(0)),
    "MAX": (torch.int32, EVERY.max(0)),
    "MIN": (torch.float32, EVERY.min(0)),
    "BAND": (torch.int64, np.bitwise_and.reduce(BITS)),
    "BOR": (torch.int64, np.bitwise_or.reduce(BITS)),
    "BXOR": (torch.int64, np.bitwise_xor.reduce(BITS)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_all_reduce(dense, later, name):
    """Every operator, each on another type of elements."""
    dtype, expected = REDUCTIONS[name]
    own = np.full((ROWS, 5), 1.0 + RANK) if name == "AVG" else EVERY[RANK]
    x = tensor(own, dense, dtype)
    op = dist._make_nccl_premul_sum(0.5) if name == "PREMUL_SUM" else getattr(dist.ReduceOp, name)
    do(dist.all_reduce, x, op=op, later=later)
    check(x, expected)


@pytest.mark.parametrize(("name", "of_numpy"), [("SUM", np.any), ("MIN", np.all), ("BXOR", None)])
def test_all_reduce_of_truth(dense, later, name, of_numpy):
    every = np.random.default_rng(3).random((SIZE, ROWS, 5)) < 0.5
    x = tensor(every[RANK], dense, torch.bool)
    do(dist.all_reduce, x, op=getattr(dist.ReduceOp, name), later=later)
    check(x, of_numpy(every, 0) if of_numpy else every.sum(0) % 2)


def test_all_reduce_of_complex(dense, later):
    x = tensor(EVERY[RANK] * (1 + 2j), dense, torch.complex64)
    do(dist.all_reduce, x, later=later)
    check(torch.view_as_real(x.resolve_conj()), np.stack([EVERY.sum(0), 2 * EVERY.sum(0)], -1))


def test_an_operator_that_is_not_defined(dense, later):
    with raises_everywhere(WORLD, (ValueError, RuntimeError), match="AVG"):
        do(dist.all_reduce, poisoned(1, dense, torch.int32), op=dist.ReduceOp.AVG, later=later)
    with raises_everywhere(WORLD, ValueError, match="bool cannot be reduced by AVG"):
        do(dist.all_reduce, poisoned(1, dense, torch.bool), op=dist.ReduceOp.AVG, later=later)


def test_reduce(dense, later):
    x = tensor(EVERY[RANK], dense)
    do(dist.reduce, x, ROOT, later=later)
    check(x, EVERY.sum(0) if RANK == ROOT else EVERY[RANK])


def test_reduce_scatter(dense, later):
    """Into one tensor, from one tensor and from a list."""
    every = np.stack([numbers(rank, ROWS * SIZE) for rank in range(SIZE)])
    expected = np.split(every.sum(0), SIZE)[RANK]
    y, z = poisoned(ROWS, dense), poisoned(ROWS, dense)
    do(dist.reduce_scatter_tensor, y, tensor(every[RANK], dense), later=later)
    do(dist.reduce_scatter, z, list(tensor(every[RANK], dense).chunk(SIZE)), later=later)
    check([y, z], np.stack([expected, expected]))


def test_reduce_scatter_of_uneven_parts(dense, later):
    parts = [tensor(numbers(RANK, 1 + rank), dense) for rank in range(SIZE)]
    y = poisoned(1 + RANK, dense)
    do(dist.reduce_scatter, y, parts, later=later)
    check(y, sum(numbers(rank, 1 + RANK) for rank in range(SIZE)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.float8_e5m2], ids=str)
def test_broadcast(dense, later, dtype):
    own = tensor(EVERY[RANK], dense).to(dtype)
    x = tensor(EVERY[RANK], dense, dtype)
    do(dist.broadcast, x, ROOT, later=later)
    check(x, WORLD.bcast(own.double().cpu().numpy(), ROOT))


def test_all_gather(dense, later):
    """Into one tensor and into a list."""
    y = poisoned(ROWS * SIZE, dense)
    parts = [poisoned(ROWS, dense) for _ in range(SIZE)]
    do(dist.all_gather_into_tensor, y, tensor(EVERY[RANK], dense), later=later)
    do(dist.all_gather, parts, tensor(EVERY[RANK], dense), later=later)
    check(y.view(SIZE, ROWS, 5) if dense else y.contiguous().view(SIZE, ROWS, 5), EVERY)
    check(parts, EVERY)


def test_all_gather_of_uneven_parts(dense, later):
    """Rank r has r rows, rank 0 none."""
    parts = [poisoned(rank, dense) for rank in range(SIZE)]
    do(dist.all_gather, parts, tensor(numbers(RANK, RANK), dense), later=later)
    check(torch.cat(parts), np.concatenate([numbers(rank, rank) for rank in range(SIZE)]))


def test_gather_and_scatter(dense, later):
    parts = [poisoned(ROWS, dense) for _ in range(SIZE)] if RANK == ROOT else None
    do(dist.gather, tensor(EVERY[RANK], dense), parts, ROOT, later=later)
    check(parts or [], EVERY) if RANK == ROOT else check(torch.zeros(0), np.zeros(0))
    y = poisoned(ROWS, dense)
    do(dist.scatter, y, [tensor(each, dense) for each in EVERY] if RANK == ROOT else None, ROOT, later=later)
    check(y, EVERY[RANK])


def test_all_to_all(dense, later):
    y = poisoned(ROWS * SIZE, dense)
    do(dist.all_to_all_single, y, tensor(numbers(RANK, ROWS * SIZE), dense), later=later)
    own = slice(ROWS * RANK, ROWS * (RANK + 1))
    check(y, np.concatenate([numbers(rank, ROWS * SIZE)[own] for rank in range(SIZE)]))


def rows_between(sender, receiver):
    """How many rows go from rank to rank: none between some."""
    return (sender + 2 * receiver) % 3


def blocks_of(sender):
    """The rows for each rank."""
    ends = np.cumsum([rows_between(sender, each) for each in range(SIZE)])
    return np.split(numbers(sender, ends[-1]), ends[:-1])


def test_all_to_all_of_uneven_parts(dense, later):
    """As parts of one tensor and as lists of tensors."""
    own, receives = blocks_of(RANK), [rows_between(each, RANK) for each in range(SIZE)]
    expected = np.concatenate([blocks_of(rank)[RANK] for rank in range(SIZE)])
    y, parts = poisoned(sum(receives), dense), [poisoned(rows, dense) for rows in receives]
    send = tensor(np.concatenate(own), dense)
    do(dist.all_to_all_single, y, send, receives, [len(each) for each in own], later=later)
    do(dist.all_to_all, parts, [tensor(each, dense) for each in own], later=later)
    check([y, torch.cat(parts)], np.stack([expected, expected]))


def test_all_to_all_of_ranks_with_and_without_splits(dense, later):
    """Equal blocks may be given by splits on some ranks, also where other ranks have blocks of their own."""
    y = poisoned(2 * SIZE, dense)
    splits = [2] * SIZE if RANK == 0 else None
    do(dist.all_to_all_single, y, tensor(numbers(RANK, 2 * SIZE), dense), splits, splits, later=later)
    own = slice(2 * RANK, 2 * RANK + 2)
    check(y, np.concatenate([numbers(rank, 2 * SIZE)[own] for rank in range(SIZE)]))


def test_splits_that_do_not_fit(dense, later):
    """Wrong ones are refused before anything begins."""
    y, x = poisoned(2 * SIZE, dense), tensor(numbers(RANK, 2 * SIZE), dense)
    with raises_everywhere(WORLD, (ValueError, RuntimeError)):
        do(dist.all_to_all_single, y, x, [1] * SIZE, [1] * SIZE, later=later)


def test_an_output_of_another_type(dense, later):
    """It is refused before anything begins, and the next call is right."""
    x, y = tensor(numbers(RANK), dense), poisoned(ROWS * SIZE, dense)
    with raises_everywhere(WORLD, ValueError, match="the output is a tensor of torch.int32"):
        do(dist.all_gather_into_tensor, poisoned(ROWS * SIZE, dense, torch.int32), x, later=later)
    do(dist.all_gather_into_tensor, y, x, later=later)
    check(y, np.concatenate([numbers(rank) for rank in range(SIZE)]))


def test_coalesced(dense, later):
    """Several calls with one work."""
    xs = [tensor(EVERY[RANK] * factor, dense) for factor in (1, 2, 3)]
    ys = [poisoned(ROWS * SIZE, dense) for _ in xs]
    do(dist.all_reduce_coalesced, xs[:2], later=later)
    with dist.distributed_c10d._coalescing_manager(async_ops=later) as gathers:
        for x, y in zip(xs, ys, strict=True):
            dist.all_gather_into_tensor(y, x)
    gathers.wait()
    expected = np.stack([WORLD.size * [each] for each in (EVERY.sum(0), 2 * EVERY.sum(0))])
    check([y.contiguous().view(SIZE, ROWS, 5) for y in ys], [*expected, 3 * EVERY])


def test_empty(dense, later):
    x, y = poisoned(0, True), poisoned(0, True)
    do(dist.all_reduce, x, later=later)
    do(dist.all_gather_into_tensor, y, x, later=later)
    do(dist.all_to_all_single, y, x, later=later)
    do(dist.reduce_scatter_tensor, y, x, later=later)
    do(dist.broadcast, x, 0, later=later)
    check(y, np.zeros((0, 5)))

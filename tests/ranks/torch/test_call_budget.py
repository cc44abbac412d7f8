"""How many functions of Python a cached call of torch.distributed enters in pyncclx."""

import pytest
from mpi4py import MPI

from support.arrays import host_only
from support.functions import entered

torch = pytest.importorskip("torch")
dist = torch.distributed

SIZE = MPI.COMM_WORLD.size
COUNT = 12 * SIZE
BUDGETS = {
    "all_reduce": 22,
    "all_gather": 20,
    "reduce_scatter": 23,
    "all_to_all": 24,
    "broadcast": 19,
    "all_reduce, wait": 43,
}
pytestmark = [host_only, pytest.mark.filterwarnings("ignore::FutureWarning")]


def calls():
    x, y = torch.zeros(COUNT), torch.zeros(COUNT)
    gathered, block = torch.zeros(COUNT * SIZE), torch.zeros(COUNT // SIZE)
    return {
        "all_reduce": lambda: dist.all_reduce(x),
        "all_gather": lambda: dist.all_gather_into_tensor(gathered, x),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(block, x),
        "all_to_all": lambda: dist.all_to_all_single(y, x),
        "broadcast": lambda: dist.broadcast(x, SIZE - 1),
        "all_reduce, wait": lambda: dist.all_reduce(x, async_op=True).wait(),
    }


@pytest.mark.skipif(SIZE > 4, reason="few ranks show it")
@pytest.mark.parametrize("name", BUDGETS)
def test_a_cached_call_enters_few_functions(name):
    call = calls()[name]
    counted = []
    for _ in range(20):
        counted.append(entered(call))
        MPI.COMM_WORLD.Barrier()
    functions = min(counted, key=len)
    assert len(functions) <= BUDGETS[name], "\n".join(functions)

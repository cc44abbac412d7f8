"""What PyTorch builds on the backend "pyncclx": DDP, FSDP2, DTensor, pipelines, functional collectives."""

import copy

import pytest
from mpi4py import MPI

from support.arrays import HOST, gpu_only
from support.everywhere import assert_everywhere

torch = pytest.importorskip("torch")
dist = torch.distributed

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
DEVICE = "cpu" if HOST else "cuda"
STEPS, BATCH = 3, 4  # samples of a rank

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def model():
    torch.manual_seed(7)
    layers = torch.nn.Linear(9, 17), torch.nn.ReLU(), torch.nn.Linear(17, 3)
    return torch.nn.Sequential(*layers).to(DEVICE)


def samples():
    """The samples of all ranks in all steps."""
    return torch.randn(STEPS, SIZE * BATCH, 9, generator=torch.Generator().manual_seed(5)).to(DEVICE)


def trained(network, data):
    """Train a network; return its parameters as whole tensors."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for batch in data:
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()
    whole = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in network.parameters()]
    return torch.cat([each.detach().reshape(-1) for each in whole])


def check_close(found, expected):
    assert_everywhere(WORLD, torch.allclose(found, expected, 1e-5, 1e-6), f"{found} is not {expected}")


def own(data):
    return data[:, RANK * BATCH : (RANK + 1) * BATCH]


@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": 0.0001}, {"static_graph": True}], ids=str)
def test_ddp_is_one_rank_alone(options):
    """The parameters are those of one rank with the samples of all."""
    network = torch.nn.parallel.DistributedDataParallel(model(), **options)
    check_close(trained(network, own(samples())), trained(model(), samples()))


def test_fsdp_is_one_rank_alone():
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415  PyTorch may be missing

    network = model()
    for each in (network[0], network[2], network):
        fully_shard(each, mesh=dist.device_mesh.init_device_mesh(DEVICE, (SIZE,)))
    check_close(trained(network, own(samples())), trained(model(), samples()))


def test_dtensor():
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: PLC0415

    mesh = dist.device_mesh.init_device_mesh(DEVICE, (SIZE,))
    x = torch.arange(7.0 * 5, device=DEVICE).reshape(7, 5)  # ranks have unequal parts
    weight = torch.arange(15.0, device=DEVICE).reshape(5, 3)
    rows, columns = distribute_tensor(x, mesh, [Shard(0)]), distribute_tensor(x, mesh, [Shard(1)])
    check_close((rows @ distribute_tensor(weight, mesh, [Replicate()])).full_tensor(), x @ weight)
    check_close((columns @ distribute_tensor(weight, mesh, [Shard(0)])).full_tensor(), x @ weight)
    check_close(rows.redistribute(mesh, [Shard(1)]).to_local(), columns.to_local())
    check_close(rows.sum().full_tensor(), x.sum())


@pytest.mark.ranks(2)
@pytest.mark.parametrize("schedule", ["ScheduleGPipe", "Schedule1F1B"])
def test_pipeline_is_one_rank_alone(schedule):
    """A layer a rank, forward and backward."""
    from torch.distributed import pipelining  # noqa: PLC0415

    torch.manual_seed(11)
    layers = [torch.nn.Linear(6, 6).to(DEVICE) for _ in range(SIZE)]
    alone = copy.deepcopy(layers)
    x = torch.randn(2 * SIZE * 2, 6, device=DEVICE)
    stage = pipelining.PipelineStage(layers[RANK], RANK, SIZE, torch.device(DEVICE))
    run = getattr(pipelining, schedule)(stage, 2 * SIZE, loss_fn=lambda y, target: (y - target).square().mean())
    run.step(*([x] if RANK == 0 else []), **({"target": torch.zeros_like(x)} if RANK == SIZE - 1 else {}))
    torch.nn.Sequential(*alone)(x).square().mean().backward()
    check_close(layers[RANK].weight.grad, alone[RANK].weight.grad)


def test_functional_collectives():
    """Those that torch.compile traces, with a group by its name."""
    from torch.distributed import _functional_collectives as functional  # noqa: PLC0415

    x = torch.arange(3.0 * SIZE, device=DEVICE) + 100 * RANK
    total = torch.arange(3.0 * SIZE, device=DEVICE) * SIZE + 100 * sum(range(SIZE))
    check_close(functional.all_reduce(x, "sum", dist.group.WORLD) + 0, total)
    check_close(functional.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD) + 0, total.chunk(SIZE)[RANK])
    gathered = functional.all_gather_tensor(x[:2], 0, dist.group.WORLD) + 0
    check_close(gathered, torch.cat([torch.arange(2.0, device=DEVICE) + 100 * rank for rank in range(SIZE)]))
    exchanged = functional.all_to_all_single(x, None, None, dist.group.WORLD) + 0
    expected = [torch.arange(3.0, device=DEVICE) + 3 * RANK + 100 * rank for rank in range(SIZE)]
    check_close(exchanged, torch.cat(expected))


@gpu_only
@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_cuda_graph_holds_calls(later):
    """Replays on new numbers; the graph has two calls, of which the second needs the first."""
    x, y, z = (torch.zeros(length, device=DEVICE) for length in (1000, 1000, 1000 * SIZE))

    def step():
        work = dist.all_reduce(x, async_op=later)
        if later:
            work.wait()
        y.copy_(2 * x + RANK)
        work = dist.all_gather_into_tensor(z, y, async_op=later)
        if later:
            work.wait()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    total = SIZE * (SIZE + 1) / 2
    for replay in range(3):
        x.fill_((replay + 1) * (RANK + 1))
        z.fill_(-1)
        graph.replay()
        expected = [2 * (replay + 1) * total + rank for rank in range(SIZE)]
        check_close(z, torch.tensor(expected, device=DEVICE).repeat_interleave(1000))

"""Messages, works and groups of torch.distributed on the backend "pyncclx"."""

import gc
import importlib
import threading

import numpy as np
import pytest
from mpi4py import MPI

import pyncclx
from support.arrays import HOST
from support.everywhere import assert_everywhere, raises_everywhere

torch = pytest.importorskip("torch")
dist = torch.distributed

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
NEXT, PREVIOUS = (RANK + 1) % SIZE, (RANK - 1) % SIZE
DEVICE = "cpu" if HOST else "cuda"
COUNT = 1001


def numbers(rank, count=COUNT):
    return torch.arange(float(count), device=DEVICE) + 10000 * (rank + 1)


def check(found, expected):
    """All ranks have the expected tensor, else all fail."""
    assert_everywhere(WORLD, torch.equal(found, expected), f"{found} is not {expected}")


def poisoned(count=COUNT):
    return torch.full((count,), -7.0, device=DEVICE)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("count", [0, 1, 17, 40001])
def test_ring(count):
    """Messages of two tags, the second one received first; the tensors sent are dropped at once."""
    works = [dist.isend(numbers(RANK, count) + tag, NEXT, tag=tag) for tag in (1, 2)]
    found = [poisoned(count), poisoned(count)]
    works += [dist.irecv(found[tag - 1], PREVIOUS, tag=tag) for tag in (2, 1)]
    gc.collect()
    for work in works[::-1]:
        work.wait()
    check(torch.stack(found), torch.stack([numbers(PREVIOUS, count) + tag for tag in (1, 2)]))


@pytest.mark.ranks(2)
def test_blocking_messages_with_gaps():
    """Rank 0 sends every second column; the others receive in the same way, and pass the data on."""
    x = numbers(0).view(77, 13)[:, ::2] if RANK == 0 else poisoned().view(77, 13)[:, ::2]
    if RANK > 0:
        dist.recv(x, RANK - 1)
    if RANK < SIZE - 1:
        dist.send(x, RANK + 1)
    check(x, numbers(0).view(77, 13)[:, ::2])


@pytest.mark.ranks(2)
def test_batch():
    found = [poisoned(), poisoned()]
    calls = [dist.P2POp(dist.irecv, found[0], PREVIOUS, tag=3), dist.P2POp(dist.irecv, found[1], NEXT, tag=4)]
    sends = (NEXT, 3), (PREVIOUS, 4)
    calls += [dist.P2POp(dist.isend, numbers(RANK), peer, tag=tag) for peer, tag in sends]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    check(torch.stack(found), torch.stack([numbers(PREVIOUS), numbers(NEXT)]))


@pytest.mark.ranks(2)
def test_any_source():
    """A receive from any rank says whose message it has taken."""
    work = dist.isend(numbers(RANK), 0) if RANK > 0 else None
    pairs = [(x := poisoned(), dist.recv(x)) for _ in range(SIZE - 1)] if RANK == 0 else []
    if work is not None:
        work.wait()
    right = all(torch.equal(x, numbers(source)) for x, source in pairs)
    assert_everywhere(WORLD, right and sorted(source for _, source in pairs) == list(range(1, SIZE))[: len(pairs)])


def test_objects():
    everything = [None] * SIZE
    dist.all_gather_object(everything, {"rank": RANK, "text": "x" * (1 + 70000 * RANK)})
    assert_everywhere(WORLD, [each["rank"] for each in everything] == list(range(SIZE)))
    assert [len(each["text"]) for each in everything] == [1 + 70000 * rank for rank in range(SIZE)]
    common = [("from", RANK), None]
    dist.broadcast_object_list(common, SIZE - 1)
    assert_everywhere(WORLD, common == [("from", SIZE - 1), None])
    own = [None]
    dist.scatter_object_list(own, [f"for {rank}" for rank in range(SIZE)] if RANK == 0 else None, 0)
    assert_everywhere(WORLD, own == [f"for {RANK}"])


def test_works_in_any_order():
    """Works are complete when waited for, asked for or turned into futures, whatever comes first."""
    xs = [numbers(RANK) * factor for factor in range(5)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    works[3].wait()
    while not works[1].is_completed():
        pass
    doubled = works[2].get_future().then(lambda future: 2 * future.value()[0])
    works[4].wait()
    works[4].wait()
    works[0].wait()
    total = sum(numbers(rank) for rank in range(SIZE))
    check(doubled.wait(), 2 * 2 * total)
    check(torch.stack(xs), torch.stack([total * factor for factor in range(5)]))


def test_collective_beside_messages():
    """A rank may begin a collective, then exchange the messages that others wait for before they join it."""
    x, y = numbers(RANK), poisoned()
    work = dist.all_reduce(x, async_op=True) if RANK % 2 == 0 else None
    sent = dist.isend(numbers(RANK), NEXT) if SIZE > 1 else None
    if sent is not None:
        dist.recv(y, PREVIOUS)
        sent.wait()
        check(y, numbers(PREVIOUS))
    work = work or dist.all_reduce(x, async_op=True)
    work.wait()
    check(x, sum(numbers(rank) for rank in range(SIZE)))


def test_groups():
    """Groups with and without rank 0, in use at once, begun in different orders by different ranks."""
    first, last = dist.new_group([0]), dist.new_group(range(SIZE // 2, SIZE))
    odd = dist.new_group(range(1, SIZE, 2)) if SIZE > 1 else None
    whole = dist.new_group()
    mine = [group for group in (first, last, odd, whole) if group not in (None, dist.GroupMember.NON_GROUP_MEMBER)]
    found = [numbers(RANK) for _ in mine]
    order = range(len(mine)) if RANK % 2 else range(len(mine))[::-1]
    works = {each: dist.all_reduce(found[each], group=mine[each], async_op=True) for each in order}
    for work in works.values():
        work.wait()
    members = [dist.get_process_group_ranks(group) for group in mine]
    expected = [sum(numbers(rank) for rank in ranks) for ranks in members]
    check(torch.stack(found), torch.stack(expected))
    assert [dist.get_rank(group) for group in mine] == [ranks.index(RANK) for ranks in members]
    for group in mine:
        dist.destroy_process_group(group)


@pytest.mark.ranks(3)
def test_group_whose_first_call_is_a_message():
    group = dist.new_group(range(1, SIZE))
    y = poisoned()
    if RANK == 1:
        dist.send(numbers(RANK), group=group, group_dst=1)
    elif RANK == 2:
        assert dist.recv(y, group=group, group_src=0) == 1
    check(y if RANK == 2 else numbers(1), numbers(1))
    if RANK > 0:
        dist.destroy_process_group(group)


@pytest.mark.one_node
def test_destroyed_groups_leave_nothing():
    """More groups one after the other than there is memory for at once; their threads end, too."""
    dist.destroy_process_group(dist.new_group())
    threads = threading.active_count()
    for _ in range(40):
        group = dist.new_group()
        dist.destroy_process_group(group)
    group = dist.new_group()
    assert_everywhere(WORLD, group.comm.team.layout.slot_nbytes > 0)
    dist.destroy_process_group(group)
    assert threading.active_count() < threads + 20


def test_more_groups_than_memory():
    """Groups for which there is no memory left work by MPI."""
    groups = [dist.new_group() for _ in range(40)]
    works, xs = [], [numbers(RANK, 17) * each for each in range(len(groups))]
    for x, group in zip(xs, groups, strict=True):
        works.append(dist.all_reduce(x, group=group, async_op=True))
    for work in works:
        work.wait()
    total = sum(numbers(rank, 17) for rank in range(SIZE))
    check(torch.stack(xs), torch.stack([total * each for each in range(len(groups))]))
    for group in groups:
        dist.destroy_process_group(group)


def test_world_can_be_made_again():
    """In one process, after all groups have been destroyed."""
    dist.destroy_process_group()
    dist.init_process_group("pyncclx")
    x = numbers(RANK)
    dist.all_reduce(x)
    check(x, sum(numbers(rank) for rank in range(SIZE)))
    assert dist.get_backend() == "pyncclx"
    dist.barrier()
    assert dist.barrier(async_op=True).wait()


@pytest.mark.parametrize("backend", ["gloo", None, "cpu:gloo,cuda:nccl"])
def test_other_backends_find_their_ranks_by_pytorch(monkeypatch, backend):
    """Which looks into the environment; the import of pyncclx.torch changes nothing for them."""
    dist.destroy_process_group()
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    found = []
    try:
        dist.init_process_group(backend)
    except ValueError as error:
        found.append(str(error))
    else:
        dist.destroy_process_group()
    dist.init_process_group("cpu:pyncclx,cuda:pyncclx")
    assert_everywhere(WORLD, len(found) == 1 and "RANK expected" in found[0], f"{found}")


def test_ranks_of_ones_own():
    """A program may number its processes itself, with a store of its own."""
    dist.destroy_process_group()
    port = WORLD.bcast(_served().port if RANK == 0 else None)
    store = STORES[0] if RANK == 0 else dist.TCPStore("127.0.0.1", port)
    dist.init_process_group("pyncclx", store=store, rank=SIZE - 1 - RANK, world_size=SIZE)
    parts = [poisoned() for _ in range(SIZE)]
    dist.all_gather(parts, numbers(RANK))
    check(torch.stack(parts), torch.stack([numbers(rank) for rank in range(SIZE)[::-1]]))


STORES = []


def _served():
    STORES[:] = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    return STORES[0]


def test_more_ranks_than_processes():
    """Without mpiexec, as under torchrun, an error says what to do."""
    processes = importlib.import_module("pyncclx.torch.backend")
    with raises_everywhere(WORLD, RuntimeError, match="start the program by mpiexec"):
        processes.communicator_of(None, RANK, SIZE + 1, "more")


def test_values_are_those_of_numpy():
    """The sum has the bits of the ranks' numbers added in rank order, in single precision."""
    every = np.random.default_rng(9).normal(size=(SIZE, COUNT)).astype("f4")
    x = torch.tensor(every[dist.get_rank()]).to(DEVICE)
    dist.all_reduce(x)
    total = every[0].copy()
    for each in every[1:]:
        total += each
    check(x, torch.as_tensor(total).to(DEVICE))


@pytest.mark.ranks(2)
def test_a_first_call_emits_its_events():
    """Of a synchronous call, for which the ranks have to meet, and of an equal one after it."""
    group, seen = dist.new_group(list(range(SIZE))), []
    found = [numbers(RANK), numbers(RANK)]
    remove = pyncclx.on_event(lambda event: seen.append((event.kind, event.operation)))
    for each in found:
        dist.all_reduce(each, group=group)
    remove()
    events = [each for each in seen if each[1] == "Allreduce"]
    assert_everywhere(WORLD, events == [("start", "Allreduce"), ("end", "Allreduce")] * 2, f"{seen}")
    for each in found:
        check(each, sum(numbers(rank) for rank in range(SIZE)))
    dist.destroy_process_group(group)

"""Programs for torchrun; each rank writes what is wrong into a file, which is empty if nothing is.

torchrun_program.py NAME FOLDER
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
NAME, FOLDER = sys.argv[1:]
wrong = []


def check(fits, *words):
    """Note a mistake; a test prints it."""
    if not fits:
        wrong.append(" ".join(map(str, words)))


def sums(gloo):
    """Sums of an odd number of elements, of none and of one, are gloo's."""
    for count in (17, 0, 1, 1001):
        x = torch.arange(count, dtype=torch.float32) + 1000 * (RANK + 1)
        y = x.clone()
        dist.all_reduce(x)
        dist.all_reduce(y, group=gloo)
        check(torch.equal(x, y), "all_reduce", count, x, "gloo:", y)


def groups(gloo):
    """The first and the last rank gather; the others take no part."""
    group = dist.new_group([0, SIZE - 1], backend="pyncclx")
    if RANK in (0, SIZE - 1):
        parts = [torch.full((3,), -1.0) for _ in range(2)]
        dist.all_gather(parts, torch.arange(3.0) + 10 * RANK, group=group)
        expected = [[10.0 * rank + i for i in range(3)] for rank in (0, SIZE - 1)]
        check([part.tolist() for part in parts] == expected, "all_gather", parts)


def messages(gloo):
    """Each rank sends to the next one."""
    y = torch.full((5,), -1.0)
    sent = dist.isend(torch.arange(5.0) + 100 * RANK, (RANK + 1) % SIZE)
    dist.recv(y, (RANK - 1) % SIZE)
    sent.wait()
    check(y.tolist() == [100.0 * ((RANK - 1) % SIZE) + i for i in range(5)], "recv", y)


def training(gloo):
    """The gradients of a step of DDP are those of gloo."""
    gradients = []
    for group in (None, gloo):
        torch.manual_seed(3)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(7, 3), process_group=group)
        model((torch.arange(14.0) + RANK).reshape(2, 7)).square().sum().backward()
        gradients.append([each.grad for each in model.parameters()])
    for own, other in zip(*gradients, strict=True):
        check(torch.allclose(own, other, rtol=1e-6), "gradient", own, "gloo:", other)


def beside(gloo):
    """Use MPI and a communicator beside torch.distributed; start no processes, and fork."""
    from mpi4py import MPI  # noqa: PLC0415  pyncclx.torch comes first

    import pyncclx  # noqa: PLC0415

    check((MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size) == (RANK, SIZE), "world", MPI.COMM_WORLD.rank)
    check(MPI.Query_thread() == MPI.THREAD_MULTIPLE, "threads", MPI.Query_thread())
    check(not [name for name in os.environ if name.startswith("PMI")], "environment", os.environ)
    x = np.arange(9.0) + RANK
    pyncclx.Communicator(MPI.COMM_WORLD).Allreduce(MPI.IN_PLACE, x)
    check(np.array_equal(x, SIZE * np.arange(9.0) + sum(range(SIZE))), "Allreduce", x)
    try:
        MPI.COMM_SELF.Spawn(sys.executable, ["-c", "pass"])
        check(False, "Spawn")
    except MPI.Exception:
        pass
    child = os.fork()
    if child == 0:
        os._exit(0)
    check(os.waitpid(child, 0)[1] == 0, "child")
    dist.barrier()


def works():
    """Everything; the group is not destroyed."""
    import pyncclx.torch  # noqa: F401, PLC0415

    dist.init_process_group("pyncclx")
    gloo = dist.new_group(backend="gloo")
    for subject in (sums, groups, messages, training, beside):
        subject(gloo)


def others():
    """Only rank 0 of a program for gloo imports the backend."""
    if RANK == 0:
        import pyncclx.torch  # noqa: F401, PLC0415
    dist.init_process_group("gloo")
    x = torch.full((3,), 1.0 + RANK)
    dist.all_reduce(x)
    check(x.tolist() == [3.0] * 3, "all_reduce", x)
    dist.destroy_process_group()


def restarts():
    """Rank 1 raises, then aborts, then ends before MPI_Init; the fourth attempt works."""
    import pyncclx.torch  # noqa: F401, PLC0415
    from pyncclx.torch import torchrun  # noqa: PLC0415

    if ATTEMPT == 2 and RANK == 1:
        torchrun.join = lambda *arguments: os._exit(4)
    dist.init_process_group("pyncclx")
    dist.barrier()
    if ATTEMPT < 2 and RANK == 1:
        remove_memory()
    if ATTEMPT == 0 and RANK == 1:
        raise ValueError("rank 1 raises")
    if ATTEMPT == 1 and RANK == 1:
        torchrun.MPI.COMM_WORLD.Abort(5)
        time.sleep(60)
    # Not gloo's sums: a rank of a later attempt may find the address of an earlier one in torchrun's store.
    x = torch.arange(1001.0) + 1000 * (RANK + 1)
    dist.all_reduce(x)
    check(torch.equal(x, SIZE * torch.arange(1001.0) + 500 * SIZE * (SIZE + 1)), "all_reduce", x)
    dist.barrier()
    dist.destroy_process_group()


def remove_memory():
    """Remove the file of MPICH's shared memory, which remains when its processes are killed."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    for path in {line.split()[-1] for line in lines if "/mpich_shm_" in line}:
        Path(path).unlink()


def errors():
    """A group without all ranks, then those with a late rank; after these errors the group works."""
    import pyncclx.torch  # noqa: PLC0415

    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    if RANK == 0:
        raises(lambda: pyncclx.torch.torchrun.start(store, 1), "has 1 of torchrun's 2 ranks")
        late = dist.PrefixStore("late", store)
        raises(lambda: pyncclx.torch.torchrun.start(late, 2), "MPI cannot be initialized: after 2 s", "missing: 1")
    else:
        early = dist.PrefixStore("early", store)
        raises(lambda: pyncclx.torch.torchrun.start(early, 2), "rank 0 has not started MPI's server within 2 s")
    dist.barrier()
    os.environ["PYNCCLX_TIMEOUT"] = "60"
    x = torch.full((3,), 1.0 + RANK)
    dist.all_reduce(x, group=dist.new_group(backend="pyncclx"))
    check(x.tolist() == [3.0] * 3, "all_reduce", x)


def raises(function, *texts):
    """Check that the function raises RuntimeError with these texts."""
    try:
        function()
        check(False, "no error", texts)
    except RuntimeError as error:
        check(all(text in str(error) for text in texts), error)


{"works": works, "others": others, "restarts": restarts, "errors": errors}[NAME]()
Path(FOLDER, f"{ATTEMPT}-{RANK}").write_text("\n".join(wrong))

"""Every collective with small arguments, and calls in all forms: blocking, nonblocking, persistent."""

COUNT = 37
FORMS = ("blocking", "nonblocking", "persistent")


def arguments(comm, name, count=COUNT):
    """A send buffer's length, elements to receive, with counts as a tuple; what comes after; keywords."""
    n, rank, size = count, comm.rank, comm.size
    lengths = [n + r for r in range(size)]
    rooted = {"root": size - 1}
    return {
        "Reduce": (n, n, (), rooted),
        "Allreduce": (n, n, (), {}),
        "Scan": (n, n, (), {}),
        "Exscan": (n, n, (), {}),
        "Reduce_scatter_block": (n * size, n, (), {}),
        "Reduce_scatter": (sum(lengths), lengths[rank], (lengths,), {}),
        "Gather": (n, n * size, (), rooted),
        "Scatter": (n * size, n, (), rooted),
        "Allgather": (n, n * size, (), {}),
        "Alltoall": (n * size, n * size, (), {}),
        "Gatherv": (lengths[rank], (sum(lengths), lengths), (), rooted),
        "Scatterv": ((sum(lengths), lengths), lengths[rank], (), rooted),
        "Allgatherv": (lengths[rank], (sum(lengths), lengths), (), {}),
        "Alltoallv": ((n * size, [n] * size), (n * size, [n] * size), (), {}),
    }[name]


def spec(array, length):
    """The array, with its counts if it has some."""
    return [array, length[1]] if isinstance(length, tuple) else array


def total(length):
    """Elements in all."""
    return length[0] if isinstance(length, tuple) else length


NAMES = (
    *("Reduce", "Allreduce", "Scan", "Exscan", "Reduce_scatter_block", "Reduce_scatter", "Gather", "Scatter"),
    *("Allgather", "Alltoall", "Gatherv", "Scatterv", "Allgatherv", "Alltoallv"),
)


def call(comm, form, name, *args, starts=1, **keywords):
    """A collective in one of its forms."""
    if form == "blocking":
        getattr(comm, name)(*args, **keywords)
    elif form == "nonblocking":
        getattr(comm, f"I{name.lower()}")(*args, **keywords).Wait()
    else:
        request = getattr(comm, f"{name}_init")(*args, **keywords)
        for _ in range(starts):
            request.Start()
            request.Wait()

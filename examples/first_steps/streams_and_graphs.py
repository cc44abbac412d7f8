"""First step 2: calls on a stream, which can be repeated or captured."""

from start import comm, report, xp

x, y = xp.ones(1000, "f4"), xp.empty(1000, "f4")

# A call returns at once; the host does not wait here.
# Later work on the stream sees its result.
comm.Allreduce(x, y)
z = y * 2
assert (z == 2 * comm.size).all()  # reading the array waits

# Nonblocking: the call runs beside the stream's other work, which goes
# between these two lines.
request = comm.Iallreduce(x, y)
request.Wait()  # the stream waits, not the host

# Persistent: arguments are checked and the kernel is prepared once.
request = comm.Allreduce_init(x, y)
for step in range(3):
    x[:] = step
    request.Start()
    request.Wait()
    assert (y == step * comm.size).all()
request.Free()

# A graph: the host launches all calls at once.
# Each call runs once before it is captured.
if comm.device == "gpu":
    stream = xp.cuda.Stream(non_blocking=True)
    comm.Allreduce(x, y)
    x += y
    x[:] = 1
    xp.cuda.get_current_stream().synchronize()
    with stream:
        stream.begin_capture()
        comm.Allreduce(x, y)
        x += y
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch(stream)
    stream.synchronize()
    assert (x == (1 + comm.size) ** 3).all()

report("streams: done")

"""Messages between two ranks: MPI matches them on the host, kernels move the data.

`comm.Recv(array, source, tag)` takes these steps:

1. `calls.py`: `receive` gets the `Plan` of the arguments from `plan.py`, cached if an equal call was made before. For a
   new plan, source and tag are checked (`endpoint.py`), and the array is resolved (`derived/buffers.py`).
2. A host array has no plan: `Recv` of `communicator/point_to_point.py` calls mpi4py. `host/receive.py` finds envelopes
   in the received messages (`host/memory.py`, `host/landing.py`), and `host/fetch.py` fetches their data. `Recv_init`
   is in `host/persistent.py`.
3. `arrival.py`: `Incoming` has MPI receive an envelope (`envelope.py`) into host memory (`memory/scratch.py`).
4. `Incoming.finish` waits for the envelope. If no other receive is open, it waits in MPI. Otherwise it polls by
   `progress/polling.py`, which launches receives in the order of their clocks (`LamportClock` in `context.py`).
5. `Incoming.launch` reads the location of the data from the envelope. It copies data in the same MPI message. For data
   in the sender's memory (`memory/opened.py`) it packs the arguments of a kernel (`arguments.py`).
6. `endpoint.py`: `Endpoint.launch` launches `pull` of `cuda/messages/point_to_point.cu`, which waits until the sender
   has set the ready word (`memory/bounce.py`), copies the data, and sets the done word.
7. Back in `calls.py`: the current stream waits for the kernel, the status is set, and the call ends (`pending.py`).

`Send` takes the first two steps too. Then `departure.py` chooses a transport for the receiver (`peers.py`) and sends
the envelope by MPI. `Outgoing` (`send.py`) launches `put_eager` or `offer`. Nonblocking calls return requests of
`pending.py` and post their receive. The monitor thread (`progress/monitor.py`) polls posted receives while the program
does not. `context.py` holds the state of the process, and `base.py` that of each communicator.

`receive.py` and `receive_launch.py` are the second half of a receive. `exchange.py` has calls that send and receive,
such as `Sendrecv`. `staged.py` has messages of which MPI moves copies; `probe.py` and `matched.py` are for probes.

Persistent requests (`persistent/base.py`) begin an `Outgoing` or `Incoming` at each start. One launch serves all
requests that start together (`persistent/starts.py`). In a graph they use channels instead (`persistent/channels.py`),
which both ends set up when their messages match outside graphs.

Partitioned requests (`partitioned/base.py`, `partitioned/send.py`, `partitioned/receive.py`) match once, by handshake
messages (`partitioned/handshakes.py`). These are on boards in device memory (`partitioned/board.py`), whose locations
MPI transfers on the program's communicator (`partitioned/contacts.py`). Then the kernels of
`cuda/messages/partitioned.cu`, or the program's kernels, count partitions on the device. `arguments.py` packs kernels'
arguments, and `memory/arena.py` holds the memory.
"""

"""Messages between two ranks: MPI matches them on the host, kernels move the data.

The way of `comm.Recv(array, source, tag)`:

1. `calls.py`: `receive` asks `begin.py` for the `Plan` of the arguments (`side.py`): the one of an equal call before,
   or a new one, for which source and tag are checked (`endpoint.py`) and the array is resolved (`typed.py`).
2. An array on the host has none: `Recv` of `communicator/point_to_point.py` leaves it to mpi4py. `host_receive.py`
   finds envelopes in what arrives (`host_memory.py`), and `host_fetch.py` brings their data. `Recv_init` is in
   `host_persistent.py`.
3. `arrival.py`: `Incoming` has MPI receive an envelope (`envelope.py`) into host memory (`scratch.py`,
   `mpi_transfer.py`).
4. `Incoming.finish` waits for it, in MPI if no other receive is open, else by `progress.py`, which launches receives in
   the order of their clocks (`clock.py`).
5. `Incoming.launch` finds the data by the envelope: inside it, or in the sender's memory (`sender_memory.py`,
   `opened_memory.py`), where it fills the arguments of a kernel (`arguments.py`).
6. `endpoint.py`: `Endpoint.launch` launches `pull` of `cuda/messages/point_to_point.cu`, which waits until the sender
   has set the ready word (`bounce.py`), copies the data, and sets the done word.
7. Back in `calls.py`: the current stream comes after the kernel, the status is set, and the call ends (`call_end.py`).

The way of `Send` is the same up to step 2. Then `departure.py` chooses a transport by what is known of the receiver
(`peers.py`) and gives MPI the envelope; `send.py`, `Outgoing`, launches `put_eager` or `offer`. Nonblocking calls
return requests of `pending.py`, and post their receive: `watcher.py` moves it on while the program does not.
`postbox.py` holds what the process has once, and `base.py` what each communicator has.

Persistent requests (`persistent.py`, `persistent_send.py`, `persistent_receive.py`) begin an `Outgoing` or `Incoming`
at each start. What several of them launch at the same time is one launch (`batch.py`). In a graph they use channels
(`channels.py`, `channel_memory.py`) instead, which they have agreed on when they met outside.

Partitioned requests (`partitioned.py`, `partitioned_send.py`, `partitioned_receive.py`) meet once, by `letters.py`; the
kernels of `cuda/messages/partitioned.cu`, or the program's, count the rest on the device. `partitioned_ends.py` holds
what a communicator has for them, `partition_arguments.py` packs what kernels take, `arena.py` their memory.
"""

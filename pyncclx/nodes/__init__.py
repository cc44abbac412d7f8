"""Communicators over several nodes: kernels in each node, engines between nodes.

`mpi_bootstrap.topology` finds the nodes. A node is a group of ranks that can map each other's memory, and that are not
too many for a Team. A communicator over several nodes has no Team of its own. At its first call on device arrays, all
its ranks make a `Spanning` (`spanning.py`), which has these parts:

* `Spanning.local`: a communicator of this node's ranks (`mpi_bootstrap.part`), with a Team and kernels like any other;
* `rails.py`: `NodeMap`, which ranks are on which node, for any assignment of ranks to nodes;
* `rails.py`: `Rails`, the engines, made when a call first needs them. Rail k joins the ranks with local index k, so
  each rank uses its own link. The engine of all ranks, *flat*, moves data between all other pairs.

`engine.py` has the protocol `Engine`: it moves bytes (`exchange`, of any number of `Transfer`) and computes nothing.
`mpi_engine.py` (with `pieces.py`) works everywhere; on GPUs the host waits for its steps. `nccl_engine.py` (with
`nccl_library.py`) enqueues its steps on streams, and they can be captured. `Rails.why` gives the reason for the choice.

Where the host waits anyway, short messages (`Spanning.is_short`) go to the ranks that need them through host memory,
and no kernel waits for another. This is the host exchange: `host_exchange.py`, `Composition.share`.

How ``comm.Allreduce(x, y)`` runs:

1. `launch/run.py`, `by_kernel`: there is no Team, so it calls `Base.by_nodes_again`, which `communicator/over_nodes.py`
   implements. If the `Program` of an equal call is cached (`Spanning.cached`), continue at step 5.
2. Otherwise `Base.by_nodes` runs the call.
3. `collectives/allreduce.py` checks the arguments and describes them, as inside one node.
   `collectives/over_nodes/allreduce.py` makes a `SpanningCall` (`program.py`) from the description.
4. Its `compose` adds steps to a `Composition` (`composition.py`): kernels among the ranks of the node, made from a
   `launch.Call` as inside one node (`collectives/over_nodes/inside.py`), exchanges, folds of received data, copies.
   `Composition.memory` provides scratch memory. Where lengths are on the device, `on_host` adds a function that reads
   them and composes the steps that depend on them.
5. `program.py`: `Program.enqueue` enqueues the steps on the call's stream, and those marked `aside` on a second one.
   `after` names the steps of the other stream that a step waits for. Subsequent work on the stream waits for all steps.

`run.py` does this for blocking calls, `requests.py` for nonblocking and persistent ones. `comparison.py` compares the
calls of ranks, `step_monitor.py` ends steps of NCCL that time out, and `roll_call.py` asks which ranks are late.
`failures_elsewhere.py` has the failures of other nodes. `endings.py` and `dropped.py` end a communicator over nodes.

Three rules:

* All ranks add steps of the same kinds in the same order, also ranks that have nothing to move. All ranks of a node
  choose kernels together, and the engine matches transfers by their order. In one program, either all exchanges are
  aside or none is, because an engine runs one step at a time.
* After a step has failed, `Spanning.check` raises at every call, and kernels on this node end their waits
  (`ErrorRecord.abort`). Every wait ends within PYNCCLX_TIMEOUT: the other ranks raise when their own waits time out.
* The engine moves bytes, and kernels fold them. So all operators work, and all ranks and runs get the same bits. Folds
  run in the order of nodes, and of ranks inside each node, so the bits depend on the assignment of ranks to nodes. NCCL
  reduces only where the order does not change the bits, or the program has waived the order (`nccl_reduction`).
"""

"""Communicators over several nodes: kernels inside each node, and an engine that moves bytes between nodes.

A node is what `mpi_bootstrap.topology` finds: ranks that can map each other's memory, at most as many as a Team can
have. A communicator whose ranks are on several has no Team of its own; it has a `Spanning` (`spanning.py`), made at its
first call on device arrays by all ranks:

* `places.py`: which ranks are on which node, for any assignment of ranks to nodes;
* `Spanning.local`: the ranks of this node as a communicator of ours (`parts.py`). Its Team is as any other, and so are
  its kernels;
* `rails.py`: `Rails`, the engines, made when a call first needs them. Rail k joins the ranks with local index k, so
  each rank uses its own link; the engine of all ranks, *flat*, is for what has to go between other pairs.

`engine.py` has the protocol `Engine`: it moves bytes (`exchange`, of any number of `Transfer`), and computes nothing.
`mpi_engine.py` (with `pieces.py`) is there everywhere; on GPUs the host waits for its steps. `nccl_engine.py` (with
`nccl_library.py`) follows streams, and its steps can be captured. `Rails.why` has the reason for the choice.

Where the host waits anyway, a few bytes of each rank (`Spanning.is_short`) go to all ranks that need them through the
host's memory, and no kernel waits for another: `short_exchange.py`, `Composition.share`.

The way of ``comm.Allreduce(x, y)``:

1. `launch/run.py`, `by_kernel`: there is no Team, so it asks `Base.by_nodes_again`, which `communicator/over_nodes.py`
   has. An equal call that came before has a `Program` (`Spanning.known`), which is enqueued: step 5.
2. Else `Base.by_nodes` does the call.
3. `collectives/over_nodes/allreduce.py` checks the arguments and makes a `SpanningCall` (`call.py`).
4. Its `compose` adds steps to a `Composition` (`composition.py`): kernels among the ranks of the node, made from a
   `launch.Call` as inside one node (`collectives/over_nodes/inside.py`), exchanges, folds of what has come, copies
   (`steps.py`). Scratch memory for it comes from `Composition.memory`. Where lengths are on the device, `on_host` adds
   a function that reads them and composes what follows.
5. `program.py`: `Program.enqueue` puts the steps on the call's stream, those marked `aside` on a second one; `after`
   names the steps of the other stream that a step comes after. What the stream is given next comes after all of them.

`run.py` does this for blocking calls, `requests.py` for nonblocking and persistent ones.

Three rules:

* All ranks add steps of the same kinds in the same order, also those that have nothing to move: kernels are chosen by
  all ranks of a node together, and the engine matches transfers by their order. In one program all exchanges are aside,
  or none is: an engine makes one step at a time.
* A step that fails makes `Spanning.check` raise at every call from then on, and ends the waits of kernels on this node
  (`ErrorRecord.abort`). Every wait ends within PYNCCLX_TIMEOUT: the other ranks raise when theirs does.
* The engine moves bytes, and we fold: so all operators work, and all ranks and runs get the same bits. The order is
  that of nodes, and of ranks inside each; it depends on the assignment of ranks to nodes. NCCL reduces by itself only
  where no order shows in the bits, or the program has said that none need be kept (`nccl_reductions.py`).

To add an operation: a file in `collectives/over_nodes/` with the function that makes the `SpanningCall`, a line in its
`OVER_NODES`, and a case in `tests/ranks/nodes`.
"""

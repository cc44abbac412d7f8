"""Launch the kernel of a checked call on a stream.

``comm.Allreduce(x, y)`` takes these steps:

1. `communicator/reductions.py`, `Allreduce`: passes the arguments to `run.by_kernel` with `collectives.allreduce`.
2. `run.py`, `by_kernel`: makes the keys of the arguments (`keys.py`) and looks for a cached launch in
   `Team.cached_launches`. From the second equal call on it finds a launch, with its kernel and parameters, and
   continues at step 6. If only the addresses of the arrays differ from an earlier call's, `moved.py` adapts the
   parameters of that call.
3. `collectives/allreduce.py`, `allreduce`: checks the arguments and describes them (`collectives/reduction.py`), with
   the arrays as `Buffer` (`arrays/buffers.py`). Its lowering makes a `Call` (`call.py`) from the description, with the
   template arguments of the kernel (`operators/ops.py`) and its `ReduceArgs` (`memory/parameters.py`). For host arrays
   it returns None, and mpi4py's `Allreduce` runs.
4. `call.plan_of`: asks the operation's `choose` for a kernel and a grid (`collectives/algorithms.py` and the limits of
   `tuning`), finds the kernel's file in `FILES` (`sources.py`), and gets the kernel from `kernels.py`: one
   rank compiles it, all ranks load it. Calls of the same kind share a plan.
5. `run.enqueue`: makes the current stream wait for the arrays' producers (`team/streams.py`), packs the parameters
   (`Team.parameters`: the communicator's `Team`, the locations of the buffers in windows, the arguments), launches, and
   caches the launch.
6. `team/launch_order.py`, `LaunchOrder.enqueue`: orders the launch behind the communicator's last one, and calls
   `launch` of the device (`backends/`), which launches the kernel in cuda/collectives/allreduce.cu.

Nonblocking requests (`launched.py`) enter at step 5, persistent ones (`prepared.py`) at step 4. A thread launches those
in which ranks have to meet first (`later.py`). `team/compare.py` compares calls between the ranks under
PYNCCLX_CHECK=1. `time_slicing.py` decides which calls MPI runs faster than kernels.
"""

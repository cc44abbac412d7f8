"""From a call with checked arguments to its kernel on a stream.

The way of ``comm.Allreduce(x, y)``:

1. `communicator/reductions.py`, `Allreduce`: hands the arguments to `run.by_kernel`, with `collectives.allreduce`.
2. `run.by_kernel`: makes the keys of the arguments (`keys.py`) and looks for an equal call in `Team.remembered`.
   There is one from the second call on: it goes to step 6 with the kernel and the parameters of then.
3. `collectives/allreduce.py`, `allreduce`: checks the arguments and returns a `Call` (`call.py`): the arrays as
   `Buffer` (`arrays/buffers.py`), the template arguments of the kernel (`operators/ops.py`), and its `ReduceArgs`
   (`memory/parameters.py`). None for host arrays: then mpi4py's `Allreduce` does it.
4. `plan.plan_of`: asks the operation's `choose` for a kernel and a grid (`choice.py`; `collectives/ladders.py` and the
   limits of `tuning`), finds the kernel's file in `sources.FILES`, and gets the kernel from `kernels.get`: rank 0
   compiles it, all ranks load it. Equal kinds of calls share a plan.
5. `run.enqueue`: takes the current stream, which waits for the arrays' producers (`team/streams.py`), packs the
   parameters (`Team.parameters`: the communicator's `Team`, the places of the buffers in windows, the arguments),
   launches, and remembers the launch.
6. `team/launch_order.py`, `LaunchOrder.enqueue`: orders the launch behind the communicator's last one, and calls
   `launch` of the device (`backends/`): cuda/collectives/allreduce.cu.

`launched.py` and `prepared.py` are what nonblocking and persistent requests stand for; they join at step 5, and at
step 4. `team/compare.py` compares calls between the ranks under PYNCCLX_CHECK=1.
"""

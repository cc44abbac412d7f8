"""Ranks that fail: how the others get to see it at once, and what is left to do.

* `detector`: a thread that looks at the pages of the processes on this node (`mpi_bootstrap/presence.py`) and asks MPI
  for failures elsewhere; it gives each communicator its `Loss`.
* `watched`: what it looks after, as the rooms above have it.
* `losses`: what became of a communicator, and the exception that its calls raise from then on.
* `ulfm`: what MPI has found of failed ranks, where it tolerates them (User-Level Failure Mitigation).
* `meetings`: ends the waits of ranks that meet on the host (`mpi_bootstrap/waiting.py`) when one will never come.
* `interrupts`: ends waits of kernels when a signal has come (`system/signals.py`).
* `ending`: what happens when the program ends.

How a death becomes an exception: the detector calls `Team.lose`, which sets the abort word that every wait of a kernel
looks at, and the failure word that every call looks at. So a kernel that waits leaves within milliseconds, calls that
come later are not launched, and calls that succeed pay nothing.
"""

"""Failures of ranks: detection, exceptions on the other ranks, and recovery.

* `detector`: a thread that polls the pages of the processes on this node (`mpi_bootstrap/presence.py`), and asks MPI
  for failures elsewhere. It passes a `Loss` to each communicator that fails.
* `losses`: why a communicator failed, the exception that its calls raise from then on, and the protocol of what the
  detector watches, for packages above.
* `ulfm`: failed ranks that MPI reports, where it tolerates failures (User-Level Failure Mitigation).
* `meetings`: ends the waits of a rendezvous on the host (`mpi_bootstrap/waiting.py`) when a rank has failed, and what
  runs at the end of the program.
* `blame`: attributes a timeout to a rank.
* `interrupts`: ends waits of kernels after a signal (`system/signals.py`).

How a death becomes an exception: the detector calls `lose` of the communicator's error record. That sets the abort
word, which every wait of a kernel reads, and the failure word, which every call reads. So a waiting kernel ends within
milliseconds, later calls are not launched, and calls that succeed pay nothing.
"""

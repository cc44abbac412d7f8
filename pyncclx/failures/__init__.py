"""Failures of ranks and kernels: detection, and exceptions on all ranks.

* `detector`: a thread that polls the pages of the processes on this node (`mpi_bootstrap/presence.py`), and asks MPI
  for failures elsewhere. It passes a `CommFailure` to each communicator that fails.
* `comm_failures`: why a communicator failed, the exception that its calls raise from then on, and the class of objects
  that the detector watches.
* `error_record`: a communicator's record of kernel errors. `kernel_errors` makes exceptions from its words.
* `ulfm`: failed ranks that MPI reports, where it tolerates failures (User-Level Failure Mitigation).
* `policy`: ends the waits of a rendezvous on the host (`mpi_bootstrap/waiting.py`) when a rank has failed; and what the
  library runs at the end of the program.
* `attribution`: attributes a timeout to a rank.

How a death becomes an exception: the detector calls `fail` of the communicator's error record. That sets the abort
word, which every wait of a kernel reads, and the failure word, which every call reads. So a waiting kernel ends within
milliseconds, later calls are not launched, and calls that succeed pay nothing.
"""

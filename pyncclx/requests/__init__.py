"""Requests of operations on device arrays.

`request.py` defines requests of one operation, `persistent.py` persistent requests, and `host_receive.py` requests of
receives into host arrays. `wrapped.py` wraps requests of mpi4py's, for example so that their errors name failed ranks.
`open_receives.py` lists the receives whose kernels have not been launched yet. `status.py` sets statuses, and
`queries.py` returns those of several requests. `work.py` has the work behind a request, and `partitioned.py` the
requests of partitioned messages. `several.py`, `completing.py` and `objects.py` complete several requests, and
`failures.py` keeps their exceptions meanwhile. `shown.py` shows requests to mpi4py's own calls, and `late.py` defers
work out of MPI's callbacks.
"""

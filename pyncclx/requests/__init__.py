"""Requests of operations on device arrays.

`request.py` defines requests of one operation, `persistent.py` persistent requests, and `host_receive.py` requests of
receives into host arrays. `wrapped.py` defines requests of mpi4py's that name failed ranks, or that this process sends
to itself. `open_receives.py` lists the receives whose kernels have not been launched yet. `status.py` sets statuses,
and `queries.py` returns those of several requests.
"""

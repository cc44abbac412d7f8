"""Requests: what a program waits for.

`request.py` has those of one operation on device arrays, `persistent.py` those that are started again and again, and
`host_receive.py` those of receives of host arrays. `open_receives.py` lists the receives whose kernels are not
launched yet; `status.py` sets statuses.
"""

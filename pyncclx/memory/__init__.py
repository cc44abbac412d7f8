"""Memory that all peers map: the heap, its leases and their layout, and windows.

* `heap`: the process's heap, of which each communicator leases a part.
* `layout`: division of a lease into slots and rings.
* `mapped`: windows, memory of each rank that all ranks of a communicator have mapped.
* `table`: a table in device memory whose rows the host changes; `retired`: memory that waits to be freed.
* `cstruct`, `parameters`: structs of kernel parameters. `called`: the call, in the form that kernels compare.

`layout`, `parameters` and `called` have a twin in cuda/protocol/layout.cuh.
"""

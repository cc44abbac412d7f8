"""Memory that all peers map: the heap, its leases, windows, and a lease's layout.

* `heap`: the process's heap, of which each communicator leases a part.
* `layout`: division of a lease into slots and rings.
* `mapped`: windows, memory of each rank that all ranks of a communicator have mapped.
* `cstruct`, `parameters`: structs of kernel parameters. `called`: the call, in the form that ranks compare.
* `error_words`: words that kernels write for the host.

`layout`, `parameters`, `called` and `error_words` have a twin in cuda/protocol/layout.cuh.
"""

"""Memory that all peers map: the heap and its leases, windows, and what lies where in a lease.

* `heap`: the process's heap, of which each communicator leases a part.
* `layout`: how a lease is divided into slots and rings.
* `mapped`: windows, memory of each rank that all ranks of a communicator have mapped.
* `cstruct`, `parameters`: the structs that kernels are given. `called`: the call, as ranks compare it.
* `error_words`: the words that kernels write for the host.

`layout`, `parameters`, `called` and `error_words` have a twin in cuda/protocol/layout.cuh.
"""

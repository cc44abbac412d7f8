"""Memory that all peers map: the heap, windows, and what lies where in a lease."""

"""Token shuffles: dispatch tokens to experts' ranks, combine or collect results.

Read the package in this order: `settings` (a shuffle's arguments, with `placement`), `memory` (what its ranks
map, with `layout`, `parameters` and `rows`), `launch` (its kernels, whole or in two halves), `calls` (kernels'
arguments), `shuffle` (the methods that users call).
"""

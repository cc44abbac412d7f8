"""Token shuffles: dispatch tokens to the ranks of their experts, combine results.

Read the package in this order: `settings` (a shuffle's arguments, with `placement`), `memory` (memory that its ranks
map, with `parameters` and `rows`), `launch` (launches kernels, whole or in two halves), `calls` (kernels' arguments),
`shuffle` (the methods that users call).
"""

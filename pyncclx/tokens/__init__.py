"""Token shuffles: tokens go to the ranks of their experts (dispatch), and results come back (combine, collect).

Read the room in this order: `settings` (what a shuffle was made with, with `row_types` and `placement`), `memory` (what
its ranks map, with `layout`, `parameters`, `limits` and `rows`), `launch` (its kernels, at once or in two halves),
`calls` (arguments become those of a kernel), `shuffle` (the methods that users call).
"""

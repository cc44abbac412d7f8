"""Operators that kernels compute: MPI's, a program's own, and row transforms.

* `ops`: MPI's operators and AVG, and the datatypes that each is defined on.
* `user_op`: `pyncclx.Op`. `bound_op`: such an operator for one type of elements, which may be records.
* `row_transform`: `pyncclx.Transform`.
* `kept`: copies of a program's functions with the captured values of their first use.
* `linked`: the functions that kernels are linked with, those of `Op` and `Transform`.
"""

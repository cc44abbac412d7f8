"""What kernels compute: MPI's operators, a program's own operators, and transforms of what is sent.

* `ops`: MPI's operators and AVG, and the datatypes that each is defined on.
* `user_op`: `pyncclx.Op`. `bound_op`: such an operator for one type of elements; `records`: structured elements.
* `row_transform`: `pyncclx.Transform`.
* `kept`: functions of a program as they were at their first use.
* `linked`: the functions that kernels are linked with, which the last three make.
"""

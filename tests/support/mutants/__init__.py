"""Errors to plant, one at a time, in a copy of the sources: small edits that a programmer in a hurry might make.

`mutations.py` plants them, and runs the tests that should notice. Those of the protocols between ranks, which are
found by ThreadSanitizer and hostile memory, are in tests/protocol/test_mutations.py.
"""

from .kernels import KERNELS
from .python import PYTHON

MUTANTS = KERNELS | PYTHON

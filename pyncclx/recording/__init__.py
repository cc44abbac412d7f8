"""Flight recorder: a process's last calls in a mapped file that outlives it.

`ring.py` writes the file; `layout.py` defines its layout, and reads it in this or another process. `calls.py` writes
the entries of one communicator. `facts.py` has the facts of a process, `folders.py` the folders of jobs, `failures.py`
the reports of failures, and `dump.py` the dumps after a failure. `nvtx_ranges.py` marks each call for profilers.
"""

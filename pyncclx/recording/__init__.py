"""Flight recorder: a process's last calls in a mapped file that outlives it.

`ring.py` writes the file; `layout.py` defines its layout, and reads it in this or another process. `calls.py` writes
the entries of one communicator.
"""

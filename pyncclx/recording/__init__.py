"""Flight recorder: a process's last calls in a mapped file that outlives it.

`ring.py` writes the file, `reading.py` reads it in this or another process, and `layout.py` has its layout. `calls.py`
makes the entries of one communicator.
"""

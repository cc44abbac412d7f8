"""The flight recorder: a process's last calls in a ring of a mapped file, which outlives the process.

`ring.py` writes it, `reading.py` reads it, here or in another process; `layout.py` is what lies where. `calls.py` makes
the entries of one communicator.
"""

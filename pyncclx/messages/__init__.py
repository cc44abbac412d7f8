"""Messages between two ranks: matched by MPI on the host, moved by kernels. The way of one: send.py, receive.py."""

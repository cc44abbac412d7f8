"""mpi4py's tree of communicator classes, with device arrays: a family of methods in each file."""

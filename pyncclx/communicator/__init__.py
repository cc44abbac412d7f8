"""mpi4py's communicator classes with device arrays: a file per family of methods."""

"""Any array or mpi4py buffer spec -> address, count, datatype."""

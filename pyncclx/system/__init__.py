"""Facts of the machine and the process: CUDA driver, MPI library, folders, settings. Makes no CUDA context."""

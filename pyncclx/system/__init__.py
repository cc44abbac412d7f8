"""Facts of machine and process: CUDA driver, MPI library, folders, settings.

It creates no CUDA context.
"""

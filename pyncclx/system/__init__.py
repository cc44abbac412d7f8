"""Facts of machine and process: CUDA driver, MPI library, folders, settings.

The package creates no CUDA context.
"""

"""Facts of machine and process: CUDA driver, MPI library, folders, settings.

Makes no CUDA context.
"""

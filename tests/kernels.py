"""Compile every kernel for the host device, on all processors; the tests find them in the cache.

python tests/kernels.py
"""

import os
from concurrent.futures import ProcessPoolExecutor

from pyncclx import kernels
from pyncclx.devices.host import Device


def compile_file(file: str) -> str:
    """Compile one file of cuda/ with all its kernels; its name."""
    kernels.compile_image(Device(), file, ())
    return file


if __name__ == "__main__":
    files = sorted(kernels.FILES, key=lambda file: file not in kernels.REDUCTIONS)  # the long ones first
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        for name in processes.map(compile_file, files):
            print(name, flush=True)

# ruff: noqa: F403, F405  Spack gives the names
# Copyright pyncclx developers
# SPDX-License-Identifier: BSD-3-Clause
"""Spack's recipe, for Spack 1.0 and newer.

Copy it to packages/py_pyncclx/ of a repository, and set `git` to where your copy of pyncclx is. Then

    spack install py-pyncclx+cuda cuda_arch=90
"""

from spack.package import *
from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.build_systems.python import PythonPackage


class PyPyncclx(PythonPackage, CudaPackage):
    """Collectives, messages and one-sided operations on GPU arrays, behind mpi4py's communicators."""

    git = "file:///path/to/pyncclx"

    license("BSD-3-Clause")

    version("main", branch="main")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@64:", type="build")
    depends_on("py-mpi4py@4.1.1:", type=("build", "run"))
    depends_on("py-numpy@1.26:2", type=("build", "run"))
    # the host device compiles its kernels at their first use
    depends_on("gcc", type="run", when="~cuda")

    with when("+cuda"):
        depends_on("cuda@12.6:", type="run")
        depends_on("py-cuda-bindings@12.9:", type="run")
        conflicts("cuda_arch=none", msg="CuPy is built for an architecture: cuda_arch=90")
    for arch in CudaPackage.cuda_arch_values:
        depends_on(f"py-cupy@14: +cuda cuda_arch={arch}", type="run", when=f"+cuda cuda_arch={arch}")

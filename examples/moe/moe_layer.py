"""A mixture-of-experts layer that learns: forward and backward by token shuffles.

    mpiexec -n 4 python examples/moe/moe_layer.py

Every rank has some of the tokens and some of the experts, which are small two-layer networks. In a step

    forward    the router chooses k experts for each token; `dispatch` sends the tokens to them; they compute;
               `combine` sends the results back and adds them up, weighted
    backward   the handle of the forward step gives the same routing: `dispatch` sends the gradients of the sums to the
               experts, `combine` sends those of the tokens back, and `collect` those of the weights

and every rank takes a step along the negative gradient. The outputs and all gradients of the first step are compared
with the same layer in one process, by NumPy in double precision. On GPUs the arrays are CuPy's; with
PYNCCLX_DEVICE=host the same program runs without a GPU, on NumPy arrays.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where common/ is
import pyncclx
from common.program import array_module, read_options, to_host
from moe_layer_model import Gradients, Parameters, as_shown, draw, make_parameters, make_tokens, reference

# relative to the largest number: single precision, after sums of a few hundred terms
TOLERANCE = 2e-5
Array = Any  # NumPy's or CuPy's, like `xp`


def main() -> int:
    """Compare the first step with one process, train, report; return 1 if wrong."""
    comm = pyncclx.Communicator(MPI.COMM_WORLD)
    options = read_options(comm, parse)
    xp = array_module(comm, "float32")
    parameters = make_parameters(options)
    tokens, targets = make_tokens(options, comm.size)
    own = slice(comm.rank * options.tokens, (comm.rank + 1) * options.tokens)
    layer = Layer(comm, xp, parameters, options)
    x, y = xp.asarray(tokens[own]), xp.asarray(targets[own])

    first = layer.step(x, y)
    error = compare(comm, layer, first, own, reference(tokens, targets, parameters, options.k))
    losses, loads = [], []
    for _ in tqdm(range(options.steps), "steps", leave=False, delay=1, disable=comm.rank != 0):
        layer.learn(layer.step(x, y), options.rate)
        losses.append(comm.allreduce(layer.loss))
        loads.append(np.concatenate(comm.allgather(to_host(layer.rows.counts))))
    passed = error < TOLERANCE and losses[-1] < 0.5 * losses[0]
    if comm.rank == 0:
        print_results(comm, options, error, losses, passed)
        draw(options, comm, losses, np.array(loads))
    return 0 if passed else 1


class Layer:
    """One rank's part of the layer.

    Parameters
    ----------
    comm : pyncclx.Intracomm
    xp : module
        numpy or cupy.
    parameters : Parameters
        Those of all experts; this rank keeps its own, and the router.
    options : argparse.Namespace
    """

    def __init__(self, comm: Any, xp: Any, parameters: Parameters, options: argparse.Namespace) -> None:
        self.comm, self.xp, self.k = comm, xp, options.k
        capacity = comm.size * options.tokens * options.k  # the worst case: all tokens choose experts of one rank
        self.shuffle = comm.Create_token_shuffle(
            options.experts, capacity, options.hidden, "float32", k=options.k, max_tokens=options.tokens
        )
        self.experts = self.shuffle.local_experts
        self.router = xp.asarray(parameters.router)
        self.up, self.down = xp.asarray(parameters.up[self.experts]), xp.asarray(parameters.down[self.experts])
        self.loss = 0.0

    def step(self, x: Array, target: Array) -> Gradients:
        """Run forward and backward; return the gradients of the mean squared error."""
        self.out = self.forward(x)
        error = (self.out - target) / (self.comm.size * len(x))
        self.loss = float(((self.out - target) * error).sum()) / 2
        return self.backward(error)

    def forward(self, x: Array) -> Array:
        """Return the results for the tokens; keep what the backward pass needs."""
        xp = self.xp
        self.x, scores = x, x @ self.router
        self.ids = xp.ascontiguousarray(xp.argsort(-scores, axis=1, kind="stable")[:, : self.k])
        best = xp.take_along_axis(scores, self.ids, axis=1)
        weights = xp.exp(best - best.max(axis=1, keepdims=True))
        self.weights = weights / weights.sum(axis=1, keepdims=True)

        self.rows, self.handle = self.shuffle.dispatch(x, self.ids, self.weights)
        # The backward pass also dispatches, which overwrites the rows.
        self.inputs = self.rows.data.copy()
        self.hidden, self.results = [], xp.zeros_like(self.inputs)
        for expert, part in self.parts():
            self.hidden.append(xp.maximum(self.inputs[part] @ self.up[expert], 0))
            self.results[part] = self.hidden[expert] @ self.down[expert]
        return self.shuffle.combine(self.results, self.handle)

    def backward(self, d_out: Array) -> Gradients:
        """Return gradients of tokens, router and this rank's experts, from the results'."""
        xp = self.xp
        rows, _ = self.shuffle.dispatch(d_out, handle=self.handle)
        d_results = rows.data * rows.weights[:, None]
        d_inputs, d_up, d_down = xp.zeros_like(self.inputs), xp.zeros_like(self.up), xp.zeros_like(self.down)
        for expert, part in self.parts():
            d_down[expert] = self.hidden[expert].T @ d_results[part]
            d_hidden = (d_results[part] @ self.down[expert].T) * (self.hidden[expert] > 0)
            d_up[expert] = self.inputs[part].T @ d_hidden
            d_inputs[part] = d_hidden @ self.up[expert].T
        d_weights = self.shuffle.collect((rows.data * self.results).sum(axis=1), self.handle)
        d_x = self.shuffle.combine(d_inputs, self.handle, weighted=False)

        d_best = self.weights * (d_weights - (self.weights * d_weights).sum(axis=1, keepdims=True))
        d_scores = xp.zeros((len(self.x), self.router.shape[1]), "f4")
        xp.put_along_axis(d_scores, self.ids, d_best, axis=1)
        d_router = self.x.T @ d_scores
        self.comm.Allreduce(MPI.IN_PLACE, d_router)  # every rank has the same router
        return Gradients(d_x + d_scores @ self.router.T, d_router, d_up, d_down)

    def parts(self) -> list[tuple[int, slice]]:
        """Return each local expert's rows.

        CuPy has no grouped product, so the host reads the offsets. This is the only time that it waits in a step.
        """
        offsets = to_host(self.rows.offsets)
        return [(expert, slice(*offsets[expert : expert + 2])) for expert in range(len(self.experts))]

    def learn(self, gradients: Gradients, rate: float) -> None:
        """Take a step along the negative gradient."""
        self.router -= rate * gradients.router
        self.up -= rate * gradients.up
        self.down -= rate * gradients.down


def compare(comm: Any, layer: Layer, gradients: Gradients, own: slice, expected: tuple[Array, Gradients]) -> float:
    """Return the largest relative error of results and gradients. Collective."""
    out, whole = expected
    pairs = [
        (layer.out, out[own]),
        (gradients.x, whole.x[own]),
        (gradients.router, whole.router),
        (gradients.up, whole.up[layer.experts]),
        (gradients.down, whole.down[layer.experts]),
    ]
    errors = [np.abs(to_host(a) - b).max(initial=0) / (np.abs(b).max(initial=0) or 1) for a, b in pairs]
    return float(comm.allreduce(float(np.nan_to_num(max(errors), nan=np.inf)), MPI.MAX))


def print_results(comm: Any, options: argparse.Namespace, error: float, losses: list[float], passed: bool) -> None:
    """Print a summary of the run and its outcome."""
    print(f"Mixture-of-experts layer: {as_shown(options, comm.size)} on {comm.device}")
    print(f"  first step  results and gradients within {error:.1e} of one process ({TOLERANCE:.0e} allowed)")
    print(f"  {options.steps} steps    loss from {losses[0]:.4f} to {losses[-1]:.4f}")
    print(f"  picture     {options.output}")
    print(f"  check       {'PASSED' if passed else 'FAILED'}", flush=True)


def parse() -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(
        prog="moe_layer.py",
        description="Train a mixture-of-experts layer whose experts are spread over all ranks; check its gradients.",
        epilog="Start it with mpiexec, one rank a GPU; PYNCCLX_DEVICE=host runs it without a GPU.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="tokens of each rank")
    parser.add_argument("--hidden", type=int, default=32, metavar="N", help="numbers in a token")
    parser.add_argument("--inner", type=int, default=64, metavar="N", help="width of an expert")
    parser.add_argument("--experts", type=int, default=8, metavar="N", help="experts on all ranks together")
    parser.add_argument("--k", type=int, default=2, metavar="N", help="experts for each token")
    parser.add_argument("--steps", type=int, default=60, metavar="N", help="steps of learning")
    parser.add_argument("--rate", type=float, default=0.3, metavar="X", help="length of a step")
    parser.add_argument("--output", type=Path, default="moe_layer.png", metavar="FILE", help="picture to write")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of tokens and parameters")
    options = parser.parse_args()
    for name in ("tokens", "hidden", "inner", "experts", "k", "steps"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; it must be 1 or more")
    if options.hidden % 16:
        parser.error(f"--hidden is {options.hidden}; it must be a multiple of 16")
    if options.k > options.experts:
        parser.error(f"--k is {options.k}, but there are {options.experts} experts")
    return options


if __name__ == "__main__":
    sys.exit(main())

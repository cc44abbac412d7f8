"""A Fourier transform in three dimensions, with a transposition by `Alltoallw`.

    mpiexec -n 4 python examples/solvers/fft3d.py [--mpi4py]

The array is divided among the ranks along its first dimension. Each rank transforms the other two dimensions. Then
`Alltoallw` divides the array along the second dimension, and each rank transforms the first. A rank sends and receives
boxes of the array, which subarray datatypes describe. So the program sorts nothing: kernels pack and unpack the boxes.
The program smooths a noisy field: it transforms it, sets all numbers beyond a wave number to zero, and transforms back.
Spectrum and field are compared with numpy.fft on the whole array. On GPUs the arrays are CuPy's; with
PYNCCLX_DEVICE=host the same program runs without a GPU, on NumPy arrays.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py.MPI import COMM_WORLD

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where common/ is
from common.program import figure, read_options, share, sign, to_host
from solvers import array_module, end, flags, import_mpi, parse, print_results, repeat, usable

Array = Any  # NumPy's or CuPy's
TOLERANCE = 1e-12  # relative to the largest number


def main() -> int:
    """Transform, compare and draw; return 1 if the result is wrong."""
    options = read_options(COMM_WORLD, parse_options)
    MPI = import_mpi(options.mpi4py)
    comm = MPI.COMM_WORLD
    xp = array_module(comm)
    shape = (options.size, options.size + 1, options.size + 3)  # odd sizes, which divide unevenly, for the test
    field = noise(shape)
    transform = Transform(MPI, comm, xp, shape, options.mpi4py)
    own = xp.asarray(field[transform.slab(0)])
    spectrum = transform.forward(own)
    smoothed = transform.backward(spectrum * xp.asarray(filter_of(shape)[transform.slab(1)]))
    seconds = repeat(comm, xp, lambda: transform.turn(own, transform.turned, True), options.steps, graph=False)

    parts = comm.gather((to_host(spectrum), to_host(smoothed)))
    code = 0
    if comm.rank == 0:
        expected = np.fft.fftn(field)
        wanted = np.fft.ifftn(expected * filter_of(shape))
        found = np.concatenate([part[0] for part in parts], axis=1), np.concatenate([part[1] for part in parts])
        errors = [np.abs(a - b).max() / np.abs(b).max() for a, b in zip(found, (expected, wanted), strict=True)]
        sent = own.nbytes * (comm.size - 1) / comm.size
        lines = [
            ("field", f"{' by '.join(map(str, shape))} complex numbers on {comm.size} ranks"),
            ("Alltoallw", f"{1e6 * seconds:.1f} µs, {sent / seconds / 1e9:.2f} GB/s to other ranks"),
            ("errors", " and ".join(f"{error:.1e}" for error in errors) + f" ({TOLERANCE:.0e} allowed)"),
        ]
        draw(options, MPI.COMM_WORLD, field, found)
        code = print_results(options, "Fourier transform, forward and back", lines, max(errors) < TOLERANCE)
    transform.free()
    return int(COMM_WORLD.bcast(code))


class Transform:
    """The transform of an array that is divided among the ranks.

    Parameters
    ----------
    MPI, xp : module
    comm : Intracomm
    shape : tuple of int
        Shape of the whole array.
    mpi4py : bool
        Whether mpi4py communicates.
    """

    def __init__(self, MPI: Any, comm: Any, xp: Any, shape: tuple[int, int, int], mpi4py: bool) -> None:
        self.comm, self.xp = usable(comm, xp, mpi4py), xp
        self.shares = [[share(length, comm.size, rank) for rank in range(comm.size)] for length in shape[:2]]
        (_, rows), (_, columns) = (shares[comm.rank] for shares in self.shares)
        self.rank, depth = comm.rank, shape[2]
        self.straight = xp.zeros((rows, shape[1], depth), complex)  # divided along the first dimension
        self.turned = xp.zeros((shape[0], columns, depth), complex)  # divided along the second dimension

        def box(whole: Array, lengths: tuple[int, ...], starts: tuple[int, ...]) -> Any:
            return MPI.C_DOUBLE_COMPLEX.Create_subarray(whole.shape, lengths, starts).Commit()

        # The boxes to send to each rank, or to receive from it, in both divisions of the array.
        self.of_straight = [box(self.straight, (rows, n, depth), (0, first, 0)) for first, n in self.shares[1]]
        self.of_turned = [box(self.turned, (n, columns, depth), (first, 0, 0)) for first, n in self.shares[0]]

    def slab(self, dimension: int) -> tuple[slice, ...]:
        """Return this rank's part of the whole array, divided along a dimension."""
        begin, length = self.shares[dimension][self.rank]
        return (slice(None),) * dimension + (slice(begin, begin + length),)

    def turn(self, source: Array, target: Array, forward: bool) -> None:
        """Divide the array along the other dimension."""
        types = [self.of_straight, self.of_turned]
        send, receive = types if forward else reversed(types)
        self.comm.Alltoallw([source, send], [target, receive])

    def forward(self, field: Array) -> Array:
        """Return the spectrum, divided along the second dimension."""
        self.straight[...] = self.xp.fft.fftn(field, axes=(1, 2))
        self.turn(self.straight, self.turned, True)
        return self.xp.ascontiguousarray(self.xp.fft.fft(self.turned, axis=0))

    def backward(self, spectrum: Array) -> Array:
        """Return the field of a spectrum, divided along the first dimension."""
        self.turned[...] = self.xp.fft.ifft(spectrum, axis=0)
        self.turn(self.turned, self.straight, False)
        return self.xp.ascontiguousarray(self.xp.fft.ifftn(self.straight, axes=(1, 2)))

    def free(self) -> None:
        """Free the datatypes."""
        for datatype in (*self.of_straight, *self.of_turned):
            datatype.Free()


def noise(shape: tuple[int, ...]) -> Array:
    """Return the field: three waves with noise."""
    z, y, x = np.meshgrid(*(np.arange(length) / length for length in shape), indexing="ij")
    waves = np.sin(2 * np.pi * (x + 2 * y)) + np.cos(2 * np.pi * (2 * x - y + z)) + np.sin(2 * np.pi * (3 * y + z))
    return waves + 1.5 * np.random.default_rng(1).standard_normal(shape) + 0j


def filter_of(shape: tuple[int, ...]) -> Array:
    """Return 1 for small wave numbers, 0 for others."""
    numbers = np.meshgrid(*(np.fft.fftfreq(length, 1 / length) for length in shape), indexing="ij")
    return (sum(number**2 for number in numbers) < 16).astype(float)


def draw(options: argparse.Namespace, comm: Any, field: Array, found: tuple[Array, Array]) -> None:
    """Draw a slice of the field, of its spectrum, and of the smoothed field."""
    drawing, axes = figure(3)
    spectrum = np.log10(np.abs(np.fft.fftshift(found[0])).max(axis=0) + 1)
    pictures = (field[0].real, spectrum, found[1][0].real)
    titles = "Field, slice z = 0", "Spectrum, largest over z", "Small wave numbers alone"
    labels = ("x", "y"), ("wave number of x + n/2", "wave number of y + n/2"), ("x", "y")
    for each, values, title, (across, down) in zip(axes, pictures, titles, labels, strict=True):
        image = each.imshow(values, cmap="viridis")
        each.set(title=title, xlabel=across, ylabel=down)
        drawing.colorbar(image, ax=each, shrink=0.7, label="log10(1 + |amplitude|)" if values is spectrum else "value")
    sign(drawing, comm)
    drawing.savefig(options.output, dpi=120)


def parse_options() -> argparse.Namespace:
    """Parse and check the command line."""
    numbers = [("size", 32, "elements in a dimension"), ("steps", 20, "repetitions of the Alltoallw for its time")]
    return parse(flags("fft3d.py", "Transform a field in three dimensions.", *numbers), "size", "steps")


if __name__ == "__main__":
    end(main())

"""Two galaxies of massless particles around centres that pass each other."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np

# In a box of width 1: masses times the gravitational constant, and the distance within which a field is softened.
MASSES, SOFTENING = (1.0, 0.75), 0.012
# Of the centres: first distance, least distance (without softening), and first direction.
DISTANCE, NEAREST, ANGLE = 0.42, 0.13, 0.6
INNER, OUTER = 0.012, (0.125, 0.1)  # radii of the discs
TIME_STEP = 0.00068
PIXELS = 900
COLOURS = ("#3fa7ff", "#ff4d8d", "#ffc145", "#2de1a5", "#a86bff", "#ff7a3c", "#7bd943", "#f06bff")
Array = Any  # NumPy's or CuPy's
Centres = tuple[tuple[float, float], tuple[float, float]]


class Frame(NamedTuple):
    """The particles of all ranks after a step."""

    step: int
    parts: Any  # list of arrays on rank 0, None elsewhere


def first_centres() -> tuple[Array, Array]:
    """Return places and velocities of the centres, which move on parabolas."""
    whole = sum(MASSES)
    sideways = (2 * whole * NEAREST) ** 0.5 / DISTANCE
    inwards = (2 * whole / DISTANCE - sideways**2) ** 0.5
    along = np.array([np.cos(ANGLE), np.sin(ANGLE)])
    across = np.array([-along[1], along[0]])
    shares = np.array([[MASSES[1]], [-MASSES[0]]]) / whole  # relative to the common centre of mass, which is at rest
    return 0.5 + shares * DISTANCE * along, shares * (sideways * across - inwards * along)


def orbit(steps: int) -> list[Centres]:
    """Return the places of the centres in each step."""
    places, velocities = first_centres()
    way = []
    for _ in range(steps):
        way.append(tuple(map(tuple, places.tolist())))
        apart = places[1] - places[0]
        pull = TIME_STEP * apart / (apart @ apart + SOFTENING**2) ** 1.5
        velocities = velocities + np.array([MASSES[1] * pull, -MASSES[0] * pull])
        places = places + TIME_STEP * velocities
    return way


def make_galaxies(count: int, seed: int) -> Array:
    """Return particles on circles around the centres: x, y, velocities, id."""
    random = np.random.default_rng(seed)
    places, velocities = first_centres()
    of = (np.arange(count) * sum(MASSES) > MASSES[0] * count).astype(int)  # divided by mass
    radius = INNER + random.random(count) ** 0.8 * (np.array(OUTER)[of] - INNER)
    angle = 2 * np.pi * random.random(count)
    direction = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    speed = radius * (np.array(MASSES)[of] / (radius**2 + SOFTENING**2) ** 1.5) ** 0.5
    around = np.stack([-direction[:, 1], direction[:, 0]], axis=1)
    particles = np.empty((count, 5))
    particles[:, :2] = places[of] + radius[:, None] * direction
    particles[:, 2:4] = velocities[of] + speed[:, None] * around
    particles[:, 4] = np.arange(count)
    particles[:, :2] -= np.floor(particles[:, :2])
    return particles


def advance(xp: Any, particles: Array, centres: Centres) -> None:
    """Move particles by one step, by the nearest image of each centre.

    The velocity changes first, then the place (symplectic Euler). Only operations that IEEE 754 rounds in one way are
    used, one at a time, so every device has the same result.
    """
    x, y = particles[:, 0], particles[:, 1]
    for mass, (centre_x, centre_y) in zip(MASSES, centres, strict=True):
        to_x, to_y = centre_x - x, centre_y - y
        to_x, to_y = to_x - xp.rint(to_x), to_y - xp.rint(to_y)
        square = to_x * to_x + to_y * to_y + SOFTENING * SOFTENING
        pull = (TIME_STEP * mass) / (square * xp.sqrt(square))
        particles[:, 2] += pull * to_x
        particles[:, 3] += pull * to_y
    for place, velocity in ((0, 2), (1, 3)):
        moved = particles[:, place] + TIME_STEP * particles[:, velocity]
        particles[:, place] = moved - xp.floor(moved)


def picture(frame: Frame, pixels: int) -> Array:
    """Return the box as an image, shape (pixels, pixels, 3).

    Each rank's particles have its colour, which is brighter where they are denser.
    """
    image = np.zeros((pixels, pixels, 3))
    mean = sum(map(len, frame.parts)) / pixels**2  # particles in a pixel
    for rank, part in enumerate(frame.parts):
        colour = np.array([int(COLOURS[rank % len(COLOURS)][i : i + 2], 16) / 255 for i in (1, 3, 5)])
        cells = [np.minimum((part[:, axis] * pixels).astype(int), pixels - 1) for axis in (1, 0)]
        density = np.zeros((pixels, pixels))
        np.add.at(density, tuple(cells), 1 / mean)
        sharp, soft = np.log1p(blurred(density, 0.0011 * pixels)), np.log1p(2 * blurred(density, 0.005 * pixels))
        glow = (0.22 * sharp + 0.14 * soft)[:, :, None]
        image += glow * (colour + 0.12 * glow**3)
    return 1 - np.exp(-1.7 * image)


def blurred(image: Array, width: float) -> Array:
    """Return a periodic image, convolved with a Gaussian of `width` pixels."""
    frequencies = np.fft.fftfreq(len(image))
    kernel = np.exp(-2 * (np.pi * width * frequencies) ** 2)
    return np.maximum(np.fft.ifft2(np.fft.fft2(image) * kernel[:, None] * kernel).real, 0)


def draw(options: argparse.Namespace, grid: list[int], frames: list[Frame], centres: list[Centres]) -> None:
    """Draw the last frame, large, and the frames before it."""
    import matplotlib  # noqa: PLC0415  only rank 0 draws

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    rows = len(frames) - 1
    figure = plt.figure(figsize=(12.5, 10.6), facecolor="#05060a")
    panels = figure.add_gridspec(rows, 2, width_ratios=(rows, 1), wspace=0.02, hspace=0.04, left=0.02, right=0.98)
    panels.update(bottom=0.02, top=0.93)
    places = [panels[row, 1] for row in range(rows)] + [panels[:, 0]]
    for frame, place in zip(frames, places, strict=True):
        panel = figure.add_subplot(place)
        last = frame is frames[-1]
        panel.imshow(picture(frame, PIXELS if last else PIXELS // 2), origin="lower", extent=(0, 1, 0, 1))
        for lines, number in ((panel.axvline, grid[0]), (panel.axhline, grid[1])):
            for border in range(1, number):
                lines(border / number, color="white", alpha=0.25, linewidth=0.6)
        for centre in zip(*centres[: frame.step + 1], strict=True):
            panel.plot(*zip(*centre, strict=True), color="white", alpha=0.35, linewidth=0.7, linestyle=":")
        panel.text(0.02, 0.02, f"step {frame.step}", color="white", alpha=0.7, fontsize=12 if last else 8)
        panel.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(0, 1))
        panel.spines[:].set_color("#2a2e3a")
    title = f"Two galaxies pass each other: {options.particles} particles in {len(frames[-1].parts)} domains"
    figure.suptitle(f"{title}, coloured by rank", color="white", fontsize=16, x=0.02, y=0.965, ha="left")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.output, dpi=130, facecolor=figure.get_facecolor())
    plt.close(figure)

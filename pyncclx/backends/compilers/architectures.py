"""Choice of the code that runs on a GPU.

A GPU runs code of its own architecture, code of the first architecture of its generation, and PTX of older ones.
"""

from __future__ import annotations

from collections.abc import Sequence

# Prefix of the name of an architecture whose code is PTX.
VIRTUAL = "compute_"


def targets_of(architecture: str, known: Sequence[int]) -> list[str]:
    """Return the architectures whose code runs on a GPU, the best first.

    Parameters
    ----------
    known : sequence of int
        The architecture numbers that NVRTC supports, in ascending order.

    Examples
    --------
    >>> targets_of("sm_89", (80, 89, 90))
    ['sm_89', 'sm_80']
    >>> targets_of("sm_130", (80, 89, 90))
    ['compute_90', 'compute_89', 'compute_80']
    """
    number = int(architecture.rpartition("_")[2])
    if number not in known and not architecture.startswith(VIRTUAL):
        older = [f"{VIRTUAL}{each}" for each in reversed(known) if each < number]
        if older:
            return older
    first = f"sm_{number // 10}0"
    return [architecture] if architecture in (first, f"{VIRTUAL}{number}") else [architecture, first]

"""Cases: one for each operation that the benchmark can time."""

from __future__ import annotations

from . import moves, reductions
from .case import FORMS, Case, Options
from .moves import alternating

__all__ = ["CASES", "FORMS", "Case", "Options", "alternating"]

# Cases by the operation's name, in alphabetical order.
CASES: dict[str, type[Case]] = {
    case.method.lower(): case
    for _, case in sorted((vars(moves) | vars(reductions)).items())
    if isinstance(case, type) and issubclass(case, Case) and hasattr(case, "method")
}

"""One file per operation: describe arguments, choose an algorithm, make the call.

`over_nodes` has the calls over several nodes, which it makes from the same descriptions (`lowering.py`).
"""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from ..operations import COLLECTIVES

# By the name of the method; each module has `choose(layout, nbytes)`.
MODULES: dict[str, ModuleType] = {row.name: import_module(f".{row.module}", __name__) for row in COLLECTIVES.values()}
#: The functions that check arguments and make calls among the ranks of a node.
FUNCTIONS: dict[str, Callable[..., Any]] = {name: getattr(module, name.lower()) for name, module in MODULES.items()}

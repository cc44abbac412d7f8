"""Operations inside a node: check arguments, choose an algorithm, make the call.

`over_nodes` makes the calls over several nodes from the same checked arguments (`lowering.py`).
"""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from ..operations import COLLECTIVES

_MODULES: dict[str, ModuleType] = {row.name: import_module(f".{row.module}", __name__) for row in COLLECTIVES.values()}
#: The functions that check arguments and make calls among the ranks of a node.
FUNCTIONS: dict[str, Callable[..., Any]] = {name: getattr(module, name.lower()) for name, module in _MODULES.items()}
#: The function ``choose(layout, nbytes)`` of each operation; a module with several operations has a table of them.
CHOOSE: dict[str, Callable[..., Any]] = {
    name: module.CHOOSE[name] if hasattr(module, "CHOOSE") else module.choose for name, module in _MODULES.items()
}

"""Read from a Python file which modules it imports, by a statement or by a constant name."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

# Functions and objects that have a module for its name.
BY_NAME = re.compile(r"(.*\.)?(import_module|__import__|modules\.(get|pop|setdefault)|modules\[\])")


def imported(module: str, path: Path, files: Collection[str]) -> Iterator[tuple[int, str]]:
    """The modules that a module imports from, with the lines."""
    package = module.split(".")[:-1]
    for line, name, parts in imports(path.read_text()):
        source = absolute(name, package)
        # "from ..launch import run" names a file, "from .. import arrays" a room, "from .. import AVG" neither
        wholes = [f"{source}.{part}" for part in parts]
        names = [whole if is_file(whole, files) else source for whole in wholes] or [source]
        yield from ((line, f"{each}.__init__" if f"{each}.__init__" in files else each) for each in names)


@functools.cache  # tests plant a mistake in one file, and read all of them again
def imports(source: str) -> list[tuple[int, str, list[str]]]:
    """The imports of a source: line, module, which may begin with dots, and what is imported from it."""
    tree, found = ast.parse(source), []
    strings = constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found.append((node.lineno, module, [alias.name for alias in node.names]))
        elif (named := by_name(node, strings)) is not None:
            found.append((node.lineno, named, []))
    return found


def is_file(name: str, files: Collection[str]) -> bool:
    """Whether a module or package has this name."""
    return name in files or f"{name}.__init__" in files


def absolute(name: str, package: Sequence[str]) -> str:
    """The whole name of a module, from one that may begin with dots."""
    level = len(name) - len(name.lstrip("."))
    return ".".join([*package[: len(package) - level + 1], *filter(None, [name[level:]])]) if level else name


def constants(tree: ast.Module) -> dict[str, str]:
    """The strings that a module has names for, such as `_PACKAGE = "pyncclx"`."""
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)]
    return {ast.unparse(node.targets[0]): node.value.value for node in assigned if isinstance(node.value.value, str)}


def by_name(node: ast.AST, strings: Mapping[str, str]) -> str | None:
    """The module of `import_module("…")`, `__import__("…")` or `sys.modules["…"]`, if the name is constant."""
    if isinstance(node, ast.Call) and node.args:
        called, name = ast.unparse(node.func), node.args[0]
    elif isinstance(node, ast.Subscript):
        called, name = f"{ast.unparse(node.value)}[]", node.slice
    else:
        return None
    return text_of(name, strings) if BY_NAME.fullmatch(called) else None


def text_of(node: ast.expr, strings: Mapping[str, str]) -> str | None:
    """The value of a string; None if it depends on more than constants."""
    if isinstance(node, ast.JoinedStr):
        parts = [text_of(each, strings) for each in node.values]
        return None if None in parts else "".join(filter(None, parts))
    if isinstance(node, ast.FormattedValue):
        return text_of(node.value, strings)
    if isinstance(node, ast.Name):
        return strings.get(node.id)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None

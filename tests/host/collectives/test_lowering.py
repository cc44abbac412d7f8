"""An operation's description of its arguments is lowered to a call inside a node, and to one over nodes."""

import ast
import inspect
from pathlib import Path

import pytest

import pyncclx
from pyncclx.collectives import FUNCTIONS, arguments
from pyncclx.collectives.alltoallv_dynamic import DynamicOptions
from pyncclx.collectives.lowering import lowered_by, over_nodes
from pyncclx.collectives.over_nodes import OVER_NODES
from pyncclx.communicator.communicator import Cartcomm

FOLDER = Path(arguments.__file__).parent


def _parameters(function):
    """Names and defaults, without the communicator; keywords of any name are Alltoallv's options."""
    found = []
    for each in list(inspect.signature(function).parameters.values())[1:]:
        is_open = each.kind is each.VAR_KEYWORD
        found += dict.fromkeys(DynamicOptions._fields).items() if is_open else [(each.name, each.default)]
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters_are_those_of_the_method(name):
    make = FUNCTIONS[name]
    assert _parameters(make) == _parameters(OVER_NODES[make]) == _parameters(getattr(Cartcomm, name))
    assert make.__name__ == OVER_NODES[make].__name__ == name.lower()


@pytest.mark.parametrize("path", sorted((FOLDER / "over_nodes").glob("*.py")), ids=lambda path: path.stem)
def test_lowerings_over_nodes_check_no_arguments(path):
    """What they import are descriptions, not the functions that make these."""
    names = {
        alias.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    checks = {name for name in vars(arguments) if name.startswith(("check_", "resolve"))}
    assert names & {"on_host", "takes_derived", "ops", "is_in_place", *checks} == set()


@lowered_by(lambda comm, given: ["in a node", comm, given])
def allreduce(comm, buf, *, algorithm=None):
    return None if buf == "on the host" else (buf, algorithm)


OVER = over_nodes(allreduce, lambda comm, given: ["over nodes", comm, given])


def test_both_lower_the_same_description():
    assert allreduce("comm", "x") == ["in a node", "comm", ("x", None)]
    assert OVER("comm", "x") == ["over nodes", "comm", ("x", None)]
    assert allreduce("comm", "on the host") is OVER("comm", "on the host") is None


def test_an_algorithm_names_a_kernel_inside_a_node():
    assert allreduce("comm", "x", algorithm="one_shot") == ["in a node", "comm", ("x", "one_shot")]
    with pytest.raises(pyncclx.NotSupported, match="Allreduce: algorithm='one_shot' names a kernel inside one node"):
        OVER("comm", "x", algorithm="one_shot")
    assert OVER("comm", "on the host", algorithm="one_shot") is None

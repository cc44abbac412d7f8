"""C++ structs as dataclasses have the bytes that a C++ compiler gives them."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import pytest

from pyncclx.memory.cstruct import I32, U32, U64, CStruct, offsets_of, sizeof


@dataclass(slots=True, kw_only=True)
class Single(CStruct):
    word: U64


@dataclass(slots=True, kw_only=True)
class Mixed(CStruct):
    number: I32
    address: U64 = 7
    first: Annotated[Sequence[int], "3I"] = ()
    last: U32 = 9


@dataclass(slots=True, kw_only=True)
class Derived(Mixed):
    more: Annotated[Sequence[int], "2Q"]


def test_a_single_field():
    assert Single(word=5).pack() == struct.pack("=Q", 5)


def test_padding_and_arrays():
    assert Mixed(number=-1, first=[1, 2]).pack() == struct.pack("=i4xQ4I", -1, 7, 1, 2, 0, 9)
    assert offsets_of(Mixed) == {"number": 0, "address": 8, "first": 16, "last": 28}
    assert sizeof(Mixed) == 32


def test_a_struct_that_begins_with_another():
    assert Derived(number=1, more=[4]).pack() == struct.pack("=i4xQ4IQQ", 1, 7, 0, 0, 0, 9, 4, 0)


@dataclass(slots=True, kw_only=True)
class Short(CStruct):
    address: U64
    number: I32


@dataclass(slots=True, kw_only=True)
class Longer(Short):
    flag: I32


def test_padding_at_the_end_of_a_base():
    """C++ does not put fields there."""
    assert Longer(address=1, number=2, flag=3).pack() == struct.pack("=Qi4xi4x", 1, 2, 3)
    assert offsets_of(Longer) == {"address": 0, "number": 8, "flag": 16}
    assert (sizeof(Short), sizeof(Longer)) == (16, 24)


def test_what_does_not_fit_is_refused():
    with pytest.raises(struct.error):
        Single(word=-1).pack()
    with pytest.raises(struct.error):
        Mixed(number=0, first=[1, 2, 3, 4]).pack()

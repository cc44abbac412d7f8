"""C++ structs as dataclasses, whose `pack` returns their bytes, padded as in C++."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, ClassVar, NamedTuple, get_type_hints

# Field types, each with its code for the module `struct`. A pointer is the U64 of an address. An array is an
# `Annotated[Sequence[int], "16q"]`; missing items are 0.
I32 = Annotated[int, "i"]
U32 = Annotated[int, "I"]
I64 = Annotated[int, "q"]
U64 = Annotated[int, "Q"]
ALIGNMENT = 8  # bytes, for every struct


class CStruct:
    """Base of dataclasses that are C++ structs, aligned to 8 bytes.

    A derived class begins with the fields of its base.
    """

    __slots__ = ()
    _form: ClassVar[_Form]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._form = _form_of(cls)

    def pack(self) -> bytes:
        """Return the bytes of the struct."""
        parts = self._form.parts
        return parts[0](self) if len(parts) == 1 else b"".join([part(self) for part in parts])


def sizeof(struct: type[CStruct]) -> int:
    """Return the length of a struct in bytes."""
    return struct._form.nbytes


def offsets_of(struct: type[CStruct]) -> dict[str, int]:
    """Return the offset of each field of a struct, in bytes."""
    return struct._form.offsets


# A function that returns the bytes of some of a struct's fields, with the padding before them.
Part = Callable[[Any], bytes]


class _Form(NamedTuple):
    # One part for each array, and one for the fields between two arrays.
    parts: list[Part]
    offsets: dict[str, int]
    nbytes: int


def _form_of(cls: type[CStruct]) -> _Form:
    hints = get_type_hints(cls, include_extras=True)
    offsets, parts, codes, end = {}, [], "", 0
    names: list[str] = []  # fields since the last array
    for name, code, alignment in _codes_of(cls, hints):
        offsets[name] = -(-end // alignment) * alignment
        codes += f"{offsets[name] - end}x"
        end = offsets[name] + struct.calcsize(f"={code}")
        if len(code) > 1:
            parts += [_fields(names, codes), _array(name, code)]
            names, codes = [], ""
        else:
            names, codes = [*names, name], codes + code
    nbytes = -(-end // ALIGNMENT) * ALIGNMENT
    parts.append(_fields(names, f"{codes}{nbytes - end}x"))
    return _Form([part for part in parts if part is not None], offsets, nbytes)


def _codes_of(cls: type[CStruct], hints: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Yield name, code and alignment of each field.

    The first field of a derived class begins at a new 8-byte word.
    """
    for base in reversed(cls.__mro__[: cls.__mro__.index(CStruct)]):
        for number, name in enumerate(vars(base).get("__annotations__", {})):
            code = hints[name].__metadata__[0]
            yield name, code, struct.calcsize(code[-1]) if number else ALIGNMENT


def _fields(names: list[str], codes: str) -> Part | None:
    """Return the part of fields that are not arrays; None if it has no bytes."""
    form = struct.Struct(f"={codes}")
    if form.size == 0:
        return None
    pack, get = form.pack, attrgetter(*names) if names else None
    if get is None:
        return lambda _: pack()
    # attrgetter returns no tuple for a single name.
    if len(names) == 1:
        return lambda fields: pack(get(fields))
    return lambda fields: pack(*get(fields))


def _array(name: str, code: str) -> Part:
    """Return the part of an array: the given items, then zeros."""
    items_of, length, itemcode = attrgetter(name), int(code[:-1]), code[-1]

    def pack(fields: Any) -> bytes:
        items = items_of(fields)
        return _packer(itemcode, len(items), length)(*items)

    return pack


@cache
def _packer(code: str, count: int, length: int) -> Callable[..., bytes]:
    return struct.Struct(f"={count}{code}{(length - count) * struct.calcsize(code)}x").pack

"""C++ structs as dataclasses: `pack` returns their bytes as a C++ compiler lays them out, with its padding."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, ClassVar, NamedTuple, get_type_hints

# Types of fields, each with its code for the module `struct`. A pointer is a U64: an address. An array is an
# `Annotated[Sequence[int], "16q"]`; zeros follow the items that it is given.
I32 = Annotated[int, "i"]
U32 = Annotated[int, "I"]
I64 = Annotated[int, "q"]
U64 = Annotated[int, "Q"]
ALIGNMENT = 8  # of every struct


class CStruct:
    """Base of such dataclasses. One that inherits from another begins with its fields. All are aligned to 8 bytes."""

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
    """Return where each field of a struct begins, in bytes."""
    return struct._form.offsets


Part = Callable[[Any], bytes]  # from a struct to the bytes of some of its fields, with the padding before them


class _Form(NamedTuple):
    parts: list[Part]  # each array is one, and the fields between two arrays are one
    offsets: dict[str, int]
    nbytes: int


def _form_of(cls: type[CStruct]) -> _Form:
    hints = get_type_hints(cls, include_extras=True)
    offsets, parts, codes, end = {}, [], "", 0
    names: list[str] = []  # of the fields since the last array
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
    """Name, code and alignment of each field; the first fields of a class follow those of its base at a new word."""
    for base in reversed(cls.__mro__[: cls.__mro__.index(CStruct)]):
        for number, name in enumerate(vars(base).get("__annotations__", {})):
            code = hints[name].__metadata__[0]
            yield name, code, struct.calcsize(code[-1]) if number else ALIGNMENT


def _fields(names: list[str], codes: str) -> Part | None:
    """The part of some fields, none of them an array; None if it has no bytes."""
    form = struct.Struct(f"={codes}")
    if form.size == 0:
        return None
    pack, get = form.pack, attrgetter(*names) if names else None
    if get is None:
        return lambda _: pack()
    if len(names) == 1:  # of a single name attrgetter returns no tuple
        return lambda fields: pack(get(fields))
    return lambda fields: pack(*get(fields))


def _array(name: str, code: str) -> Part:
    """The part of an array: the items that it is given, then zeros."""
    items_of, length, itemcode = attrgetter(name), int(code[:-1]), code[-1]

    def pack(fields: Any) -> bytes:
        items = items_of(fields)
        return _packer(itemcode, len(items), length)(*items)

    return pack


@cache
def _packer(code: str, count: int, length: int) -> Callable[..., bytes]:
    return struct.Struct(f"={count}{code}{(length - count) * struct.calcsize(code)}x").pack

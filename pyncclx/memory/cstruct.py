"""C++ structs as dataclasses: `pack` returns their bytes as a C++ compiler lays them out, with its padding."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Annotated, Any, ClassVar, NamedTuple, get_type_hints

# Types of fields, each with its code for the module `struct`. A pointer is a U64: an address. An array is an
# `Annotated[Sequence[int], "16q"]`; zeros follow the items that it is given.
I32 = Annotated[int, "i"]
U32 = Annotated[int, "I"]
I64 = Annotated[int, "q"]
U64 = Annotated[int, "Q"]


class CStruct:
    """Base of such dataclasses. One that inherits from another begins with its fields. All are aligned to 8 bytes."""

    __slots__ = ()
    _form: ClassVar[_Form]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._form = _form_of(cls)

    def pack(self) -> bytes:
        """Return the bytes of the struct."""
        form = self._form
        values = form.values_of(self)
        if form.arrays:
            values = _flattened(values, form.arrays)
        return form.pack(*values)


def sizeof(struct: type[CStruct]) -> int:
    """Return the length of a struct in bytes."""
    return struct._form.nbytes


def offsets_of(struct: type[CStruct]) -> dict[str, int]:
    """Return where each field of a struct begins, in bytes."""
    return struct._form.offsets


class _Form(NamedTuple):
    pack: Callable[..., bytes]
    values_of: Callable[[Any], Sequence[Any]]
    arrays: list[tuple[int, int]]  # number and length of each field that is one, the last first
    offsets: dict[str, int]
    nbytes: int


def _form_of(cls: type[CStruct]) -> _Form:
    codes, code_of, offsets = "@", {}, {}
    hints = get_type_hints(cls, include_extras=True)
    for base in reversed(cls.__mro__[: cls.__mro__.index(CStruct)]):
        for name in vars(base).get("__annotations__", {}):
            code = code_of[name] = hints[name].__metadata__[0]
            offsets[name] = struct.calcsize(f"{codes}0{code[-1]}")
            codes += code
        codes += "0Q"
    arrays = [(number, int(code[:-1])) for number, code in enumerate(code_of.values()) if len(code) > 1]
    whole = struct.Struct(codes)
    get = attrgetter(*code_of)
    values_of = get if len(code_of) > 1 else lambda fields: (get(fields),)  # a single name gives no tuple
    return _Form(whole.pack, values_of, arrays[::-1], offsets, whole.size)


def _flattened(values: Sequence[Any], arrays: list[tuple[int, int]]) -> list[int]:
    flat = list(values)
    for number, length in arrays:
        items = flat[number]
        flat[number : number + 1] = [*items, *[0] * (length - len(items))]
    return flat

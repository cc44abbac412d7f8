"""Say where the notes of two jobs differ."""

import math
from typing import Any

import numpy as np

from programs.job import Outcome
from programs.program import OneOf


def differences(expected: Outcome, found: Outcome) -> list[str]:
    """Return what differs, in words, and what went wrong before there was something to compare."""
    texts = list(found.errors)
    for rank, (wanted, notes) in enumerate(zip(expected.notes, found.notes, strict=True)):
        if wanted is not None and notes is not None:
            texts += [f"rank {rank}, {text}" for text in _of_rank(wanted, notes, is_whole=not found.errors)]
    return texts


def _of_rank(wanted: list[tuple[str, Any]], notes: list[tuple[str, Any]], *, is_whole: bool) -> list[str]:
    texts = [
        f"{label}: {_short(value)} instead of {_short(right)}" if label == other else f"{label} instead of {other}"
        for (other, right), (label, value) in zip(wanted, notes, strict=False)
        if label != other or not same(right, value)
    ]
    if is_whole and len(wanted) != len(notes):
        texts.append(f"{len(notes)} notes instead of {len(wanted)}")
    return texts


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, in type, in every element, NaN being equal to NaN."""
    if isinstance(one, OneOf):
        return any(same(each, other) for each in one.values)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return (
            isinstance(one, np.ndarray)
            and isinstance(other, np.ndarray)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) < 160 else f"{text[:100]} ... {text[-50:]}"

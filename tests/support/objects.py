"""Python objects with device arrays in them, the same with NumPy's, and how two of them are compared."""

import numpy as np

from support.arrays import get, put, xp
from support.reference import labels


class Model:
    """An object of a program's own, whose state depends on an array when it is put together again."""

    def __init__(self, weights, name):
        self.weights, self.name = weights, name

    def __reduce__(self):
        return _model, (self.weights, self.name)


def _model(weights, name):
    model = Model(weights, name)
    model.doubled = weights + weights  # of the data, which must be there or on its way
    return model


def _two(make, rank, call):
    shared = make(labels(rank, 17, call))
    return [shared, {"again": shared, "host": np.arange(3.0) + rank}]


def _gaps(make, rank, call):
    return make(labels(rank, 60, call).reshape(6, 10))[::2, 1::3]


KINDS = {  # what makes an object, given what makes an array of a NumPy array, a rank and a call
    "one": lambda make, rank, call: make(labels(rank, 33, call)),
    "long": lambda make, rank, call: make(labels(rank, 40_001, call)),
    "empty": lambda make, rank, call: make(np.zeros((0, 3), "f4")),
    "Fortran": lambda make, rank, call: make(labels(rank, 24, call).reshape(4, 6)).T,
    "gaps": _gaps,
    "hundred": lambda make, rank, call: {f"w{i}": make(labels(rank, 3 * i, call).astype("f4")) for i in range(100)},
    "types": lambda make, rank, call: [make((labels(rank, 7, call) % 100).astype(t)) for t in ("f2", "c16", "?", "u1")],
    "shared": _two,
    "model": lambda make, rank, call: Model(make(labels(rank, 1 + 2000 * rank, call)), f"of {rank}"),
    "none": lambda make, rank, call: {"rank": rank, "call": [call, "text", (1.5, None)]},
    "some": lambda make, rank, call: make(labels(rank, 12, call)) if rank % 2 else {"no": "array"},
}


def built(kind, rank, call=0, *, host=False):
    """An object of a kind, with arrays of the device or of NumPy."""
    return KINDS[kind](np.array if host else put, rank, call)


def difference(own, expected, where="it"):
    """Where an object differs from what is expected, NumPy's arrays in the place of the device's; "" if nowhere."""
    if isinstance(expected, np.ndarray):
        return _of_arrays(own, expected, where)
    if type(own) is not type(expected):
        return f"{where} is {type(own)}, expecting {type(expected)}"
    if isinstance(expected, Model):
        own, expected = vars(own), vars(expected)
    if isinstance(expected, dict):
        pairs = [(own.get(key), value, f"{where}[{key!r}]") for key, value in expected.items()]
    elif isinstance(expected, (list, tuple)):
        pairs = [(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(own, expected, strict=True))]
    else:
        return "" if own == expected else f"{where} is {own!r}, expecting {expected!r}"
    return next(filter(None, (difference(*pair) for pair in pairs)), "")


def _of_arrays(own, expected, where):
    if where.endswith("['host']"):
        return "" if type(own) is np.ndarray and np.array_equal(own, expected) else f"{where} is {own!r}"
    if type(own) is not xp.ndarray:
        return f"{where} is {type(own)}, no device array"
    for attribute in ("shape", "dtype", "strides") if expected.size else ("shape", "dtype"):
        if getattr(own, attribute) != getattr(expected, attribute):
            return f"{where} has {attribute} {getattr(own, attribute)}, expecting {getattr(expected, attribute)}"
    values = get(own)
    return "" if np.array_equal(values, expected) else f"{where} holds {values}, expecting {expected}"

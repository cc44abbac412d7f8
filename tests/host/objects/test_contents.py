"""Which objects are taken apart, and that nothing but the arrays' data leaves the pickle."""

import copyreg
import pickle

import numpy as np
import pytest

from pyncclx.objects.pickled import is_plain, put_together, take_apart
from support.arrays import host_only


class Plain:
    """An object of a program's own."""

    def __init__(self, value):
        self.value = value


PLAIN = [
    *(None, True, 3, 2.5, 1j, "text", b"bytes", bytearray(3), np.float32(1), np.int64(3)),
    *([1, 2], (1, (2, [3.0])), {"a": {"b": (1, 2)}}, {1, 2}, list(range(40))),
]


@pytest.mark.parametrize("obj", PLAIN, ids=str)
def test_plain(obj):
    assert is_plain(obj)
    assert take_apart(obj) is None


@host_only
@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: [x], lambda x: {"a": {"b": (1, x)}}, Plain, lambda x: {(1, 2): x}]
)
def test_arrays_are_found_wherever_they_are(wrap):
    x = np.arange(5.0)
    obj = wrap(x)
    assert not is_plain(obj)
    contents = take_apart(obj)
    assert contents.arrays[0] is x
    assert x.tobytes() not in contents.stream


def test_long_or_strange_containers_are_pickled_to_find_out():
    for obj in (list(range(1000)), Plain(1), [Plain(1)], {(1, 2): 3}):
        assert not is_plain(obj)
        assert take_apart(obj) is None


@host_only
def test_the_same_array_twice_stays_one():
    x, host = np.arange(4), np.array(["text", None], object)
    contents = take_apart({"x": x, "y": [x, x], "host": host})
    assert len(contents.arrays) == 1
    other = np.zeros(4)
    obj = put_together(contents.stream, contents.buffers, [other])
    assert all(each is other for each in (obj["x"], *obj["y"]))
    assert obj["host"].tolist() == ["text", None]


@host_only
@pytest.mark.parametrize(
    "array", [np.array(3.0), np.array([1, "x"], object), np.ma.array([1])], ids=["0-d", "object", "masked"]
)
def test_arrays_that_numpy_pickles(array):
    """Those that have no data of a fixed length, are scalars in disguise, or are of a class of their own."""
    assert take_apart([array]) is None


@host_only
def test_read_only_arrays_stay_read_only():
    x = np.arange(3)
    x.flags.writeable = False
    assert take_apart([x]) is None


@host_only
def test_ways_to_pickle_that_a_program_registers_are_used():
    """copyreg's table holds for all but device arrays."""
    copyreg.pickle(Plain, lambda plain: (Plain, ("registered",)))
    try:
        contents = take_apart([Plain(1), np.arange(3)])
    finally:
        del copyreg.dispatch_table[Plain]
    assert put_together(contents.stream, contents.buffers, contents.arrays)[0].value == "registered"


@host_only
def test_out_of_band_buffers_of_other_objects_keep_their_place():
    first, second = bytearray(b"first"), bytearray(b"second")
    obj = [pickle.PickleBuffer(first), np.arange(3), pickle.PickleBuffer(second)]
    contents = take_apart(obj)
    assert [each is None for each in contents.buffers] == [False, True, False]
    buffers = pickle.loads(pickle.dumps(contents.buffers, 5))
    assert put_together(contents.stream, buffers, ["array"]) == [first, "array", second]

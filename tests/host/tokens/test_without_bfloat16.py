"""A token shuffle of bfloat16, the default, where NumPy has no such type: arrays of uint16 take its place."""


import launch

# Each token is its number, times 2.0, in the bits of bfloat16; each expert multiplies by nothing.
PROGRAM = """
import sys
import numpy as np
from mpi4py import MPI
import pyncclx

assert "ml_dtypes" not in sys.modules, "the test proves nothing"
comm = pyncclx.Communicator(MPI.COMM_WORLD)
number = np.arange(1, 4, dtype="f4") * (comm.rank + 1) * 2
bits = np.repeat((number.view("u4") >> 16).astype("u2")[:, None], 16, axis=1)
ids = np.array([[0], [1], [2]]) % (2 * comm.size)
with comm.Create_token_shuffle(2 * comm.size, 64, 16, k=1, max_tokens=8) as shuffle:
    for tokens in (bits, [bits, "bf16"]):
        rows, handle = shuffle.dispatch(tokens, ids)
        assert rows.data.dtype == np.uint16
        for out in (None, np.zeros_like(bits), [np.zeros_like(bits), "bf16"]):
            for results in (rows.data, [rows.data, "bfloat16"]):
                given = shuffle.combine(results, handle, out=out)
                comm.synchronize()
                found = given[0] if isinstance(given, list) else given
                assert found.dtype == np.uint16 and np.array_equal(found, bits), (found, bits)
        singles = shuffle.combine(rows.data, handle, out=np.zeros((3, 16), "f4"))
        comm.synchronize()
        assert np.array_equal(singles[:, 0], number), singles
    import ml_dtypes
    sums = shuffle.combine(rows.data, handle)
    comm.synchronize()
    assert sums.dtype == ml_dtypes.bfloat16 and np.array_equal(sums.view("u2"), bits), sums
with comm.Create_token_shuffle(2 * comm.size, 64, 16, "float16", k=1, max_tokens=8) as shuffle:
    try:
        shuffle.dispatch(bits, ids)
    except TypeError as error:
        assert "uint16; expecting float16" in str(error), error
    else:
        raise AssertionError("uint16 taken for float16")
print(f"rank {comm.rank}: done")
"""


def test_round_trips():
    done = launch.job(2, "-c", PROGRAM)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.split("\n")) == ["", "rank 0: done", "rank 1: done"]

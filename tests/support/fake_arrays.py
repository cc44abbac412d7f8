"""Arrays of every kind over host memory, and devices to resolve them for: no GPU and no CuPy are needed."""

import types

from pyncclx.arrays import buffers, vectors

NAME = "Allreduce: recvbuf"


class FakeDevice:
    """A device that takes every address for its own, unless `owns` is false."""

    def __init__(self, name="host", ordinal=0, stream=None, owns=True):
        self.name, self.ordinal, self.stream, self.owns = name, ordinal, stream, owns

    def current_stream(self):
        return self.stream

    def is_device_pointer(self, address):
        return self.owns


class InterfaceArray:
    """Host memory behind the CUDA array interface."""

    def __init__(self, array, **changes):
        self.array = array
        self.dtype = array.dtype
        address, readonly = array.__array_interface__["data"]
        self.__cuda_array_interface__ = {
            **{key: value for key, value in array.__array_interface__.items() if key != "descr"},
            "data": (address, readonly),
            "version": 3,
            **changes,
        }


class DlpackArray:
    """Host memory behind DLPack; `old` as producers did before version 1.0."""

    def __init__(self, array, old=False, device=None):
        self.array, self.old, self.device, self.asked = array, old, device, {}

    def __dlpack__(self, **options):
        self.asked = options
        if self.old and "max_version" in options:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.array.__dlpack__(**{key: value for key, value in options.items() if key != "stream"})

    def __dlpack_device__(self):
        return self.device or self.array.__dlpack_device__()


def fake_cupy(array, ordinal=0):
    cls = type("ndarray", (), {"__module__": "cupy"})
    self = cls()
    self.data = types.SimpleNamespace(ptr=array.ctypes.data, device_id=ordinal)
    self.flags = types.SimpleNamespace(c_contiguous=array.flags.c_contiguous, f_contiguous=array.flags.f_contiguous)
    self.nbytes, self.dtype, self.shape, self.strides = array.nbytes, array.dtype, array.shape, array.strides
    return self


class FakeTensor:
    """What PyTorch offers, over NumPy memory."""

    __module__ = "torch"

    def __init__(self, array, dtype=None, cuda=True, ordinal=0, **flags):
        self.array = array
        name = f"torch.{dtype or array.dtype.name}"
        members = {"__module__": "torch", "__repr__": lambda self: name, "itemsize": array.itemsize}
        self.dtype = type("dtype", (), members)()
        self.shape, self.is_cuda = array.shape, cuda
        self.device = types.SimpleNamespace(index=ordinal)
        self.requires_grad = flags.get("requires_grad", False)
        self.conj = flags.get("conj", False)

    def is_conj(self):
        return self.conj

    def is_neg(self):
        return False

    def is_contiguous(self):
        return self.array.flags.c_contiguous

    def stride(self):
        return tuple(stride // self.array.itemsize for stride in self.array.strides)

    def element_size(self):
        return self.array.itemsize

    def numel(self):
        return self.array.size

    def data_ptr(self):
        return self.array.ctypes.data


class FakeStream:
    def __init__(self, handle):
        self.cuda_stream = self.ptr = handle


FakeTensor.__name__ = "Tensor"
WRAPPERS = {
    "numpy": lambda array: array,
    "interface": InterfaceArray,
    "dlpack": DlpackArray,
    "old dlpack": lambda array: DlpackArray(array, old=True),
}
HOST = FakeDevice()
GPU = FakeDevice("gpu", ordinal=1)


def resolve(spec, writable=True, device=HOST, **options):
    return buffers.resolve(spec, NAME, writable=writable, device=device, **options)


def vector(spec, size=1, writable=True, device=HOST):
    return vectors.resolve_vector(spec, NAME, size, writable=writable, device=device)

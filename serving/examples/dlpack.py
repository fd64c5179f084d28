#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exchanges tensors with NumPy, PyTorch and others by DLPack's versioned capsules, without a copy.

python3 dlpack.py

Owned is memory of the table that any consumer of DLPack can view: numpy.from_dlpack(owned). Borrowed is a view of a tensor of
any producer, whose address operations take. Each side keeps the memory alive for as long as the other one uses it.
"""

import ctypes
import math

from cairn_table import F32, RmsnormArgs, Table

NAME, USED = b"dltensor_versioned", b"used_dltensor_versioned"
CPU, CUDA, FLOAT = 1, 2, 2

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype, capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
capsule_rename = ctypes.pythonapi.PyCapsule_SetName
capsule_rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
capsule_is = ctypes.pythonapi.PyCapsule_IsValid
capsule_is.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class Tensor(ctypes.Structure):
    """DLTensor"""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    """DLManagedTensorVersioned"""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


Delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Destroy = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
exported = {}  # address of a Managed: what must live until its consumer deletes it


@Delete
def delete(address):
    exported.pop(address, None)


@Destroy
def destroy(capsule):
    """A capsule that nobody has consumed still owns its tensor."""
    if capsule_is(capsule, NAME):
        delete(raw_pointer(capsule, NAME))


class Owned:
    """fp32 memory of a table."""

    def __init__(self, table, shape):
        self.table, self.shape = table, shape
        self.address = ctypes.c_void_p()
        table.mem_alloc(ctypes.byref(self.address), ctypes.c_size_t(4 * math.prod(shape)))
        self._free = table._function("mem_free", None)

    def __del__(self):
        if getattr(self, "_free", None):
            self._free(self.address)

    def __dlpack_device__(self):
        return (CPU if self.table.on_host else CUDA, 0)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if max_version is None or max_version[0] < 1:
            raise BufferError("only versioned capsules (DLPack 1.0) are made")
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("this memory is not copied")
        if not self.table.on_host and stream != -1:
            self.table.stream_sync(None)  # results are there before the consumer's stream reads them
        n = len(self.shape)
        shape = (ctypes.c_int64 * n)(*self.shape)
        strides = (ctypes.c_int64 * n)(*(math.prod(self.shape[i + 1 :]) for i in range(n)))
        device = self.__dlpack_device__()
        tensor = Tensor(self.address, *device, n, FLOAT, 32, 1, shape, strides, 0)
        managed = Managed(1, 0, None, ctypes.cast(delete, ctypes.c_void_p), 0, tensor)
        exported[ctypes.addressof(managed)] = (managed, shape, strides, self)
        return new_capsule(ctypes.addressof(managed), NAME, ctypes.cast(destroy, ctypes.c_void_p))


class Borrowed:
    """A view of a producer's contiguous fp32 tensor."""

    def __init__(self, producer):
        capsule = producer.__dlpack__(max_version=(1, 0))
        self._managed = None
        if not capsule_is(id(capsule), NAME):
            raise BufferError("the producer makes no versioned capsule (DLPack 1.0)")
        managed = Managed.from_address(capsule_pointer(capsule, NAME))
        tensor = managed.tensor
        self.shape = tuple(tensor.shape[: tensor.ndim])
        self.address = tensor.data + tensor.byte_offset
        self.device = (tensor.device_type, tensor.device_id)
        compact = not tensor.strides or all(
            n == 1 or tensor.strides[i] == math.prod(self.shape[i + 1 :]) for i, n in enumerate(self.shape)
        )
        if managed.major != 1 or (tensor.code, tensor.bits, tensor.lanes) != (FLOAT, 32, 1) or not compact:
            raise BufferError("only contiguous tensors of fp32 are viewed")
        # from here on the tensor is ours to delete
        capsule_rename(capsule, USED)
        self._managed = managed

    def __del__(self):
        if self._managed is not None and self._managed.deleter:
            Delete(self._managed.deleter)(ctypes.addressof(self._managed))


def main():
    try:
        import numpy
    except ImportError:
        print("no numpy: nothing to exchange tensors with")
        return
    table = Table("cpu")
    x = numpy.arange(24, dtype=numpy.float32).reshape(3, 8)
    weight = numpy.ones(8, dtype=numpy.float32)
    out = Owned(table, (3, 8))
    theirs, scale = Borrowed(x), Borrowed(weight)
    args = RmsnormArgs(
        out=out.address, x=theirs.address, weight=scale.address, rows=3, dim=8, dtype=F32, eps=1e-6
    )
    table.rmsnorm(ctypes.byref(args), None)
    view = numpy.from_dlpack(out)
    assert theirs.address == x.ctypes.data and view.ctypes.data == out.address.value
    print(view)


if __name__ == "__main__":
    main()

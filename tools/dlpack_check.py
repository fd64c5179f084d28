#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Judges serving/examples/dlpack.py by NumPy, and by PyTorch where it is installed: dlpack_check.py EXAMPLES

Part of tools/library_test.py, in a process of its own, because another Python may have NumPy.
"""

import ctypes
import gc
import importlib
import sys
import unittest

sys.path.insert(0, sys.argv.pop(1))
import numpy  # noqa: E402
from cairn_table import F32, RmsnormArgs, Table  # noqa: E402
from dlpack import Borrowed, Owned, exported  # noqa: E402

TABLE = Table("cpu")


def consumers():
    """(name, from_dlpack, the address of a tensor, its bytes)"""
    yield "numpy", numpy.from_dlpack, lambda a: a.ctypes.data, lambda a: a.tobytes()
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return
    yield "torch", torch.from_dlpack, lambda a: a.data_ptr(), lambda a: bytes(a.contiguous().numpy().tobytes())


def norm(out, x, weight, rows, dim):
    args = RmsnormArgs(out=out, x=x, weight=weight, rows=rows, dim=dim, dtype=F32, eps=1e-6)
    TABLE.rmsnorm(ctypes.byref(args), None)


class Dlpack(unittest.TestCase):
    def tearDown(self):
        gc.collect()
        self.assertEqual(exported, {})

    def test_out(self):
        """A consumer's tensor is the table's memory, and outlives the object that it came from."""
        x = numpy.random.default_rng(1).standard_normal((6, 64), numpy.float32)
        weight = numpy.ones(64, numpy.float32)
        copied = numpy.zeros_like(x)
        norm(copied.ctypes.data, x.ctypes.data, weight.ctypes.data, 6, 64)
        for name, take, address, content in consumers():
            with self.subTest(name):
                out = Owned(TABLE, (6, 64))
                view = take(out)
                norm(out.address, x.ctypes.data, weight.ctypes.data, 6, 64)
                self.assertEqual(address(view), out.address.value)
                del out
                gc.collect()
                self.assertEqual(len(exported), 1)
                self.assertEqual(content(view), copied.tobytes())
                self.assertEqual(tuple(view.shape), (6, 64))
                del view

    def test_in(self):
        """An operation reads a producer's tensor where it lies, also when the producer has dropped it."""
        x = numpy.arange(1, 129, dtype=numpy.float32).reshape(2, 64)
        address, users = x.ctypes.data, sys.getrefcount(x)
        view = Borrowed(x)
        self.assertEqual((view.address, view.shape, view.device), (address, (2, 64), (1, 0)))
        content = x.tobytes()
        del x
        gc.collect()
        self.assertEqual(ctypes.string_at(view.address, len(content)), content)
        y = numpy.ones(8, numpy.float32)
        users = sys.getrefcount(y)
        view = Borrowed(y)
        del view
        gc.collect()
        self.assertEqual(sys.getrefcount(y), users)

    def test_round_trip(self):
        out = Owned(TABLE, (3, 8))
        view = Borrowed(numpy.from_dlpack(out))
        self.assertEqual(view.address, out.address.value)
        del out, view

    def test_capsules_nobody_takes(self):
        """Neither side leaks: a capsule that is dropped deletes its tensor."""
        out = Owned(TABLE, (4,))
        capsule = out.__dlpack__(max_version=(1, 0))
        self.assertEqual(len(exported), 1)
        del capsule
        self.assertEqual(len(exported), 0)

    def test_refused(self):
        out, x = Owned(TABLE, (4, 8)), numpy.zeros((4, 8), numpy.float32)
        for options in ({}, {"max_version": (0, 8)}, {"max_version": (1, 0), "copy": True}):
            with self.assertRaises(BufferError):
                out.__dlpack__(**options)
        users = sys.getrefcount(x)
        for tensor in (x.T, x[:, ::2], x.astype(numpy.float64), x.astype(numpy.int32)):
            with self.assertRaises(BufferError):
                Borrowed(tensor)
        del tensor
        gc.collect()
        self.assertEqual(sys.getrefcount(x), users)
        with self.assertRaisesRegex(RuntimeError, "'none' is none of"):
            Table("none")


if __name__ == "__main__":
    unittest.main()

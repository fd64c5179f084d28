# SPDX-License-Identifier: Apache-2.0
"""The operation table in Python, by ctypes and the installed headers alone; used by the examples beside this file."""

import ctypes
import re
import subprocess

F32, F16, BF16 = 0, 1, 2  # primitives/base/dtype.h


def pkg_config(*args):
    return subprocess.run(["pkg-config", *args, "cairn"], capture_output=True, text=True, check=True).stdout.strip()


class RmsnormArgs(ctypes.Structure):
    """struct cairn_rmsnorm_args of primitives/rows/rmsnorm.h"""

    _fields_ = [
        ("size", ctypes.c_size_t),
        *((name, ctypes.c_void_p) for name in ("out", "residual", "x", "weight")),
        *((name, ctypes.c_int32) for name in ("rows", "dim", "dtype")),
        *((name, ctypes.c_float) for name in ("eps", "weight_offset")),
    ]

    def __init__(self, **values):
        super().__init__(size=ctypes.sizeof(RmsnormArgs), **values)


class Table:
    """Table("cuda").rmsnorm(args, stream): members of struct cairn_impl by name; a failure is a RuntimeError."""

    def __init__(self, name):
        include = pkg_config("--variable=includedir")
        with open(f"{include}/conformance/abi.h", encoding="utf-8") as f:
            header = f.read()
        abi = int(re.search(r"#define CAIRN_ABI_VERSION\s+(\d+)", header).group(1))
        struct = header[header.index("struct cairn_impl {") :]
        # after size, abi_version, flags, name and version, all members are pointers to functions
        members = re.findall(r"^\t.*\(\*(\w+)\)\(", struct[: struct.index("\n};")], re.M)
        self._offset = {member: 32 + 8 * i for i, member in enumerate(members)}
        library = ctypes.CDLL(f"{pkg_config('--variable=libdir')}/libcairn.so.1")
        library.cairn_table.restype = ctypes.c_void_p
        library.cairn_last_error.restype = ctypes.c_char_p
        self._table = library.cairn_table(name.encode(), ctypes.c_uint32(abi))
        if not self._table:
            raise RuntimeError(library.cairn_last_error().decode())
        self.on_host = bool(ctypes.c_uint32.from_address(self._table + 12).value & 1)  # CAIRN_IMPL_HOST_MEM
        self._error = self._function("last_error", ctypes.c_char_p)
        self.init(0)

    def _function(self, member, result=ctypes.c_int):
        at = ctypes.c_void_p.from_address(self._table + self._offset[member]).value
        if not at:
            raise RuntimeError(f"the table has no {member}")
        return ctypes.CFUNCTYPE(result)(at)

    def __getattr__(self, member):
        function = self._function(member)

        def call(*args):
            if function(*args):
                raise RuntimeError(f"{member}: {self._error().decode()}")

        return call

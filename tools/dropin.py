#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the folder from which FlashInfer loads our kernels: python3 tools/dropin.py DROPIN_SO FOLDER

FlashInfer 0.6 looks for compiled modules in the package flashinfer_jit_cache, one folder for each configuration.
This writes such a package into FOLDER, in which every name leads to DROPIN_SO.  With PYTHONPATH=FOLDER, FlashInfer's
attention runs on our kernels.  Positional encodings have no name here: the module's name alone states them.
"""

import itertools
import os
import pathlib
import sys

VERSION = "0.6.17"  # of FlashInfer, which compares it with its own
PACKAGE = """# written by tools/dropin.py
import pathlib

__version__ = "{version}+cairn"


def get_jit_cache_dir():
    return str(pathlib.Path(__file__).parent / "modules")
"""
# dtypes of q and o, of k and v
DTYPES = [(q, kv) for q in ("f16", "bf16") for kv in (q, "e4m3", "e5m2")]
DIMS = [(64, 64), (128, 128), (192, 128), (256, 256)]
FLAGS = ("False", "True")


def names():
    """All configurations that FlashInfer has a name for and whose calls state them."""
    yield "quantization"
    for (q, kv), (qk, vo), swa, cap in itertools.product(DTYPES, DIMS, FLAGS, FLAGS):
        types = f"dtype_q_{q}_dtype_kv_{kv}_dtype_o_{q}_"
        shape = f"head_dim_qk_{qk}_head_dim_vo_{vo}_posenc_0_use_swa_{swa}_use_logits_cap_{cap}"
        yield f"single_decode_with_kv_cache_{types}{shape}"
        yield f"batch_decode_with_kv_cache_{types}dtype_idx_i32_{shape}"
        for f16qk, backend in itertools.product(FLAGS, ("", "_sm90")):
            yield f"single_prefill_with_kv_cache_{types}{shape}_f16qk_{f16qk}{backend}"
            yield f"batch_prefill_with_kv_cache_{types}dtype_idx_i32_{shape}_f16qk_{f16qk}{backend}"


def write_folder(library, folder, modules):
    package = folder / "flashinfer_jit_cache"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(PACKAGE.format(version=VERSION))
    for name in modules:
        link = package / "modules" / name / f"{name}.so"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        os.symlink(library, link)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    library, folder = pathlib.Path(sys.argv[1]).resolve(strict=True), pathlib.Path(sys.argv[2])
    modules = list(names())
    write_folder(library, folder, modules)
    print(f"dropin: {len(modules)} names for {library} in {folder}")


if __name__ == "__main__":
    main()

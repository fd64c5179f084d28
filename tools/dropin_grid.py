#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs FlashInfer's own tests over our kernels: python3 tools/dropin_grid.py FOLDER TESTS [options] [FILE[=N]]...

FOLDER is what tools/dropin.py wrote, TESTS the folder `tests` of FlashInfer's repository, FILE a file of tests below
it (default: FILES below).  FlashInfer must not compile: its compiler is disabled and hidden.  Afterwards, no library but
ours may have been loaded in the place of a module, and ours must have been called.  A row for each file, {"v": 1, "op":
"dropin", "case": FILE, "ok": no test failed, ...}, counts its tests:

  tests       all of the file
  chosen      those that were run: with N, which is then `every`, the tests whose name has a SHA-256 of 0 modulo N
  passed, failed
  refused     failed because our kernels lack a feature; `refusals` counts them by the error's text
  missing     skipped by FlashInfer because the folder has no such module; `modules` counts them by the reason
  skipped     skipped, or expected to fail, by the test itself
  left        not begun because of --seconds, or out of memory
  calls       calls that our library answered, of all files of this run

  --every N       run one of N tests of files without a number of their own (1: all), but of a small file about 20
  --json FILE     append the rows
  --seconds S     begin no test after S seconds

Exit status: 1 if a test failed.
"""

import argparse
import collections
import ctypes
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

FILES = [
    f"attention/test_{name}.py"
    for name in (
        "batch_decode_kernels",
        "batch_prefill_kernels",
        "batch_prefill",
        "single_prefill",
        "decode_prefill_lse",
        "non_contiguous_decode",
        "non_contiguous_prefill",
        "tensor_cores_decode",
        "sliding_window",
        "logits_cap",
        "fp8_prefill",
        "decode_fp8_calibration_scale",
    )
]
FUNCTIONS = ("plan", "run", "ragged_run", "paged_run", "packbits", "segment_packbits")  # enum dropin_function
LEAST = 20  # tests of a file, about, however small its part would be
COUNTS = ("passed", "failed", "refused", "missing", "skipped", "left")


def hide_compiler(base):
    """Leaves FlashInfer nothing to compile with, and an empty folder of compiled modules."""
    os.environ["FLASHINFER_DISABLE_JIT"] = "1"
    os.environ["FLASHINFER_WORKSPACE_BASE"] = base
    os.environ["FLASHINFER_NVCC"] = os.environ["CUDA_HOME"] = os.environ["CUDA_PATH"] = f"{base}/no-compiler"
    path = os.environ["PATH"].split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(p for p in path if not os.path.exists(f"{p}/nvcc"))


def chosen(name, every):
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % every == 0


def reason_of_module(name):
    """Why our folder has no module of this name: the feature in the name that our kernels lack, else the name itself."""
    for pattern, reason in (
        (r"posenc_1", "ROPE_LLAMA"),
        (r"posenc_2", "ALIBI"),
        (r"dtype_kv_(u8|fp4)|^fp4_", "4-bit keys"),
        (r"dtype_q_(e4m3|e5m2)", "queries of 8 bits"),
        (r"head_dim_qk_(\d+)", None),
    ):
        found = re.search(pattern, name)
        if found:
            return reason or f"head_dim {found[1]}"
    return name


class Grid:
    """Chooses the tests and counts what became of them."""

    def __init__(self, every, seconds):
        self.every, self.end = every, time.monotonic() + seconds  # every: {file's name: N}
        self.files = collections.defaultdict(lambda: {"tests": 0, "chosen": 0, **dict.fromkeys(COUNTS, 0)})
        self.refusals = collections.defaultdict(collections.Counter)
        self.modules = collections.defaultdict(collections.Counter)
        self.failures = []

    def pytest_collection_modifyitems(self, items):
        for item in items:
            self.files[item.path.name]["tests"] += 1
        for name, counts in self.files.items():
            self.every[name] = min(self.every[name], max(1, counts["tests"] // LEAST))
        kept = [item for item in items if chosen(item.nodeid, self.every[item.path.name])]
        for item in kept:
            self.files[item.path.name]["chosen"] += 1
        items[:] = kept

    def pytest_runtest_setup(self, item):
        import pytest

        if time.monotonic() > self.end:
            pytest.skip("dropin: no time left")

    def pytest_runtest_logreport(self, report):
        if report.when == "setup" and report.passed or report.when == "teardown" and not report.failed:
            return
        name = pathlib.Path(report.nodeid.split("::")[0]).name
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
        self.files[name][self.outcome(name, report, text)] += 1

    def outcome(self, name, report, text):
        if report.passed:
            return "passed"
        if report.skipped:
            module = re.search(r"missing JIT cache for module: (\S+)", text)
            if module:
                self.modules[name][reason_of_module(module[1])] += 1
                return "missing"
            return "left" if re.search("dropin: no time left|due to OOM", text) else "skipped"
        refusal = re.search(r"cairn: not supported: (.*)", text)
        if refusal:
            self.refusals[name][refusal[1]] += 1
            return "refused"
        self.failures.append((report.nodeid, text))
        return "failed"


def loaded_modules(folder):
    """(loaded libraries that are ours, loaded libraries from a folder of FlashInfer's modules that are not)"""
    maps = pathlib.Path("/proc/self/maps").read_text()
    paths = {line.split(None, 5)[5] for line in maps.splitlines() if line.count(" ") >= 5 and ".so" in line}
    ours = {os.path.realpath(p) for p in folder.glob("flashinfer_jit_cache/modules/*/*.so")}
    return paths & ours, [p for p in paths if re.search(r"cached_ops|/aot/|jit_cache", p) and p not in ours]


def count_calls(library):
    counter = ctypes.CDLL(library).cairn_dropin_calls
    counter.restype = ctypes.c_int64
    return {name: counter(i) for i, name in enumerate(FUNCTIONS)}


def machine(library):
    """Members common to all rows: where they were measured."""
    import flashinfer

    source = subprocess.run([library.parent / "cairn", "version"], capture_output=True, text=True, check=True).stdout
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    line = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    gpu, driver = (x.strip() for x in line.split(","))
    version = f"FlashInfer {flashinfer.__version__}"
    return {"impl": "cuda", "impl_version": version, "gpu": gpu, "driver": driver, "source": source.split()[-1]}


def run(args):
    """Runs the tests; returns the grid, the calls that our library answered, and its path."""
    import pytest

    pairs = [f.split("=") for f in args.files]
    grid = Grid({pathlib.Path(f).name: int(n[0]) if n else args.every for f, *n in pairs}, args.seconds)
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", f"--rootdir={args.tests}", "--no-header", "--disable-warnings"]
    status = pytest.main(options + [str(args.tests / f) for f, *_ in pairs], plugins=[grid])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        sys.exit(f"dropin: pytest ended with {status!r}")
    ours, others = loaded_modules(args.folder)
    if others or len(ours) != 1:
        sys.exit(f"dropin: libraries in the place of modules: ours {ours}, others {others}")
    library = ours.pop()
    return grid, count_calls(library), pathlib.Path(library)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("tests", type=pathlib.Path)
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--json")
    args = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as base:
        hide_compiler(base)
        paths = [str(args.folder.resolve()), str(args.tests.resolve().parent)]
        sys.path[:0] = paths
        os.environ["PYTHONPATH"] = os.pathsep.join(paths + os.environ.get("PYTHONPATH", "").split(os.pathsep))
        grid, calls, library = run(args)
        where = machine(library)
    if not sum(calls.values()):
        sys.exit("dropin: no call reached our library")
    for name, counts in grid.files.items():
        row = {"v": 1, "op": "dropin", "case": name.removesuffix(".py"), "ok": not counts["failed"], **where, **counts}
        row |= {"every": grid.every[name], "refusals": grid.refusals[name], "modules": grid.modules[name], "calls": calls}
        print(json.dumps(row))
        if args.json:
            with open(args.json, "a") as out:
                out.write(json.dumps(row) + "\n")
    failed = sum(counts["failed"] for counts in grid.files.values())
    if failed:
        sys.exit(f"dropin: {failed} tests failed")


if __name__ == "__main__":
    main()

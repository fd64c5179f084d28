#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Count launches and bytes by hardware counters: python3 reports/traffic.py build/cairn >> RECORDING.jsonl

Each case below is called once under Nsight Compute (`cairn bench --once` marks the call), by each of its tables.  One
record per case and table is written to standard output, {"v": 1, "op": "traffic", ...}; reports/README.md documents its
members.  Kernels are counted one after another with caches unchanged, so that a kernel finds in the L2 what the previous
one left there; the inputs are in memory, as when the row is timed.  Exit status: 0; 1 if a case gave no counts; 2 if ncu
or the program is missing.
"""

import csv
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# Each member is the sum of these counters. ncu reads them in one pass over a kernel, or this script in two runs.
FROM_L1 = "l1tex__m_l1tex2xbar_write_bytes_mem_"
COUNTERS = {
    "dram_read_bytes": ("dram__bytes_read.sum",),
    "dram_write_bytes": ("dram__bytes_write.sum",),
    "l2_bytes": ("lts__t_bytes.sum",),
    "store_bytes": tuple(
        f"{FROM_L1}{kind}.sum"
        for kind in ("lg_op_st", "global_op_tma_st", "global_op_red", "global_op_tma_red", "global_op_atom")
    ),
    "dsmem_counted_bytes": ("l1tex__m_xbar2l1tex_read_bytes_mem_dshared.sum",),
}
MEMORY = ("dram_read_bytes", "dram_write_bytes")  # counters that would be wrong in a second pass over a kernel
# (stage and operation, case and input kind (default: normal), tables)
CASES = (
    ("fused.cluster_attn", "llama2_7b_b1_kv1024", ("cuda", "unfused")),
    ("fused.cluster_attn", "llama3_8b_b1_kv1024", ("cuda", "unfused")),
    ("fused.cluster_mla", "dsv2lite_b1_kv1024", ("cuda", "unfused")),
    ("fused.decode_step", "layer_llama3_8b_b1_kv1024", ("cuda", "unfused")),
    ("fused.decode_step", "vocab_4000_three_layers.exact", ("cuda", "unfused")),
    ("fused.cluster_attn", "llama2_7b_b1_kv1024_token_c4", ("cuda",)),
    ("primitives.cluster_reduce", "size4_len4096_f32_sum_tree", ("cuda",)),
    ("primitives.cluster_gather", "size4_len3072_f32_tree", ("cuda",)),
)


class NoCounts(Exception):
    pass


def parse_counts(text, metrics):
    """ncu --csv --page raw: (kernels launched, {metric: sum}).  Lines before the table are output of the program."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        said = [line for line in lines if line.startswith("==ERROR==")] or ["no kernel was counted"]
        raise NoCounts(said[0])
    rows = list(csv.DictReader(lines[first:]))
    kernels = [row for row in rows if (row["ID"] or "").isdigit()]  # the second line has the units
    units = next((row for row in rows if not row["ID"]), {})
    if not kernels:
        raise NoCounts("no kernel was counted")
    sums = {}
    for metric in metrics:
        if metric not in kernels[0]:
            raise NoCounts(f"{metric}: this GPU has no such counter")
        if units.get(metric, "byte") != "byte":
            raise NoCounts(f"{metric}: unit {units[metric]}, expected bytes")
        try:
            sums[metric] = sum(float(row[metric].replace(",", "")) for row in kernels)
        except (AttributeError, ValueError):
            raise NoCounts(f"{metric}: {kernels[0][metric]!r} is not a number") from None
    return len(kernels), sums


def record(described, launches, counts):
    """The row described by `cairn bench --once`, and its counts; the case includes the operation to make the key unique."""
    out = {"v": 1, "op": "traffic", "case": f"{described['op']}_{described['case']}", "impl": described["impl"]}
    out.update((k, v) for k, v in described.items() if k not in ("v", "op", "case", "impl", "flops"))
    out.update(launches=launches, **{k: round(v) for k, v in counts.items()})
    return out


def run_ncu(ncu, program, name, table, members):
    """-> (description of the row by the program, kernels, {member: sum}, passes over a kernel)"""
    metrics = [metric for member in members for metric in COUNTERS[member]]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "row.jsonl"
        command = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"]
        command += ["--cache-control", "none", "--profile-from-start", "off", "--target-processes", "all"]
        command += ["--metrics", ",".join(metrics), program, "bench", "--once", "--impl", table, "--json", str(path)]
        done = subprocess.run(command + [name], capture_output=True, text=True, timeout=300, check=False)
        said = done.stdout + done.stderr
        if not path.exists() or not path.read_text():
            why = [line for line in said.splitlines() if re.match("FAILED|skipped|cairn|==ERR", line)]
            raise NoCounts(why[0] if why else f"exit status {done.returncode}")
        described = json.loads(path.read_text().splitlines()[0])
    launches, sums = parse_counts(done.stdout, metrics)
    found = {member: sum(sums[metric] for metric in COUNTERS[member]) for member in members}
    return described, launches, found, max(map(int, re.findall(r"- (\d+) pass", said)), default=1)


def measure(ncu, program, op, case, table):
    name = f"{op}.{case}" + ("" if "." in case else ".normal")
    described, launches, counts, passes = run_ncu(ncu, program, name, table, COUNTERS)
    if passes > 1:
        again = run_ncu(ncu, program, name, table, MEMORY)
        if again[1] != launches:
            raise NoCounts(f"{launches} kernels in one run, {again[1]} in the next")
        if again[3] > 1:
            raise NoCounts("the counters of memory need more than one pass")
        counts.update(again[2])
    return record(described, launches, counts)


def main(argv):
    program = argv[1] if len(argv) == 2 else "build/cairn"
    ncu = shutil.which("ncu") or next(map(str, sorted(Path("/usr/local").glob("cuda*/bin/ncu"))), None)
    if not ncu or not Path(program).exists():
        print(f"traffic: {'ncu' if not ncu else program} not found", file=sys.stderr)
        return 2
    failed = 0
    for op, case, tables in CASES:
        for table in tables:
            try:
                print(json.dumps(measure(ncu, program, op, case, table), separators=(",", ":")), flush=True)
            except (NoCounts, subprocess.TimeoutExpired) as error:
                print(f"traffic: {op} {case} {table}: {error}", file=sys.stderr)
                failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv))

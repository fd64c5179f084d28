#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the ranges that `cairn validate` compares rates with, from its records:

    python3 conformance/validate/validate_ranges.py [--out DIR] FILE...

Each model of GPU that occurs in the records gets a file in DIR (conformance/validate/ranges), whose format is in ranges.c. All records
of the model must be given, because the file is written anew. Tests with faults do not count. A GPU counts once: with the median of its
records. Exit status: 0, or 2 for bad input.
"""

import argparse
import json
import os
import re
import statistics
import sys
from collections import defaultdict

from validate_merge import BadRecord, records

MIN_GPUS, MIN_NODES = 20, 3  # a range of fewer is provisional, and makes warnings only (rates.h)
CONFIG = ("mem_gib", "limit_w", "ecc", "mig", "branch")


def config_of(record):
    """What rates depend on besides the model; None: the record does not tell."""
    config = record.get("config") or {}
    branch = (record.get("driver") or "").split(".")[0]
    return tuple(config.get(k) for k in CONFIG[:-1]) + (config.get("branch") or branch or None,)


def figures_of(record):
    """{figure: value}: medians of the windows; of records without figures, the median of the rates of all SMs.

    Program mix has no figure, because each round draws other programs.
    """
    figures = {name: statistics.median(windows) for name, windows in record.get("figures", {}).items() if windows}
    if not figures and record.get("units") and not record["case"].endswith("mix"):
        figures["cycles"] = statistics.median(u["cycles"] for u in record["units"])
    return figures


def spread(values):
    middle = statistics.median(values)
    mad = statistics.median(abs(v - middle) for v in values)
    return {k: float(f"{v:.6g}") for k, v in (("median", middle), ("mad", mad), ("low", min(values)), ("high", max(values)))}


def configuration(key, rows):
    found = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for r in rows:
        for name, value in figures_of(r).items():
            found[r["case"]][name][r["id"]].append(value)
    figures = {
        case: {name: spread([statistics.median(v) for v in gpus.values()]) for name, gpus in sorted(names.items())}
        for case, names in sorted(found.items())
    }
    # records of old versions do not name their node, and may all be of one
    nodes = {r.get("node") for r in rows}
    gpus = len({r["id"] for r in rows})
    few = gpus < MIN_GPUS or len(nodes) < MIN_NODES
    return {"config": dict(zip(CONFIG, key)), "gpus": gpus, "nodes": len(nodes), "provisional": few, "figures": figures}


def ranges(rows):
    """{model: file}"""
    models = defaultdict(lambda: defaultdict(list))
    for r in rows:
        if r["impl"] == "cuda" and r["verdict"] in ("pass", "warn") and figures_of(r):
            models[r["gpu"]][config_of(r)].append(r)
    return {
        gpu: {"gpu": gpu, "configurations": [configuration(k, v) for k, v in sorted(keys.items(), key=str)]}
        for gpu, keys in models.items()
    }


def file_name(gpu):
    return re.sub("[^a-z0-9]", "_", gpu.lower()) + ".json"


def main(argv):
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join(here, "ranges"))
    parser.add_argument("files", nargs="+")
    args = parser.parse_args(argv)
    try:
        found = ranges([r for path in args.files for r in records(path, others=True)])
        for gpu, content in found.items():
            with open(os.path.join(args.out, file_name(gpu)), "w", encoding="utf-8") as f:
                json.dump(content, f, indent=1)
                f.write("\n")
    except (BadRecord, OSError) as e:
        print(f"validate_ranges: {e}", file=sys.stderr)
        return 2
    for gpu, content in found.items():
        for c in content["configurations"]:
            print(f"{gpu}, driver {c['config']['branch']}: {c['gpus']} GPUs of {c['nodes']} nodes, {len(c['figures'])} tests")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

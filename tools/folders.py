#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the folders of the tree: python3 tools/folders.py [--list]

Every include of a source of ours is written from the root. The folders' includes form no cycle; tests and mutants may include
any folder, so they are left out of the graph. No folder holds more than 45 files. Each stage includes only what lies below it.
--list prints the folders, with the number of files in each and the folders that it includes.
"""

import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from os.path import basename, dirname

MOST_FILES = 45
SOURCE = re.compile(r"\.(c|h|cu|cuh)$")
# A test is X_test.c or X_test.h; a mutant is X_mutants.c or part of one.
TEST = re.compile(r"(_test\.[ch]|_mutants(_\w+)?\.[ch])$")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.M)
# stage: the folders it may include besides its own; conformance/ may include all.
BELOW = {
    "primitives": [],
    "fused": ["primitives"],
    "serving": ["conformance/tables", "rdma/transport", "primitives/base"],
    "rdma": ["primitives"],
}
# Further headers that a stage may include: serving calls operations through the operation table, and brings 4-bit weights of
# checkpoints into the layout that gemm_w4 of every table reads.
TABLE = {"serving": ["conformance/abi.h", "primitives/gemm/w4/gemm_w4_pack.h"]}
HARNESS = ["conformance/harness.h", "conformance/suite/"]


def tracked():
    """The files that git knows of; in a copy without git, all files of the stages."""
    git = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=False)
    if git.returncode == 0:
        return [f for f in git.stdout.splitlines() if os.path.exists(f)]
    stages = [*BELOW, "conformance", "reports", "tools"]
    found = (os.path.join(d, n) for s in stages for d, _, names in os.walk(s) for n in names)
    return sorted(f for f in found if "__pycache__" not in f and not f.startswith("reports/out"))


def cycles(graph):
    """The strongly connected components of more than one folder (Tarjan)."""
    index, low, stack, on, found = {}, {}, [], set(), []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        on.add(v)
        for w in sorted(graph.get(v, ())):
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in on:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            component = []
            while component[-1:] != [v]:
                component.append(stack.pop())
                on.discard(component[-1])
            if len(component) > 1:
                found.append(sorted(component))

    for v in sorted(graph):
        if v not in index:
            visit(v)
    return found


def may_include(stage, path):
    return (
        stage not in BELOW
        or path.startswith(stage + "/")
        or path in TABLE.get(stage, [])
        or any(path.startswith(below + "/") for below in BELOW[stage])
    )


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def main():
    files = tracked()
    names = set(files)
    complaints, graph, why = [], defaultdict(set), {}
    for f in files:
        if not SOURCE.search(f):
            continue
        stage = f.split("/")[0]
        for path in INCLUDE.findall(read(f)):
            if path not in names:
                if path.split("/")[0] in (*BELOW, "conformance") or "/" not in path:
                    complaints.append(f"{f}: includes {path}, which is no file of the tree; write it from the root")
                continue
            if TEST.search(f):
                continue
            if not may_include(stage, path):
                complaints.append(f"{f}: includes {path}: {stage}/ must not see it")
            if stage != "conformance" and any(path.startswith(h) for h in HARNESS):
                complaints.append(f"{f}: includes {path}: only tests and mutants may")
            if dirname(f) != dirname(path):
                graph[dirname(f)].add(dirname(path))
                why.setdefault((dirname(f), dirname(path)), f)
    for component in cycles(graph):
        complaints.append("the includes of these folders form a cycle: " + ", ".join(component))
        for (a, b), f in sorted(why.items()):
            if a in component and b in component:
                complaints.append(f"  {a} includes {b}: {f}")
    counts = Counter(dirname(f) for f in files)
    for folder, count in sorted(counts.items()):
        if count > MOST_FILES:
            complaints.append(f"{folder}/ holds {count} files; {MOST_FILES} are the most")
    if "--list" in sys.argv[1:]:
        for folder in sorted(counts):
            below = ", ".join(sorted(graph.get(folder, ())))
            print(f"{counts[folder]:4}  {folder or basename('.') or '.'}" + (f"  ->  {below}" if below else ""))
    for c in complaints:
        print("lint: " + c, file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())

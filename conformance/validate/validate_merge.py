#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Merges records of `cairn validate --json` from many nodes: python3 conformance/validate/validate_merge.py FILE...

Prints each fault and warning, then GPUs whose digests differ from those of most GPUs of the same model and sources (census), GPUs of
which a rate is worse than that of the others with the same settings, and GPUs that have changed: whose digests differ from their own
earlier ones, or of which a rate is worse than in four or more earlier records. The last record of a test of a GPU counts; those before
it are its history. Exit status: 0 nothing failed, 1 a fault, 2 bad input.
"""

import json
import statistics
import sys
from collections import Counter, defaultdict

WORSE, Z, PEERS = 0.02, 6, 4
NEEDED = ("case", "id", "impl", "gpu", "verdict", "findings")


class BadRecord(Exception):
    pass


def records(path, others=False):
    """The records of a file, in order. others: skips the rows of other operations, which a recording also has."""
    try:
        with open(path, encoding="utf-8") as f:
            lines = f.read().splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise BadRecord(f"{path}: {e}") from e
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except ValueError as e:
            raise BadRecord(f"{path}:{number}: is not JSON") from e
        if others and isinstance(record, dict) and record.get("op") != "validate":
            continue
        if not isinstance(record, dict) or record.get("op") != "validate":
            raise BadRecord(f"{path}:{number}: is no record of cairn validate")
        missing = [k for k in NEEDED if k not in record]
        if missing:
            raise BadRecord(f"{path}:{number}: {missing[0]} is missing")
        yield record


def load(paths):
    """{(id, case): [record, ...]} in the order of the files, which is that of time."""
    found = defaultdict(list)
    for path in paths:
        for r in records(path):
            found[r["id"], r["case"]].append(r)
    return found


def name(record):
    where = f" ({record['host']} {record.get('pci', '')})" if "host" in record else ""
    return f"GPU {record['id']}{where}"


def census(records):
    """GPUs whose digests are not those of more than half of their peers."""
    groups = defaultdict(list)
    for r in records:
        if "census" in r:
            groups[r["impl"], r["gpu"], r.get("source"), r.get("seed"), r["case"]].append(r)
    for members in groups.values():
        digest, count = Counter(r["census"] for r in members).most_common(1)[0]
        if 2 * count <= len(members):
            digest = None if len(members) > 1 else digest
        for r in members:
            if r["census"] != digest:
                yield r, f"its digests differ from most of {len(members)} GPUs of this model"


def slow(records):
    """GPUs of which a figure is worse than that of their peers, by the rule of conformance/validate/rates.h."""
    groups = defaultdict(list)
    for r in records:
        for figure, windows in r.get("figures", {}).items():
            if windows:
                key = r["impl"], r["gpu"], json.dumps(r.get("config"), sort_keys=True), r["case"], figure
                groups[key].append((r, statistics.median(windows)))
    for (*_, figure), members in groups.items():
        if len(members) < PEERS:
            continue
        middle = statistics.median(v for _, v in members)
        spread = 1.4826 * statistics.median(abs(v - middle) for _, v in members)
        for r, v in members:
            worse = middle - v if figure.endswith("gbps") else v - middle
            if worse > Z * spread and worse > WORSE * middle:
                yield r, f"{figure} {v:.6g}, {100 * worse / middle:.1f}% worse than the {len(members)} GPUs of this model"


def same_run(a, b, *keys):
    return all(a.get(k) == b.get(k) for k in ("impl", "gpu", *keys))


def changed(history):
    """(verdict, record, text) for a GPU that differs from its own earlier records of a test; the last record is judged."""
    *before, now = history
    known = {r["census"] for r in before if "census" in r and same_run(r, now, "source", "seed")}
    if "census" in now and known and now["census"] not in known:
        yield "fail", now, f"its digests differ from those of {len(before)} earlier records of this GPU"
    for figure, windows in now.get("figures", {}).items():
        earlier = [r["figures"][figure] for r in before if same_run(r, now, "config") and r.get("figures", {}).get(figure)]
        if len(earlier) < PEERS or not windows:
            continue
        values = [statistics.median(w) for w in earlier]
        middle, value = statistics.median(values), statistics.median(windows)
        spread = 1.4826 * statistics.median(abs(v - middle) for v in values)
        worse = middle - value if figure.endswith("gbps") else value - middle
        if worse > Z * spread and worse > WORSE * middle:
            yield "warn", now, f"{figure} {value:.6g}, {100 * worse / middle:.1f}% worse than in {len(values)} earlier records"


def merge(histories):
    """[(verdict, text)], the faults first."""
    records = [h[-1] for h in histories]
    lines = [(verdict, f"{name(r)}: {r['case']}: {text}") for h in histories for verdict, r, text in changed(h)]
    for r in records:
        if r["verdict"] in ("warn", "fail"):
            texts = [f["text"] for f in r["findings"]] or [r.get("text", "")]
            lines += [(r["verdict"], f"{name(r)}: {r['case']}: {t}") for t in texts]
        elif r["verdict"] == "not run" and r.get("required"):
            lines.append(("not run", f"{name(r)}: {r['case']}: {r.get('text', '')}"))
    lines += [("fail", f"{name(r)}: {r['case']}: {text}") for r, text in census(records)]
    lines += [("warn", f"{name(r)}: {r['case']}: {text}") for r, text in slow(records)]
    return sorted(lines, key=lambda line: ("fail", "not run", "warn").index(line[0]))


def main(paths):
    if not paths or paths[0].startswith("-"):
        print(__doc__.strip())
        return 0 if paths and paths[0] == "--help" else 2
    try:
        histories = list(load(paths).values())
    except BadRecord as e:
        print(f"validate_merge: {e}", file=sys.stderr)
        return 2
    lines = merge(histories)
    for verdict, text in lines:
        print(f"{verdict}: {text}")
    print(f"{len({h[-1]['id'] for h in histories})} GPUs, {len(histories)} tests, {sum(v == 'fail' for v, _ in lines)} faults")
    return 1 if any(v == "fail" for v, _ in lines) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""What the report reads out of records: the one place that knows the names of cases and members.

The names are those that primitives/*_test.c, fused/*_test.c and `cairn generate --json` write.
"""

import re
from dataclasses import dataclass
from math import log2

from report_records import Record, is_number

SIZES = (1, 2, 4, 8, 16)
ON_CHIP = ("oneshot", "twoshot", "ring", "tree", "auto")
LABEL = {
    "oneshot": "one-shot",
    "twoshot": "two-shot",
    "ring": "ring",
    "tree": "tree (source)",
    "auto": "auto",
    "offchip": "off-chip",
}
ELEMENT = {"f32": 4, "f16": 2, "bf16": 2}
# The tables that hold this project's own kernels; all others are peers or plug-ins.
OURS = ("cuda", "cpu")


# ---------------------------------------------------------------- dsmem (members: primitives/machine/dsmem_record.h)


def dsmem(rows, test):
    """{cluster size: record} of one test of primitives/machine/dsmem.h, or of its _one rows (a single cluster)."""
    pattern = re.compile(
        test.removesuffix("_one") + r"(?:_size(\d+))?" + ("_one" if test.endswith("_one") else "(?:_all)?")
    )
    found = {}
    for record in rows.find("dsmem", impl="cuda"):
        match = pattern.fullmatch(record.case)
        if match:
            found[int(match[1] or 1)] = record
    return dict(sorted(found.items()))


def member(records, key, scale=1):
    """{size: number} of one member of each record that has it."""
    return {size: r.number(key) * scale for size, r in records.items() if r.number(key) is not None}


@dataclass
class Latency:
    peers: dict  # {cluster size: median cycles of a load from another SM}, sizes from 2
    nearest: dict
    farthest: dict
    window: dict  # own shared memory through the cluster's window
    own: object  # cycles or None: own shared memory by a plain load
    l2: object
    hbm: object


def latency(rows):
    """Cycles of one dependent load."""
    found = dsmem(rows, "latency")
    peers = {s: r for s, r in found.items() if s > 1}
    own, l2, hbm = (
        next(iter(member(dsmem(rows, f"latency_{k}"), "cycles").values()), None)
        for k in ("smem", "l2", "hbm")
    )
    window = member(found, "window_cycles")
    if 1 in found and found[1].number("cycles") is not None:
        window[1] = found[1].number("cycles")
    return Latency(
        member(peers, "cycles"),
        member(peers, "min_cycles"),
        member(peers, "max_cycles"),
        window,
        own,
        l2,
        hbm,
    )


def gpcs(rows):
    """Latency by pair of SMs, in groups that met in a cluster: [([SM], [[cycles or None]])], reader by owner.

    A cluster never leaves its GPC, so every block lies in one.
    """
    pairs = {}
    for record in dsmem(rows, "latency_matrix").values():
        for entry in record.get("matrix") or []:
            if isinstance(entry, list) and len(entry) == 3 and all(is_number(v) for v in entry):
                pairs[entry[0], entry[1]] = entry[2]
    block = {}
    for reader, owner in pairs:
        a, b = block.setdefault(reader, {reader}), block.setdefault(owner, {owner})
        if a is not b:
            a |= b
            for sm in b:
                block[sm] = a
    groups = sorted({min(sms): sorted(sms) for sms in block.values()}.values())
    return [(sms, [[pairs.get((reader, owner)) for owner in sms] for reader in sms]) for sms in groups]


WAYS = (
    ("load", "16-byte loads"),
    ("st_async", "st.async"),
    ("bulk", "bulk copies"),
    ("multicast", "multicast"),
)
UNICAST = WAYS[:3]


def bandwidth(rows):
    """{'16-byte loads': {size: GB/s}, ...}: bytes received by all SMs, all clusters that fit at once."""
    out = {}
    for test, name in WAYS:
        values = {s: v for s, v in member(dsmem(rows, test), "tbps_kernel", 1000).items() if s > 1}
        if values:
            out[name] = values
    return out


def cluster_bytes_per_cycle(rows, size, alone=False):
    """Bytes that one cluster's SMs receive in a cycle by the fastest unicast way, or None.

    alone: also by rows of one cluster alone; else with all clusters at once.
    """
    tests = [test for test, _ in UNICAST] + (["load_one"] if alone else [])
    rates = [member(dsmem(rows, test), "bytes_per_clk").get(size) for test in tests]
    best = max((r for r in rates if r), default=None)
    return best * size if best else None


def active_sms(rows):
    """{size: (SMs seen at work at once, SMs that the occupancy query grants)}"""
    return {
        size: (r.number("active_sms"), r.number("asked_sms"))
        for size, r in dsmem(rows, "active").items()
        if r.number("active_sms") is not None
    }


def powers_of_two(found):
    """Of {size: ...}, the sizes that the source measured."""
    return {size: value for size, value in found.items() if size in SIZES}


# ---------------------------------------------------------------- collectives


@dataclass
class Collective:
    record: Record
    kind: str  # reduce or gather
    op: str  # sum, max, min, softmax; '' for a gather
    size: int
    num_bytes: int  # of one rank's input
    algo: str
    loaded: bool  # all clusters that fit at once, not one alone

    @property
    def on_chip(self):
        return self.algo != "offchip"

    @property
    def cycles(self):
        return self.record.number("cycles")

    @property
    def traffic(self):
        """Bytes that all ranks of one cluster send through DSMEM."""
        return self.record.number("dsmem_bytes")


def all_collectives(rows, kind, impl="cuda"):
    out = []
    for r in rows.find(f"cluster_{kind}", impl=impl):
        algo = next((w for w in r.words if w in ON_CHIP or w == "offchip"), None)
        if algo is None or "size" not in r.n or "len" not in r.n or r.dtype not in ELEMENT:
            continue
        op = next((w for w in r.words if w in ("sum", "max", "min", "softmax")), "")
        out.append(
            Collective(r, kind, op, r.n["size"], r.n["len"] * ELEMENT[r.dtype], algo, "all" in r.words)
        )
    return sorted(out, key=lambda c: (c.size, c.num_bytes, ON_CHIP.index(c.algo) if c.on_chip else 9))


def collectives(rows, kind, loaded=False, impl="cuda"):
    """The plain rows, f32 and sum, by size, bytes and algorithm: of one cluster alone, or of all at once."""
    return [c for c in all_collectives(rows, kind, impl) if c.loaded == loaded and is_plain(c)]


def is_plain(c):
    return c.op in ("sum", "") and c.record.dtype == "f32" and c.algo != "auto"


def other_collectives(rows, kind):
    """Other operators and types, and AUTO: one cluster alone."""
    return [c for c in all_collectives(rows, kind) if not c.loaded and c.cycles and not is_plain(c)]


def paper_traffic(kind, num_bytes, size):
    """Section 3.1 of the source: bytes that cross the cluster's network in one collective."""
    return num_bytes * size * log2(size) if kind == "reduce" else num_bytes * size * (size - 1)


def pairs(found):
    """[(size, bytes, fastest on chip, off chip)] of those measured both ways, with cycles."""
    groups = {}
    for c in found:
        if c.cycles:
            groups.setdefault((c.size, c.num_bytes), []).append(c)
    out = []
    for (size, num_bytes), group in groups.items():
        on = min((c for c in group if c.on_chip), key=lambda c: c.cycles, default=None)
        off = next((c for c in group if not c.on_chip), None)
        if on and off:
            out.append((size, num_bytes, on, off))
    return out


# ---------------------------------------------------------------- ours beside others


def by_case(rows, op, where=None):
    """[(case's record of ours or of the first table, {impl: record})] in file order."""
    cases = {}
    for record in rows.find(op, where=where):
        cases.setdefault(record.case, {})[record.impl] = record
    return [(next((t[i] for i in OURS if i in t), next(iter(t.values()))), t) for t in cases.values()]


def fastest_peer(table):
    peers = [r for impl, r in table.items() if impl not in OURS + ("ref",) and r.ns]
    return min(peers, key=lambda r: r.ns, default=None)


def pure_read_ns(rows, num_bytes):
    """How long a pure read of so many bytes takes that no cache holds, between the reads measured, or None."""
    found = sorted(
        (r.get("bytes"), r.ns)
        for r in rows.find("stream", "read", impl="cuda")
        if r.ns and r.number("bytes") and r.number("bytes") >= 1 << 20
    )
    if len(found) < 2 or not num_bytes or num_bytes < found[0][0]:
        return None
    above = next((i for i in range(1, len(found)) if found[i][0] >= num_bytes), len(found) - 1)
    (x0, t0), (x1, t1) = found[above - 1], found[above]
    return t0 + (t1 - t0) * (num_bytes - x0) / (x1 - x0)


def stream_share(record, ceilings):
    """Share of the read stream: the one of the same records, else the one the row brought along."""
    value, top = record.number("gbps"), ceilings.gbps()
    if value and top:
        return value / top
    own = record.number("roof_pct")
    return own / 100 if own else None

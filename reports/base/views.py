# SPDX-License-Identifier: Apache-2.0
"""Access to the records for the report, by the names of cases and members that the benches write.

The names are those of primitives/*/*_test.c, fused/*/*_test.c and `cairn generate --json`.
"""

import re
from dataclasses import dataclass
from math import log2

from base.records import Record, is_number

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
# Tables with this project's own kernels; all others are peers or plug-ins.
OURS = ("cuda", "cpu")
# Tables of kernels for readers, which sections/ladder.py shows and which are nobody's peers.
STEPS = tuple(f"ladder{i}" for i in range(1, 6))


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
    """{size: number} of one member, for the records that have it."""
    return {size: r.number(key) * scale for size, r in records.items() if r.number(key) is not None}


@dataclass
class Latency:
    peers: dict  # {cluster size: median cycles of a load from another SM}, sizes from 2
    nearest: dict  # the same for the nearest pair of SMs
    farthest: dict  # and for the farthest pair
    window: dict  # own shared memory through the cluster's window
    own: object  # cycles or None: own shared memory by a plain load
    l2: object  # cycles or None: an L2 hit
    hbm: object  # cycles or None: global memory that no cache holds


def latency(rows):
    """Cycles of one dependent load, by location of the data."""
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
    """Latency of pairs of SMs, in groups that shared a cluster: [([SM], [[cycles or None]])], reader by owner.

    A cluster always lies within one GPC, so every group does.
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
    """Bytes that the SMs of one cluster receive per cycle by the fastest unicast method, or None.

    alone: includes rows of a single cluster; otherwise only rows with all clusters at once.
    """
    tests = [test for test, _ in UNICAST] + (["load_one"] if alone else [])
    rates = [member(dsmem(rows, test), "bytes_per_clk").get(size) for test in tests]
    best = max((r for r in rates if r), default=None)
    return best * size if best else None


def active_sms(rows):
    """{size: (SMs observed active at the same time, SMs granted by the occupancy query)}"""
    return {
        size: (r.number("active_sms"), r.number("asked_sms"))
        for size, r in dsmem(rows, "active").items()
        if r.number("active_sms") is not None
    }


def powers_of_two(found):
    """Restricts {size: ...} to the sizes that the source measured."""
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
    loaded: bool  # all clusters that fit at once, instead of one alone

    @property
    def on_chip(self):
        return self.algo != "offchip"

    @property
    def cycles(self):
        return self.record.number("cycles")

    @property
    def traffic(self):
        """Bytes sent through DSMEM by all ranks of one cluster."""
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
    """The plain rows (f32, sum) by size, bytes and algorithm; loaded: of all clusters at once, else of one alone."""
    return [c for c in all_collectives(rows, kind, impl) if c.loaded == loaded and is_plain(c)]


def is_plain(c):
    return c.op in ("sum", "") and c.record.dtype == "f32" and c.algo != "auto"


def other_collectives(rows, kind):
    """Rows with other operators or types, and AUTO; one cluster alone."""
    return [c for c in all_collectives(rows, kind) if not c.loaded and c.cycles and not is_plain(c)]


def paper_traffic(kind, num_bytes, size):
    """Bytes that cross the network of the cluster in one collective, by section 3.1 of the source."""
    return num_bytes * size * log2(size) if kind == "reduce" else num_bytes * size * (size - 1)


def pairs(found):
    """[(size, bytes, fastest on chip, off chip)] of the sizes measured both ways with cycles."""
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


# ---------------------------------------------------------------- comparison with other tables


def by_case(rows, op, where=None):
    """[(our record of the case, or that of the first table, {impl: record})] in file order, without STEPS."""
    cases = {}
    for record in rows.find(op, where=where):
        if record.impl not in STEPS:
            cases.setdefault(record.case, {})[record.impl] = record
    return [(next((t[i] for i in OURS if i in t), next(iter(t.values()))), t) for t in cases.values()]


def table_of(rows, record):
    """{impl: record} of the case of a record."""
    return {r.impl: r for r in rows.find(record.op) if r.case == record.case}


def fastest_peer(table):
    peers = [r for impl, r in table.items() if impl not in OURS + STEPS + ("ref",) and r.ns]
    return min(peers, key=lambda r: r.ns, default=None)


def other_run(record, peer):
    """Whether two rows certainly come from different runs: they were made from different sources."""
    return record.get("source") != peer.get("source")


LIBRARIES = {"cublaslt": "cuBLASLt", "cudnn": "cuDNN"}


def peer_name(record):
    """The name of another table of a row: the library, with its version where the record has one."""
    library, _, version = str(record.get("impl_version", "")).partition(" ")
    if record.impl == "peers" and library in LIBRARIES:
        return f"{LIBRARIES[library]} {version}".strip()
    if record.impl == "flashinfer":
        return f"FlashInfer {library}" if library[:1].isdigit() else "FlashInfer"
    return {"unfused": "separate kernels"}.get(record.impl, record.impl)


def pure_read_ns(rows, num_bytes):
    """Time of a pure read of num_bytes not in a cache, interpolated between the measured reads; or None."""
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
    """Share of the read stream: of the same records if they have one, else as stored in the row."""
    value, top = record.number("gbps"), ceilings.gbps()
    if value and top:
        return value / top
    own = record.number("roof_pct")
    return own / 100 if own else None

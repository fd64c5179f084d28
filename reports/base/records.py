# SPDX-License-Identifier: Apache-2.0
"""The records of `cairn bench --json`: reading, checking, look-up.

A file holds one JSON object per line (schema: reports/README.md).  Several runs may be concatenated: of
records with the same (op, case, impl) the last one counts, at the position of the first, so that the order
of a table does not depend on how often a row was measured.  Unknown keys are kept.  Malformed input raises
BadRecords, whose text names file and line.
"""

import json
import math
import re

# Each of these members, if present, must be a finite number; times must be above 0.
NUMBERS = (
    "err_over_bound",
    "n",
    "min_ns",
    "median_ns",
    "p95_ns",
    "warm_ns",
    "bytes",
    "flops",
    "gbps",
    "tflops",
    "roof_pct",
    "joules",
    "watts",
    "capped_pct",
    "mj_per_token",
    "sm_mhz",
    "seed",
)
TIMES = ("min_ns", "median_ns", "p95_ns")
# Members that tell rows of one case apart, by op.
APART = {"interference": ("how", "sms_a", "sms_b")}
DTYPES = ("f32", "f16", "bf16", "fp8", "f64", "tf32")


class BadRecords(Exception):
    pass


class Record:
    """One row.  raw: the whole JSON object; n: the numbers in the case's name; words: the other parts.

    size8_len4096_bf16_sum_oneshot has n = {size: 8, len: 4096}, words = [bf16, sum, oneshot]; a bare number
    belongs to the part before it: decode_h32_8_b64 has n = {h: 32, h2: 8, b: 64}.
    """

    def __init__(self, raw, where="a record"):
        self.raw, self.where = raw, where
        self.op, self.case, self.impl = raw["op"], raw["case"], raw["impl"]
        self.key = (self.op, self.case, self.impl, *(raw.get(name) for name in APART.get(self.op, ())))
        self.n, self.words = split_case(self.case)

    def get(self, key, default=None):
        return self.raw.get(key, default)

    def number(self, key):
        """raw[key] if it is a number, else None."""
        value = self.raw.get(key)
        return value if is_number(value) else None

    def need(self, key):
        """raw[key], which every row of this family must have; raises BadRecords without it."""
        value = self.number(key)
        if value is None:
            raise BadRecords(f"{self.where}: {self.op} {self.case}: {key}: missing or not a finite number")
        return value

    @property
    def ns(self):
        return self.number("median_ns")

    @property
    def on_gpu(self):
        # Host rows have an empty driver; see device_info in conformance/abi.h.
        return bool(self.raw.get("driver"))

    def computes(self):
        """Whether the row is bound by arithmetic, not memory.  Machines balance at 50 to 200 flops per byte."""
        flops, num_bytes = self.number("flops") or 0, self.number("bytes") or 0
        return flops > 100 * num_bytes

    @property
    def dtype(self):
        return next((w for w in self.words if w in DTYPES), None)


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def split_case(name):
    numbers, words, last = {}, [], None
    for part in name.split("_"):
        match = re.fullmatch(r"([a-z]+)(\d+)", part)
        if match and part not in DTYPES and match[1] not in numbers:
            last = match[1]
            numbers[last] = int(match[2])
        elif part.isdecimal() and last and last + "2" not in numbers:
            numbers[last + "2"] = int(part)
        else:
            last = None
            words.append(part)
    return numbers, words


def refuse_constant(text):
    raise ValueError(f"{text} is not a JSON number")


def parse_line(text, where="a record"):
    """Parses one record; ValueError if it is malformed."""
    raw = json.loads(text, parse_constant=refuse_constant)
    if not isinstance(raw, dict):
        raise ValueError("not a JSON object")
    if raw.get("v", 1) != 1:
        raise ValueError(f"v: version {raw['v']!r} is not known")
    for key in ("op", "case", "impl"):
        if not isinstance(raw.get(key), str) or not raw[key]:
            raise ValueError(f"{key}: missing or not a string")
    for key in NUMBERS:
        if key in raw and not is_number(raw[key]):
            raise ValueError(f"{key}: {raw[key]!r} is not a finite number")
    for key in TIMES:
        if key in raw and raw[key] <= 0:
            raise ValueError(f"{key}: {raw[key]!r} is not above 0")
    for key in ("gpu", "driver", "source", "impl_version"):
        if key in raw and not isinstance(raw[key], str):
            raise ValueError(f"{key}: {raw[key]!r} is not a string")
    return Record(raw, where)


def load(path):
    """The records of a file, the last of each key, in the order of first appearance."""
    rows = {}
    try:
        with open(path, encoding="utf-8") as file:
            for line_no, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    record = parse_line(line, f"{path}:{line_no}")
                except (ValueError, RecursionError) as error:
                    raise BadRecords(f"{path}:{line_no}: {error}") from None
                rows[record.key] = record
    except UnicodeDecodeError as error:
        raise BadRecords(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise BadRecords(f"{path}: {error.strerror}") from None
    return Rows(rows.values())


class Rows:
    """A set of records with look-up by op, implementation, and words and numbers of the case's name."""

    def __init__(self, records):
        self.all = list(records)
        self.by_key = {r.key: r for r in self.all}

    def __len__(self):
        return len(self.all)

    def __iter__(self):
        return iter(self.all)

    def keep(self, test):
        return Rows(r for r in self.all if test(r))

    def find(self, op, *words, impl=None, where=None, **numbers):
        """Records of op whose case has all these words and numbers, in file order."""
        return [
            r
            for r in self.all
            if r.op == op
            and (impl is None or r.impl == impl)
            and all(w in r.words for w in words)
            and all(r.n.get(k) == v for k, v in numbers.items())
            and (where is None or where(r))
        ]

    def fastest(self, op, *words, impl=None, where=None, **numbers):
        rows = [r for r in self.find(op, *words, impl=impl, where=where, **numbers) if r.ns]
        return min(rows, key=lambda r: r.ns, default=None)

    def ops(self):
        return list(dict.fromkeys(r.op for r in self.all))


class Ceilings:
    """The best rates that this machine reached: the denominators of every share in the report."""

    def __init__(self, rows):
        # Shares are recorded with one decimal, so the largest one gives the datasheet's figure most exactly.
        both = (r for r in rows.find("stream") if r.on_gpu and r.number("gbps") and r.number("peak_pct"))
        self.by_datasheet = max(both, key=lambda r: r.number("peak_pct"), default=None)
        self.read = self.top(rows, "gbps", "stream", "read")
        self.write = self.top(rows, "gbps", "stream", "write")
        self.copy = self.top(rows, "gbps", "stream", "copy")
        self.gemm = self.top(rows, "tflops", "gemm", where=Record.computes)

    @staticmethod
    def top(rows, key, op, *words, where=None):
        found = [r for r in rows.find(op, *words, where=where) if r.number(key)]
        return max(found, key=lambda r: r.number(key), default=None)

    def gbps(self):
        return self.read.number("gbps") if self.read else None

    def tflops(self):
        return self.gemm.number("tflops") if self.gemm else None

    def datasheet(self):
        """The card's memory bandwidth by its datasheet in GB/s, from the share that the program recorded; or None."""
        r = self.by_datasheet
        return round(r.number("gbps") / r.number("peak_pct") * 100, -1) if r else None

    def share(self, record):
        """(share, name of the ceiling) of a row that moves memory or computes, or (None, '')."""
        best = (None, "")
        for key, top, name in (("gbps", self.gbps(), "read"), ("tflops", self.tflops(), "gemm")):
            value = record.number(key)
            if value and top and (best[0] is None or value / top > best[0]):
                best = (value / top, name)
        return best


def cards(rows):
    """The names of the devices of these rows, or ''."""
    return ", ".join(sorted({r.get("gpu") for r in rows if r.get("gpu")}))


class Machine:
    """The machine of the rows: GPU, driver, clocks, digests, as recorded in the rows."""

    def __init__(self, rows):
        def values(key):
            return sorted({r.raw[key] for r in rows if r.raw.get(key) not in (None, "", 0)})

        self.gpus, self.drivers, self.sources = values("gpu"), values("driver"), values("source")
        self.clocks, self.seeds = values("sm_mhz"), values("seed")
        self.num_rows = len(rows)

    def name(self):
        return ", ".join(self.gpus) or "unknown machine"

    def clock(self):
        if not self.clocks:
            return "not recorded"
        low, high = self.clocks[0], self.clocks[-1]
        return f"{low} MHz" if low == high else f"{low} to {high} MHz"

# SPDX-License-Identifier: Apache-2.0
"""GPU-initiated RDMA: claim LA-4, and the project's targets.

Rows: op fhbn (rdma/fhbn/fhbn_measure_test.c), transport (transport_measure_test.c), nic (nic_measure_test.c), rxe (rxe_test.c).
fhbn has not been run on a real card, so no such rows exist: the parts of LA-4 that need a network lack their records,
and the report says so.
"""

import re

from base.page import fixed, num, percent, us
from base.verdicts import Claim, target

LAMINA = "Chen et al. 2024, Lamina (arXiv 2405.01814)"
SMALL, LARGE = 8, 64 << 20
OURS = ("nvlink", "nvlink_stores", "nvlink_memory")


def by_bytes(rows, what, one_gpu=False):
    """{impl: [(bytes, record)]} of the rows of transports; what: put_latency or put_bandwidth."""
    found = {}
    for record in rows.find("transport"):
        match = re.fullmatch(r"(one_gpu_)?" + what + r"_(\d+)", record.case)
        if match and record.ns and bool(match[1]) == one_gpu:
            found.setdefault(record.impl, []).append((int(match[2]), record))
    return {impl: sorted(data, key=lambda d: d[0]) for impl, data in found.items()}


def at(found, num_bytes, wanted):
    """The fastest row of that size whose impl satisfies wanted, or None."""
    rows = [r for impl, data in found.items() if wanted(impl) for size, r in data if size == num_bytes]
    return min(rows, key=lambda r: r.ns, default=None)


def ours(impl):
    return impl in OURS


def nccl(impl):
    """ncclSend and ncclRecv, the source's baseline; NCCL's own device code has other table names."""
    return impl == "nccl"


def gbps(record):
    return record.number("bytes") / record.ns if record and record.number("bytes") else None


def saved(mine, other):
    """(share of the time saved, text), or None"""
    if not mine or not other or not mine.ns or not other.ns:
        return None
    share = 1 - mine.ns / other.ns
    return share, f"{us(mine.ns)} µs against {us(other.ns)} µs: {100 * share:.0f}% less"


def loopback(rows, memory, num_bytes=64):
    """(row of fhbn, row of the path through the CPU) on the same model NIC; either may be None"""
    case = f"model_loopback_{num_bytes}_bytes_{memory}_memory"
    return rows.by_key.get(("fhbn", case, "fhbn")), rows.by_key.get(("fhbn", case, "host_path"))


def la_4(rows):
    claim = Claim(
        "LA-4",
        "FHBN takes 33.0 µs where NCCL takes 66.6 µs, and reaches 45.7 of 50 GB/s where NCCL reaches 35.5",
        f"{LAMINA}, figure 13; H100, ConnectX-7, 400 Gbit/s RoCE",
        "The source's link is a network. No RDMA card was available: the parts that need the network were not measured,"
        " and a time through a model of the card is not a network's latency. Measured are the same comparison on the"
        " available link, NVLink between two GPUs, and the part of the gain that does not depend on the network: a"
        " kernel that posts and polls, against the end of a kernel, a CPU that posts and polls, and a launch, on the"
        " same model card.",
    )
    card = "rows measured with two cards and a switch: none were recorded"
    claim.part("a small message over RoCE", "33.0 µs, NCCL 66.6", "at most half of NCCL's", card, None)
    claim.part("a large message over RoCE", "45.7 GB/s, NCCL 35.5", "at least 91% of the link", card, None)
    latency, bandwidth = by_bytes(rows, "put_latency"), by_bytes(rows, "put_bandwidth")
    small = saved(at(latency, SMALL, ours), at(latency, SMALL, nccl))
    claim.part(
        "a small message over NVLink: put and signal of 8 B by a kernel, against ncclSend and ncclRecv",
        "50.5% less",
        "at least 50% less",
        f"transport put_latency_{SMALL}: nvlink, nccl",
        small and (small[1], small[0] >= 0.5, small[1]),
    )
    mine, engine, other = (
        gbps(at(bandwidth, LARGE, wanted)) for wanted in (ours, lambda impl: impl == "copy_engine", nccl)
    )
    claim.part(
        "over NVLink: put of 64 MiB, share of the link's bandwidth",
        "91.4%",
        "at least 91% of the copy engine's",
        f"transport put_bandwidth_{LARGE}: nvlink, copy_engine",
        mine
        and engine
        and (f"{percent(mine / engine)} ({num(mine)} of {num(engine)} GB/s)", mine / engine >= 0.91, "less than 91%"),
    )
    claim.part(
        "over NVLink: put of 64 MiB, against NCCL",
        "1.29 times",
        "more than NCCL's",
        f"transport put_bandwidth_{LARGE}: nvlink, nccl",
        mine and other and (f"{mine / other:.2f} times ({num(other)} GB/s)", mine > other, f"{mine / other:.2f} times"),
    )
    for memory in ("gpu", "host"):
        gain = saved(*loopback(rows, memory))
        claim.part(
            f"without the CPU: 64 B through the model card, {memory.upper() if memory == 'gpu' else memory} memory",
            "50.5% less",
            "at least 50% less",
            f"fhbn model_loopback_64_bytes_{memory}_memory: fhbn, host_path",
            gain and (gain[1], gain[0] >= 0.5, gain[1]),
        )
    return claim


def claims(rows):
    return [la_4(rows)]


def post(rows, ring, limit):
    case = f"post_64_bytes_signal_{ring}_ring_bell8"
    record = rows.by_key.get(("fhbn", case, "fhbn"))
    cycles = record.number("median_cycles") if record else None
    return target(
        f"post of payload and signal from a kernel, ring in {'GPU' if ring == 'gpu' else ring} memory",
        f"under {limit:.1f} µs",
        f"fhbn {case}",
        record
        and record.ns
        and (f"{us(record.ns)} µs" + (f" ({num(cycles)} cycles)" if cycles else ""), record.ns < 1000 * limit),
    )


def no_cpu(rows, memory):
    gain = saved(*loopback(rows, memory))
    return target(
        f"device post and poll against the conventional path, same model card, {memory} memory",
        "50% less time",
        f"fhbn model_loopback_64_bytes_{memory}_memory: fhbn, host_path",
        gain and (gain[1], gain[0] >= 0.5),
    )


def targets(rows):
    best = at(by_bytes(rows, "put_latency"), SMALL, ours)
    bandwidth = by_bytes(rows, "put_bandwidth")
    mine, engine = gbps(at(bandwidth, LARGE, ours)), gbps(at(bandwidth, LARGE, lambda impl: impl == "copy_engine"))
    stock = next(iter(rows.find("nic", where=lambda r: r.case == "stock_ib_write_bw")), None)
    requests, rules = (stock.number("requests"), stock.number("rules")) if stock else (None, None)
    return [
        post(rows, "gpu", 1.0),
        post(rows, "host", 2.0),
        no_cpu(rows, "gpu"),
        no_cpu(rows, "host"),
        target(
            "NVLink, put and signal of 8 B, one way, kernel to kernel",
            "under 1.6 µs",
            f"transport put_latency_{SMALL}: nvlink",
            best and (f"{us(best.ns)} µs", best.ns < 1600),
        ),
        target(
            "NVLink, put of 64 MiB by a kernel",
            "95% of the copy engine's",
            f"transport put_bandwidth_{LARGE}: nvlink, copy_engine",
            mine and engine and (f"{fixed(100 * mine / engine, 1)}% ({num(mine)} GB/s)", mine / engine >= 0.95),
        ),
        target(
            "model card under the stock ib_write_bw",
            "no rule broken in 10 million requests",
            "nic stock_ib_write_bw",
            requests is not None
            and rules is not None
            and (f"{num(rules)} in {requests / 1e6:.1f} million", rules == 0 and requests >= 10**7)
            or None,
        ),
    ]

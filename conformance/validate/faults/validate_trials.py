#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts how often `cairn validate` finds injected defects and names their place, and how often it accuses a sound device.

    python3 conformance/validate/faults/validate_trials.py [OPTION]... sim       # simulated devices; needs no GPU
    python3 conformance/validate/faults/validate_trials.py [OPTION]... faulty    # kernels with faults (make faulty), on GPUs

Each trial runs `cairn validate` once, with a defect that is drawn from the trial's number. `found`: a finding of the expected verdict;
`named`: one that has the right SM and, for wrong bits, the right sub-partition, or the right address or link; `accused`: trials with a
finding that names another SM or link; `seen`: the share of replays whose digest shows a fault that the inputs repeat. Class `healthy`
has no defect: found must be 0. Classes of links need as many GPUs as their names say (--gpus); classes that take more than ten minutes
a trial run only if --classes names them. Exit status: 0 all found and named and nothing accused, 1 not so.
"""

import argparse
import fnmatch
import json
import os
import random
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass


@dataclass
class Class:
    name: str
    env: str  # with {sm}, {part}, {seed}, {mask} and {byte} of the trial
    only: str
    minutes: float = 0.001
    verdict: str = "fail"
    part: bool = True  # findings tell the sub-partition
    text: str = ""  # what a finding says instead of a place
    devices: int = 1  # more: a class of links, whose findings begin with both ends


# In the 33 s of full load of a quick run an SM does about 5e8 wgmma, so that an error rate of 1e-7 makes 50 wrong rounds. Here a run
# has at least 192 rounds, and one of 19 is wrong, which makes ten. On the simulated device the classes of bits differ in the digest's
# wrong bits alone. In 30 minutes an SM does at least 9e9 wgmma (half of the time, 1e7 a second), so that a rate of 1e-9 makes nine
# wrong rounds, spread over all programs; here three of full load have 576 rounds, and one of 61 is wrong.
LINK = "device {from} to device {to}, alone: "
SIM = [
    Class("healthy", "", "dsmem.pairs,screen.int,screen.f32,full-load.f16,pulses.f16,l2,copy,health"),
    Class("healthy_links_of_4", "devices=4", "links", devices=4),
    Class("one_bit_1e-7", "unit={sm} part={part} chance=19 mask={bit}", "full-load.f16"),
    Class("bits_1e-7", "unit={sm} part={part} chance=19 mask={mask}", "full-load.f16"),
    Class("lanes_1e-7", "unit={sm} part={part} chance=19 mask=4294967295", "full-load.f16"),
    Class("one_bit_1e-9", "unit={sm} part={part} chance=61 mask={bit}", "full-load.f16,full-load.s8,full-load.mix"),
    Class("ffma", "unit={sm} part={part} chance=5 program=6 mask={bit}", "screen.f32"),
    Class("operands", "unit={sm} part={part} flips=20 mask={bit}", "screen.int,full-load.mix"),
    Class("full_load_only", "unit={sm} part={part} load=40 mask={bit}", "full-load.s8"),
    Class("late", "unit={sm} part={part} after=5 chance=10 mask={bit}", "screen.f32,screen.int,pulses.mix"),
    Class("digest", "unit={sm} part={part} sum=0 flips=9 mask={bit}", "screen.memory,pulses.f16"),
    Class("slow_sm_5_percent", "unit={sm} slow=50", "dsmem.pairs,screen.int", part=False),
    Class("slow_pair_5_percent", "unit={first} pair=50", "dsmem.pairs", verdict="warn", part=False),
    Class("stuck_bit", "stuck={byte}", "hbm", text="buffer 0, byte {word}: "),
    Class("faded_bit", "fade={word}", "hbm", text="buffer 0, byte {word}: "),
    Class("atomic_bit", "atomic={byte}", "hbm", text="buffer 0, byte {word}: "),
    Class("copy_byte", "copy={byte}", "copy", text="to the host: bits {bits} of the word at byte {word}"),
    Class("upload_byte", "upload={byte}", "copy", text="to the device: the block at byte {block}"),
    Class("shared_fault", "all=1", "screen.int", part=False, text="the units agree on a digest that is not the reference's"),
    Class("slow_link_of_2", "devices=2 {link} link_slow=50", "links", text=LINK, devices=2),
    Class("slow_link_of_4", "devices=4 {link} link_slow=50", "links", text=LINK, devices=4),
    Class("link_byte_of_2", "devices=2 {link} link_byte={byte}", "links", text="the block at byte {block} ", devices=2),
    Class("link_byte_of_4", "devices=4 {link} link_byte={byte}", "links", text="the block at byte {block} ", devices=4),
    Class("link_down_of_2", "devices=2 {link} link_down=1", "links", text=": down: ", devices=2),
    Class("link_down_of_4", "devices=4 {link} link_down=1", "links", text=": down: ", devices=4),
]
# Class 3e-8_in_a_minute has as many errors in a minute as a rate of 1e-9 has in half an hour.
FAULTY = [
    Class("healthy", "", "dsmem.*,screen.*,full-load.*,pulses.*,l2,hbm,copy,launch", 1.2),
    Class("healthy_links_of_2", "", "links", 0.2, devices=2),
    Class("one_bit_1e-7", "rate=1e-7 sm={sm} part={part} seed={seed}", "full-load.f16", 0.1),
    Class("bits_1e-7", "rate=1e-7 sm={sm} part={part} mask={mask} seed={seed}", "full-load.f16", 0.1),
    Class("lanes_1e-7", "rate=1e-7 sm={sm} part={part} lanes=1 seed={seed}", "full-load.bf16", 0.1),
    Class("operands_1_of_65536", "rate=9.5e-7 operands=1 sm={sm} part={part} seed={seed}", "full-load.e4m3", 0.1),
    Class("full_load_only", "rate=1e-6 rounds=32 sm={sm} part={part} seed={seed}", "full-load.s8", 0.05),
    Class("late", "rate=1e-6 after=1 sm={sm} part={part} seed={seed}", "full-load.tf32", 0.1),
    Class("ffma_1e-9", "rate=1e-9 sm={sm} part={part} seed={seed}", "screen.f32", 0.05),
    Class("1e-9_in_30_minutes", "rate=1e-9 sm={sm} part={part} seed={seed}", "screen.*,full-load.*,pulses.*", 30),
    Class("1e-10_in_5_hours", "rate=1e-10 sm={sm} part={part} seed={seed}", "screen.*,full-load.*,pulses.*", 300),
    Class("3e-8_in_a_minute", "rate=3e-8 sm={sm} part={part} seed={seed}", "screen.*,full-load.*,pulses.*", 1),
    Class("slow_sm_5_percent", "cycles=50 sm={sm}", "dsmem.pairs,screen.int", 0.1, part=False),
    Class("slow_pair_5_percent", "pair=50 sm={sm}", "dsmem.pairs", 0.05, verdict="warn", part=False),
    Class("stuck_byte", "stuck={byte}", "hbm", 0.1, text="buffer 0, byte {word}: "),
    Class("copy_byte", "arrived={byte}", "copy", 0.05, text="the block at byte {block} is wrong"),
    Class("slow_link_of_2", "{link} link_slow=50", "links", 0.2, text=LINK, devices=2),
    Class("link_byte_of_2", "{link} link_byte={byte}", "links", 0.1, text="the block at byte {block} ", devices=2),
]


def draw(number, sms, devices=1):
    rng = random.Random(number)
    byte = 8 * rng.randrange(1 << 14 if devices > 1 else 1 << 17) + 1
    mask = 0
    while mask.bit_count() < 2:
        mask = rng.randrange(1, 1 << 32) & rng.randrange(1 << 32)
    sm = rng.randrange(sms)
    ends = random.Random(number).sample(range(max(devices, 2)), 2)
    return {
        "from": ends[0],
        "to": ends[1],
        "link": f"link_from={ends[0]} link_to={ends[1]}",
        "seed": number,
        "sm": sm,
        "first": sm // 8 * 8 + sm % 8 // 2 * 2,  # a unit and the next one share clusters of 2 on the simulated device
        "part": rng.randrange(4),
        "bit": 1 << rng.randrange(32),
        "mask": mask,
        "byte": byte,
        "word": byte // 8 * 8,
        "block": byte // 4096 * 4096,
        "bits": f"{0x10 << 8 * (byte % 8):016x}",
    }


def validate(args, cls, drawn, path):
    """The findings of one run, or the text of a run that went wrong."""
    build = args.build
    impl = "sim_plugin.so" if args.mode == "sim" else "injector/faulty_plugin.so"
    env = dict(os.environ, CAIRN_KMSG="/dev/null" if args.mode == "sim" else os.environ.get("CAIRN_KMSG", "/dev/kmsg"))
    env["CAIRN_SIM" if args.mode == "sim" else "CAIRN_FAULTY"] = cls.env.format(**drawn)
    if args.mode == "sim":
        env.update(CAIRN_NVML=os.path.join(build, "fake_nvml.so"), CAIRN_FAKE_NVML="")
    command = [os.path.join(build, "cairn"), "validate", "--impl", os.path.join(build, impl), "--only", cls.only]
    command += ["--device", "0"] if cls.devices == 1 else []
    command += ["--seed", str(drawn["seed"]), "--minutes", str(cls.minutes), "--json", path]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        return f"exit status {done.returncode}: {(done.stdout + done.stderr).strip()[-300:]}"
    with open(path, encoding="utf-8") as f:
        return [finding for line in f for finding in json.loads(line)["findings"]]


def accuses(cls, drawn, finding):
    """Whether a finding names another SM or another link than the one with the defect."""
    if cls.devices > 1:
        ends = [(drawn["from"], drawn["to"]), (drawn["to"], drawn["from"])]
        # a pair that cannot reach each other is named at both ends
        return not any(finding["text"].startswith(f"device {a} to device {b}") for a, b in ends[: 2 if "_down" in cls.name else 1])
    place = drawn["first" if "{first}" in cls.env else "sm"]
    return finding.get("place", place) != place


def trial(args, cls, number):
    """(found, named, accused, replays, repeated), or a text."""
    drawn = draw(number, args.sms, cls.devices)
    with tempfile.TemporaryDirectory() as folder:
        findings = validate(args, cls, drawn, os.path.join(folder, "r.jsonl"))
    if isinstance(findings, str):
        return findings
    place = drawn["first" if "{first}" in cls.env else "sm"]
    wanted = [f for f in findings if f["verdict"] == cls.verdict]
    if cls.text:
        named = any(cls.text.format(**drawn) in f["text"] for f in wanted)
    else:
        named = any(f.get("place") == place and (not cls.part or f.get("part") == drawn["part"]) for f in wanted)
    if cls.name.startswith("healthy"):
        return bool(findings), False, bool(findings), 0, 0
    accused = any(accuses(cls, drawn, f) for f in findings)
    return bool(wanted), named, accused, sum(f.get("replays", 0) for f in findings), sum(f.get("repeated", 0) for f in findings)


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("sim", "faulty"))
    parser.add_argument("--seeds", type=int, default=100, help="trials of each defect (100)")
    parser.add_argument("--healthy", type=int, default=1000, help="trials without one (1000)")
    parser.add_argument("--first", type=int, default=1, help="number of the first trial (1)")
    parser.add_argument("--classes", default="*", help="glob of the classes to run")
    parser.add_argument("--minutes", type=float, help="length of each run, instead of that of its class")
    parser.add_argument("--jobs", type=int, help="runs at the same time (sim: 2; faulty: 1)")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of this machine, for the classes of links (faulty: 1)")
    parser.add_argument("--sms", type=int, help="SMs of the device (sim: 32; faulty: 132)")
    parser.add_argument("--build", default=os.environ.get("CAIRN_BUILD", "build"), help="build folder")
    args = parser.parse_args(argv)
    sim = args.mode == "sim"
    args.build = os.path.abspath(args.build)
    args.sms = args.sms or (32 if sim else 132)
    jobs = args.jobs or (2 if sim else 1)
    bad = 0
    print(f"{'class':20} {'runs':>5} {'found':>6} {'named':>6} {'accused':>8} {'seen':>7}")
    for cls in SIM if sim else FAULTY:
        if not fnmatch.fnmatch(cls.name, args.classes):
            continue
        if (not sim and cls.devices > args.gpus) or (cls.minutes > 10 and cls.name != args.classes):
            continue
        cls.minutes = args.minutes or cls.minutes
        n = args.healthy if cls.name.startswith("healthy") else args.seeds
        with ThreadPoolExecutor(jobs) as pool:
            results = list(pool.map(lambda number, c=cls: trial(args, c, number), range(args.first, args.first + n)))
        for number, result in enumerate(results, args.first):
            if isinstance(result, str):
                print(f"{cls.name}, trial {number}: {result}", file=sys.stderr)
        judged = [r for r in results if not isinstance(r, str)]
        found, named, accused, replays, repeated = (sum(r[i] for r in judged) for i in range(5))
        # only faults that the inputs repeat show in each replay
        seen = f"{repeated / replays:7.2%}" if replays and cls.name.startswith("operands") else ""
        print(f"{cls.name:20} {n:5} {found:6} {named:6} {accused:8} {seen}".rstrip(), flush=True)
        bad += accused or len(judged) < n or (not cls.name.startswith("healthy") and named < n)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts how often `cairn validate` finds injected defects and names their place, and how often it accuses a sound device.

    python3 conformance/validate/validate_trials.py [OPTION]... sim       # the simulated device; needs no GPU
    python3 conformance/validate/validate_trials.py [OPTION]... faulty    # kernels with faults (make faulty), on device 0

Each trial runs `cairn validate` once, with a defect that is drawn from the trial's number. `found`: a finding of the expected verdict;
`named`: one that has the right SM and, for wrong bits, the right sub-partition, or the right address; `accused`: trials with a finding
that names another SM. Class `healthy` has no defect: found must be 0. Exit status: 0 all found and named and nothing accused, 1 not so.
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


# In the 35 s of full load of a quick run an SM does about 5e8 wgmma, so that an error rate of 1e-7 makes 50 wrong rounds. Here a run
# has at least 192 rounds, and one of 19 is wrong, which makes ten. On the simulated device the classes of bits differ in the digest's
# wrong bits alone.
SIM = [
    Class("healthy", "", "dsmem.pairs,screen.int,screen.f32,full-load.f16,pulses.f16,l2,copy,health"),
    Class("one_bit_1e-7", "unit={sm} part={part} chance=19 mask={bit}", "full-load.f16"),
    Class("bits_1e-7", "unit={sm} part={part} chance=19 mask={mask}", "full-load.f16"),
    Class("lanes_1e-7", "unit={sm} part={part} chance=19 mask=4294967295", "full-load.f16"),
    Class("operands", "unit={sm} part={part} flips=20 mask={bit}", "screen.int,full-load.mix"),
    Class("full_load_only", "unit={sm} part={part} load=40 mask={bit}", "full-load.s8"),
    Class("late", "unit={sm} part={part} after=5 chance=10 mask={bit}", "screen.f32,screen.int,pulses.mix"),
    Class("digest", "unit={sm} part={part} sum=0 flips=9 mask={bit}", "screen.memory,pulses.f16"),
    Class("slow_sm_5_percent", "unit={sm} slow=50", "dsmem.pairs,screen.int", part=False),
    Class("slow_pair_5_percent", "unit={first} pair=50", "dsmem.pairs", verdict="warn", part=False),
    Class("stuck_bit", "stuck={byte}", "hbm", text="buffer 0, byte {word}: "),
    Class("copy_byte", "copy={byte}", "copy", text="to the host: bits {bits} of the word at byte {word}"),
    Class("upload_byte", "upload={byte}", "copy", text="to the device: the block at byte {block}"),
    Class("shared_fault", "all=1", "screen.int", part=False, text="the units agree on a digest that is not the reference's"),
]
FAULTY = [
    Class("healthy", "", "screen.*,full-load.*,pulses.*", 1),
    Class("one_bit_1e-7", "rate=1e-7 sm={sm} part={part} seed={seed}", "full-load.f16", 0.1),
    Class("bits_1e-7", "rate=1e-7 sm={sm} part={part} mask={mask} seed={seed}", "full-load.f16", 0.1),
    Class("lanes_1e-7", "rate=1e-7 sm={sm} part={part} lanes=1 seed={seed}", "full-load.bf16", 0.1),
    Class("operands_1_of_65536", "rate=9.5e-7 operands=1 sm={sm} part={part} seed={seed}", "full-load.e4m3", 0.1),
    Class("full_load_only", "rate=1e-6 rounds=32 sm={sm} part={part} seed={seed}", "full-load.s8", 0.05),
    Class("late", "rate=1e-6 after=1 sm={sm} part={part} seed={seed}", "full-load.tf32", 0.1),
    Class("ffma_1e-9", "rate=1e-9 sm={sm} part={part} seed={seed}", "screen.f32", 0.05),
    Class("slow_sm", "slow=400 sm={sm}", "screen.special", 0.05, part=False),
]


def draw(number, sms):
    rng = random.Random(number)
    byte = 8 * rng.randrange(1 << 17) + 1
    mask = 0
    while mask.bit_count() < 2:
        mask = rng.randrange(1, 1 << 32) & rng.randrange(1 << 32)
    sm = rng.randrange(sms)
    return {
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
    command += ["--seed", str(drawn["seed"]), "--minutes", str(cls.minutes), "--json", path]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        return f"exit status {done.returncode}: {(done.stdout + done.stderr).strip()[-300:]}"
    with open(path, encoding="utf-8") as f:
        return [finding for line in f for finding in json.loads(line)["findings"]]


def trial(args, cls, number):
    """(found, named, accused), or a text."""
    drawn = draw(number, args.sms)
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
    accused = any(f.get("place", place) != place for f in findings)
    if cls.name == "healthy":
        return bool(findings), False, bool(findings)
    return bool(wanted), named, accused


def main(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("sim", "faulty"))
    parser.add_argument("--seeds", type=int, default=100, help="trials of each defect (100)")
    parser.add_argument("--healthy", type=int, default=1000, help="trials without one (1000)")
    parser.add_argument("--first", type=int, default=1, help="number of the first trial (1)")
    parser.add_argument("--classes", default="*", help="glob of the classes to run")
    parser.add_argument("--minutes", type=float, help="length of each run, instead of that of its class")
    parser.add_argument("--jobs", type=int, help="runs at the same time (sim: 2; faulty: 1)")
    parser.add_argument("--sms", type=int, help="SMs of the device (sim: 32; faulty: 132)")
    parser.add_argument("--build", default=os.environ.get("CAIRN_BUILD", "build"), help="build folder")
    args = parser.parse_args(argv)
    sim = args.mode == "sim"
    args.build = os.path.abspath(args.build)
    args.sms = args.sms or (32 if sim else 132)
    jobs = args.jobs or (2 if sim else 1)
    bad = 0
    print(f"{'class':20} {'runs':>5} {'found':>6} {'named':>6} {'accused':>8}")
    for cls in SIM if sim else FAULTY:
        if not fnmatch.fnmatch(cls.name, args.classes):
            continue
        cls.minutes = args.minutes or cls.minutes
        n = args.healthy if cls.name == "healthy" else args.seeds
        with ThreadPoolExecutor(jobs) as pool:
            results = list(pool.map(lambda number, c=cls: trial(args, c, number), range(args.first, args.first + n)))
        for number, result in enumerate(results, args.first):
            if isinstance(result, str):
                print(f"{cls.name}, trial {number}: {result}", file=sys.stderr)
        judged = [r for r in results if not isinstance(r, str)]
        found, named, accused = (sum(r[i] for r in judged) for i in range(3))
        print(f"{cls.name:20} {n:5} {found:6} {named:6} {accused:8}", flush=True)
        bad += accused or len(judged) < n or (cls.name != "healthy" and named < n)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

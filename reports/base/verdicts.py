# SPDX-License-Identifier: Apache-2.0
"""Definition of a verdict: claims with their parts, and the project's targets."""

from dataclasses import dataclass, field

from base.page import DASH

PAPER = "Luo et al. 2025, ClusterFusion (arXiv 2508.18850)"


@dataclass
class Part:
    what: str
    source: str  # the source's value as text
    rule: str
    needs: str  # the records that decide it
    here: str = DASH  # this machine's value
    holds: object = None  # True, False, or None: records are missing
    why: str = ""  # the reason, if it does not hold


@dataclass
class Claim:
    id: str
    title: str
    source: str
    method: str
    parts: list = field(default_factory=list)

    def part(self, what, source, rule, needs, result):
        """result: None if records are missing, else (value here, whether it holds, reason if not)."""
        self.parts.append(Part(what, source, rule, needs, *(result or ())))

    def verdict(self):
        """(kind, text); kind: good, bad, none."""
        judged = [p.holds for p in self.parts if p.holds is not None]
        if not all(judged):
            return "bad", "refuted in part" if any(judged) else "refuted"
        if len(judged) < len(self.parts) or not judged:
            return "none", "not measured"
        return "good", "reproduced"

    def failing(self):
        return [p for p in self.parts if p.holds is False]

    def lacking(self):
        return [p for p in self.parts if p.holds is None]


@dataclass
class Target:
    what: str
    wanted: str
    needs: str  # the records that decide it
    here: str = DASH
    reached: object = None  # True, False, or None: records are missing, or the target is not for this card
    only: str = ""  # the card that the target was set for, if the rows are of another one

    def measured(self):
        return self.reached is not None or bool(self.only)

    def verdict(self):
        if self.only:
            return "none", f"set for an {self.only.removeprefix('NVIDIA ')}"
        names = {True: ("good", "reached"), False: ("bad", "not reached"), None: ("none", "not measured")}
        return names[self.reached]


def target(what, wanted, needs, result):
    """result: None if records are missing, else (value here, whether it is reached)."""
    return Target(what, wanted, needs, *(result or ()))


H200 = "NVIDIA H200"


def for_h200(found, rows):
    """Absolute times and rates were set for one card: on another one they are shown and not judged."""
    names = {r.get("gpu") or "" for r in rows if r.on_gpu}
    for t in found:
        if t.reached is not None and not all(name.startswith(H200) for name in names):
            t.reached, t.only = None, H200
        yield t

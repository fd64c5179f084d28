# SPDX-License-Identifier: Apache-2.0
"""What a verdict is: claims and their parts, and the project's own figures (report_claims.py, report_fused_claims.py)."""

from dataclasses import dataclass, field

from report_page import DASH

PAPER = "Luo et al. 2025, ClusterFusion (arXiv 2508.18850)"


@dataclass
class Part:
    what: str
    source: str  # the source's value, as text
    rule: str
    needs: str  # the records it is judged by
    here: str = DASH  # this machine's value
    holds: object = None  # True, False, or None: the records are missing
    why: str = ""  # in words, if it does not hold


@dataclass
class Claim:
    id: str
    title: str
    source: str
    method: str
    parts: list = field(default_factory=list)

    def part(self, what, source, rule, needs, result):
        """result: None if records are missing, else (value here, does it hold, why not)."""
        self.parts.append(Part(what, source, rule, needs, *(result or ())))

    def verdict(self):
        """(kind, text); kind: good, bad, none."""
        judged = [p.holds for p in self.parts if p.holds is not None]
        if not all(judged):
            return "bad", "refuted in part" if any(judged) else "refuted"
        if len(judged) < len(self.parts) or not judged:
            return "none", "not measurable here"
        return "good", "reproduced"

    def failing(self):
        return [p for p in self.parts if p.holds is False]

    def lacking(self):
        return [p for p in self.parts if p.holds is None]


@dataclass
class Target:
    what: str
    wanted: str
    needs: str  # the records it is judged by
    here: str = DASH
    reached: object = None  # True, False, or None: the records are missing

    def verdict(self):
        names = {True: ("good", "reached"), False: ("bad", "not reached"), None: ("none", "not measured")}
        return names[self.reached]


def target(what, wanted, needs, result):
    """result: None if records are missing, else (value here, is it reached)."""
    return Target(what, wanted, needs, *(result or ()))

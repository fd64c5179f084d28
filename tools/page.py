#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes into serving/serve/page.html the hashes of its script and style, which its policy names: tools/page.py [--check]

Exit status with --check: 1 if they are not what they should be.
"""

import base64
import hashlib
import re
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "serving" / "page.html"


def with_hashes(text):
    for tag in ("script", "style"):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        text, n = re.subn(f"{tag}-src 'sha256-[^']*'", f"{tag}-src 'sha256-{digest}'", text)
        if n != 1:
            raise ValueError(f"page.html: the policy names {n} hashes of its {tag}")
    return text


def main():
    text = PAGE.read_text(encoding="utf-8")
    right = with_hashes(text)
    if "--check" in sys.argv[1:]:
        return 0 if text == right else 1
    PAGE.write_text(right, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

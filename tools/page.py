#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Updates the hashes in the Content-Security-Policy of serving/page/page.html: tools/page.py [--check]

The build puts the style and the scripts in place of the lines "@include FILE" (serving/page/Kbuild), as whole() does.
With --check nothing is written; exit status 1 if the hashes are out of date.
"""

import base64
import hashlib
import re
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "serving" / "page" / "page.html"


def whole(text):
    return re.sub(r"^@include (.+)\n", lambda m: (PAGE.parent / m[1]).read_text(encoding="utf-8"), text, flags=re.M)


def with_hashes(text):
    for tag in ("script", "style"):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", whole(text), re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        text, n = re.subn(f"{tag}-src 'sha256-[^']*'", f"{tag}-src 'sha256-{digest}'", text)
        if n != 1:
            raise ValueError(f"page.html: the policy has {n} hashes for {tag}")
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

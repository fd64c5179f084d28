#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes serving/tokenizer/unicode_tables.h: the differences between the `tokenizers` library's Unicode and the system's.

The library has its own Unicode tables (Oniguruma's for \\p{L} and the like; an older set for NFC, NFD, NFKC,
NFKD; Rust's for numbers). PCRE2 and utf8proc have those of the distribution. This program queries the library
code point by code point and prints the differences, which the C code then corrects.

    pip install tokenizers==0.23.3; python3 tools/unicode_tables.py > serving/tokenizer/unicode_tables.h

Needs a Python whose unicodedata is 14.0 or older than that of the oldest supported PCRE2 (Python 3.11).
"""
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co").split()
SCRIPTS = "Han Hiragana Katakana Latin Greek Cyrillic Arabic Hangul Thai Hebrew Devanagari".split()
POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
EVERYTHING = "".join(map(chr, POINTS))

# Blocks whose characters take part in normalization since Unicode 15, 16 and 17: the local unicodedata is
# too old to have them. needs_mending() checks that the library leaves every one of them unchanged.
LATER = [(0x897, 0x897), (0xECE, 0xECE), (0x1ACF, 0x1AEB), (0xA7F1, 0xA7F4), (0x105C0, 0x105FF), (0x10D40, 0x10D8F),
         (0x10EC2, 0x10EFF), (0x11380, 0x113FF), (0x11F00, 0x11F5F), (0x16100, 0x1613F), (0x16D40, 0x16D7F),
         (0x1CCD6, 0x1CCF9), (0x1E030, 0x1E08F), (0x1E4D0, 0x1E4FF), (0x1E5D0, 0x1E5FF), (0x1E6C0, 0x1E6FF)]


def ranges(points):
    out = []
    for c in sorted(points):
        if out and c == out[-1][1] + 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def members(cls):
    """The code points that match a class in the library's regex."""
    kept = normalizers.Replace(Regex("[^%s]" % cls), "").normalize_str(EVERYTHING)
    return {ord(c) for c in kept}


def inert_to_library():
    """Code points that no normal form of the library changes, moves or composes."""
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    inert = set()
    composing = set()
    for c in POINTS:
        s = chr(c)
        d = nfd.normalize_str(s)
        if d != s:
            composing.update(map(ord, d))
        if nfkd.normalize_str(s) != s:
            continue
        # U+0334 has combining class 1 and U+3099 class 8: one of them is reordered with any other class
        if nfd.normalize_str("a" + s + "\u0334") != "a" + s + "\u0334":
            continue
        if nfd.normalize_str("a\u3099" + s) != "a\u3099" + s:
            continue
        inert.add(c)
    return inert - composing


def needs_mending(inert):
    """Code points that only newer tables normalize; neighbours are included to make fewer ranges."""
    bad = set()
    for c in POINTS:
        s = chr(c)
        if c in inert and (unicodedata.combining(s) or unicodedata.decomposition(s)):
            bad.add(c)
            bad.update(x for x in map(ord, unicodedata.normalize("NFD", s)) if x in inert)
    for a, b in LATER:
        assert all(c in inert for c in range(a, b + 1)), hex(a)
        bad.update(range(a, b + 1))
    out = []
    for a, b in ranges(bad):
        if out and all(c in inert for c in range(out[-1][1] + 1, a)) and a - out[-1][1] < 0x400:
            out[-1][1] = b
        else:
            out.append([a, b])
    return out


def rows(items, per_line, fmt):
    text = [fmt % tuple(i) for i in items]
    return "\n".join("\t" + " ".join(text[i:i + per_line]) for i in range(0, len(text), per_line))


def main():
    unassigned = {c for c in POINTS if unicodedata.category(chr(c)) == "Cn"}
    assert float(".".join(unicodedata.unidata_version.split(".")[:2])) <= 14.0, unicodedata.unidata_version
    categories = []
    for name in CATEGORIES:
        now = members(r"\p{%s}" % name)
        before = {c for c in POINTS if unicodedata.category(chr(c)) == name}
        # A few marks moved between Mn and Mc: \\p{M} is corrected, \\p{Mn} alone is not. No other class lost members.
        moved = before - now
        assert all(name[0] == "M" for c in moved), name
        categories += [(a, b, name) for a, b in ranges(now & unassigned)]
    categories.sort()
    scripts = []
    for name in SCRIPTS:
        scripts += [(a, b, name) for a, b in ranges(members(r"\p{%s}" % name) & unassigned)]
    numeric = pre_tokenizers.Digits(True)
    digits = {c for c in POINTS if len(numeric.pre_tokenize_str("a" + chr(c))) == 2}
    known = {c for c in POINTS if unicodedata.category(chr(c))[0] == "N"}
    assert known <= digits
    mend = needs_mending(inert_to_library())
    print("""/* SPDX-License-Identifier: Apache-2.0 */
/* Written by tools/unicode_tables.py from tokenizers %s; do not edit. */
#ifndef CAIRN_UNICODE_TABLES_H
#define CAIRN_UNICODE_TABLES_H

#include <stdint.h>

struct unicode_range {
	uint32_t first, last;
};

struct unicode_property {
	uint32_t first, last;
	const char *name;
};

/* Characters assigned after Unicode 14, with the general category the library's regular expressions use. */
static const struct unicode_property new_categories[] = {
%s
};

/* The same for scripts. */
static const struct unicode_property new_scripts[] = {
%s
};

/* Characters assigned after Unicode 14 that the library counts as numeric. */
static const struct unicode_range new_numeric[] = {
%s
};

/* Ranges that the library's normal forms leave unchanged, although newer tables normalize some of each. */
static const struct unicode_range inert_ranges[] = {
%s
};

#endif""" % (tokenizers.__version__,
             rows(categories, 4, '{ 0x%x, 0x%x, "%s" },'),
             rows(scripts, 3, '{ 0x%x, 0x%x, "%s" },'),
             rows(ranges(digits - known), 5, "{ 0x%x, 0x%x },"),
             rows(mend, 5, "{ 0x%x, 0x%x },")))
    return 0


if __name__ == "__main__":
    sys.exit(main())

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * utf8 - decodes and encodes one code point at a time
 *
 * Ill-formed bytes are split into maximal subparts (Unicode 16, section 3.9, "U+FFFD Substitution of Maximal
 * Subparts"), each of which becomes one U+FFFD. Python's errors="replace" and Rust's from_utf8_lossy do the
 * same, so all three give the same text.
 */
#ifndef CAIRN_UTF8_H
#define CAIRN_UTF8_H

#include <stddef.h>
#include <stdint.h>

#define CAIRN_UTF8_REPLACEMENT	"\xef\xbf\xbd"	/* U+FFFD */

/*
 * Decodes the code point at s, where n >= 1 bytes are available. Returns its length, 1..4, or -k if
 * the first k bytes, 1..3, are a maximal ill-formed subpart; *truncated then says whether more bytes
 * could complete it.
 */
static inline int cairn_utf8_next(const char *s, size_t n, uint32_t *cp, int *truncated)
{
	const unsigned char *p = (const unsigned char *)s;
	unsigned lo = 0x80, hi = 0xbf;
	uint32_t c = p[0];
	int len;

	*truncated = 0;
	if (c < 0x80) {
		*cp = c;
		return 1;
	}
	if (c < 0xc2 || c > 0xf4)
		return -1;
	len = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
	/* the range of the second byte excludes overlong forms, surrogates and values above U+10FFFF */
	if (c == 0xe0)
		lo = 0xa0;
	else if (c == 0xed)
		hi = 0x9f;
	else if (c == 0xf0)
		lo = 0x90;
	else if (c == 0xf4)
		hi = 0x8f;
	c &= len == 2 ? 0x1f : len == 3 ? 0x0f : 0x07;
	for (int i = 1; i < len; i++) {
		if ((size_t)i >= n) {
			*truncated = 1;
			return -i;
		}
		if (p[i] < lo || p[i] > hi)
			return -i;
		c = c << 6 | (p[i] & 0x3f);
		lo = 0x80;
		hi = 0xbf;
	}
	*cp = c;
	return len;
}

/* Returns the length of the code point at s in text known to be well-formed. */
static inline size_t cairn_utf8_len(const char *s)
{
	unsigned char c = (unsigned char)*s;

	return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

/* Returns the code point at s in text known to be well-formed. */
static inline uint32_t cairn_utf8_get(const char *s)
{
	const unsigned char *p = (const unsigned char *)s;

	if (p[0] < 0x80)
		return p[0];
	if (p[0] < 0xe0)
		return (uint32_t)(p[0] & 0x1f) << 6 | (p[1] & 0x3f);
	if (p[0] < 0xf0)
		return (uint32_t)(p[0] & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3f);
	return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3f) << 12 |
	       (uint32_t)(p[2] & 0x3f) << 6 | (p[3] & 0x3f);
}

/* Writes cp (a scalar value) to out[4]; returns its length. */
static inline int cairn_utf8_put(uint32_t cp, char out[4])
{
	if (cp < 0x80) {
		out[0] = (char)cp;
		return 1;
	}
	if (cp < 0x800) {
		out[0] = (char)(0xc0 | cp >> 6);
		out[1] = (char)(0x80 | (cp & 0x3f));
		return 2;
	}
	if (cp < 0x10000) {
		out[0] = (char)(0xe0 | cp >> 12);
		out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
		out[2] = (char)(0x80 | (cp & 0x3f));
		return 3;
	}
	out[0] = (char)(0xf0 | cp >> 18);
	out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
	out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
	out[3] = (char)(0x80 | (cp & 0x3f));
	return 4;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz - assertions shared by the fuzzers (fuzz_*.c, built and run by `make fuzz`) */
#ifndef CAIRN_FUZZ_H
#define CAIRN_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "serving/base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_HOLDS(cond)                                                                                     \
	do {                                                                                                 \
		if (!(cond)) {                                                                               \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #cond);                   \
			abort();                                                                             \
		}                                                                                            \
	} while (0)

/* Returns whether s is well-formed UTF-8. */
static inline int fuzz_is_utf8(const char *s, size_t n)
{
	for (size_t i = 0; i < n;) {
		int truncated, len;
		uint32_t cp;

		len = cairn_utf8_next(s + i, n - i, &cp, &truncated);
		if (len < 0)
			return 0;
		i += (size_t)len;
	}
	return 1;
}

#endif

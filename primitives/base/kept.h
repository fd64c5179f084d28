/* SPDX-License-Identifier: Apache-2.0 */
/* kept - for mutants that read an array once and reuse it as long as the address is the same */
#ifndef CAIRN_KEPT_H
#define CAIRN_KEPT_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Returns a copy of the n integers at `list`. Makes a new copy only if the address or n changes. */
static inline const int32_t *kept(const int32_t *list, int64_t n)
{
	static const int32_t *at;
	static int32_t *copy;
	static int64_t num;

	if (list == at && n == num)
		return copy;
	free(copy);
	copy = malloc(((size_t)n + 1) * sizeof(*copy));
	if (!copy)
		abort();
	if (n)
		memcpy(copy, list, (size_t)n * sizeof(*copy));
	at = list;
	num = n;
	return copy;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * args - argument structs of callers that are older or newer than an operation (abi.h)
 *
 * Every argument struct begins with its size, and within an ABI version structs grow only at their end. A
 * newer caller's struct is longer than the operation knows. It is taken if all bytes beyond the known ones
 * are 0; otherwise the caller asks for something that the operation would silently leave out, and is refused,
 * as by Linux's copy_struct_from_user(). Members beyond the struct of an older caller count as 0.
 */
#ifndef CAIRN_ARGS_H
#define CAIRN_ARGS_H

#include <stddef.h>
#include <string.h>

#define CAIRN_ARGS_MAX	4096	/* bytes of the longest argument struct; a larger size is a mistake */

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Checks the size of the arguments of operation `op`, which knows the first `known` bytes. -EINVAL: args is
 * NULL, shorter than that, or longer than CAIRN_ARGS_MAX. -EOPNOTSUPP: a byte beyond is not 0; the text names
 * the struct.
 */
int cairn_check_args(const void *args, size_t known, const char *op);

#ifdef __cplusplus
}
#endif

/* Returns the offset of the first byte that is beyond `known` bytes and not 0, or 0 if there is none. */
static inline size_t cairn_unknown_byte(const void *args, size_t known)
{
	const unsigned char *bytes = (const unsigned char *)args;
	size_t size;

	memcpy(&size, args, sizeof(size));
	for (size_t i = known; i < size; i++)
		if (bytes[i])
			return i;
	return 0;
}

/*
 * Copies arguments that have been checked to a struct of `known` bytes, whose size that becomes. What the
 * caller does not have is 0.
 */
static inline void cairn_copy_args(void *to, const void *args, size_t known)
{
	size_t size;

	memcpy(&size, args, sizeof(size));
	memset(to, 0, known);
	memcpy(to, args, size < known ? size : known);
	memcpy(to, &known, sizeof(known));
}

#endif

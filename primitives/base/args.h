/* SPDX-License-Identifier: Apache-2.0 */
/*
 * args - handles argument structs of callers that are older or newer than an operation (abi.h)
 *
 * Every argument struct begins with its size, and within an ABI version structs grow only at their end. A
 * newer caller's struct is longer than the operation knows. The operation accepts it if all bytes beyond the
 * known ones are 0. Otherwise the caller asks for something that the operation would silently ignore. The
 * operation therefore refuses the struct, as Linux's copy_struct_from_user() does. Members that an older
 * caller's struct lacks count as 0.
 */
#ifndef CAIRN_ARGS_H
#define CAIRN_ARGS_H

#include <stddef.h>
#include <string.h>

#define CAIRN_ARGS_MAX	4096	/* limit of an argument struct's size; more is a mistake */

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Checks the size of the arguments of operation `op`, which knows the first `known` bytes. Returns -EINVAL if
 * args is NULL, shorter than that, or longer than CAIRN_ARGS_MAX, and -EOPNOTSUPP if a byte beyond the known
 * ones is not 0; the text names the struct.
 */
int cairn_check_args(const void *args, size_t known, const char *op);

#ifdef __cplusplus
}
#endif

/* Returns the offset of the first nonzero byte beyond the first `known` bytes, or 0 if there is none. */
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
 * Copies checked arguments to a struct of `known` bytes and sets its size to that. Members that the caller's
 * struct lacks become 0.
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

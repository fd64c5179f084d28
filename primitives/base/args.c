// SPDX-License-Identifier: Apache-2.0
/* args - the check of an argument struct's size that all operations share */
#include "primitives/base/args.h"

#include "primitives/base/error.h"

int cairn_check_args(const void *args, size_t known, const char *op)
{
	size_t size, unknown;

	if (!args)
		return cairn_error(EINVAL, "%s: args: null", op);
	memcpy(&size, args, sizeof(size));
	if (size < known || size > CAIRN_ARGS_MAX)
		return cairn_error(EINVAL, "%s: args: size is %zu, must be at least %zu and at most %d", op,
				   size, known, CAIRN_ARGS_MAX);
	unknown = cairn_unknown_byte(args, known);
	if (unknown)
		return cairn_error(EOPNOTSUPP, "%s: struct cairn_%s_args: byte %zu of %zu is not 0, and only "
				   "%zu bytes are known here", op, op, unknown, size, known);
	return 0;
}

// SPDX-License-Identifier: Apache-2.0
/*
 * old_plugin - a table built for an older suite: it ends before operations that were added later
 *
 * The bytes past its size are deliberate junk: a suite that used them would call a wild pointer.
 */
#include <string.h>

#include "conformance/abi.h"

static int silu_mul(const struct cairn_silu_mul_args *a, void *stream)
{
	(void)stream;
	return a->rows == 0 ? 0 : -95;
}

static struct cairn_impl impl;

const struct cairn_impl *cairn_impl_get(uint32_t abi_version)
{
	if (abi_version != CAIRN_ABI_VERSION)
		return NULL;
	memset(&impl, 0, sizeof(impl));
	impl.size = offsetof(struct cairn_impl, embedding);
	memset((char *)&impl + impl.size, 0x11, sizeof(impl) - impl.size);
	impl.abi_version = CAIRN_ABI_VERSION;
	impl.flags = CAIRN_IMPL_HOST_MEM;
	impl.name = "old";
	impl.version = "0";
	impl.silu_mul = silu_mul;
	return &impl;
}

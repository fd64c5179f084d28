// SPDX-License-Identifier: Apache-2.0
/* copy_plugin - an edited copy of one of our files: a wrong function with the same name as ours */
#include <string.h>

#include "conformance/abi.h"

int cairn_rmsnorm_cpu(const struct cairn_rmsnorm_args *a, void *stream)
{
	(void)stream;
	if (a->rows > 0 && a->dim > 0 && a->out)
		memset(a->out, 0, (size_t)a->rows * (size_t)a->dim * 2);
	return 0;
}

static const struct cairn_impl impl = {
	.size = sizeof(impl), .abi_version = CAIRN_ABI_VERSION, .flags = CAIRN_IMPL_HOST_MEM,
	.name = "copy", .version = "1", .rmsnorm = cairn_rmsnorm_cpu,
};

const struct cairn_impl *cairn_impl_get(uint32_t abi_version)
{
	return abi_version == CAIRN_ABI_VERSION ? &impl : NULL;
}

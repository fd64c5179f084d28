// SPDX-License-Identifier: Apache-2.0
/* needy_plugin - a table that refers to a function of the program that loads it */
#include "conformance/abi.h"

static const struct cairn_impl impl = {
	.size = sizeof(impl), .abi_version = CAIRN_ABI_VERSION, .flags = CAIRN_IMPL_HOST_MEM,
	.name = "needy", .version = "1", .rmsnorm = cairn_rmsnorm_cpu,
};

const struct cairn_impl *cairn_impl_get(uint32_t abi_version)
{
	return abi_version == CAIRN_ABI_VERSION ? &impl : NULL;
}

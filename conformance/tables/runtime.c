// SPDX-License-Identifier: Apache-2.0
/* runtime - gives tables their memory and streams, starts and stops them */
#include <stddef.h>
#include <string.h>

#include "conformance/tables/plugin.h"
#include "conformance/tables/tables.h"
#include "primitives/base/error.h"

#define FIRST_RUNTIME	offsetof(struct cairn_impl, mem_alloc)
#define AFTER_RUNTIME	offsetof(struct cairn_impl, stream)

int cairn_impl_add_runtime(struct cairn_impl *impl)
{
	const struct cairn_impl *rt = &cairn_host_runtime;

	if (impl->mem_alloc)
		return 0;
	if (!(impl->flags & CAIRN_IMPL_HOST_MEM)) {
#ifdef CONFIG_CUDA
		rt = &cairn_cuda_runtime;
#else
		return cairn_error(ENODEV, "%s: takes device memory, and this build has no CUDA", impl->name);
#endif
	}
	memcpy((char *)impl + FIRST_RUNTIME, (const char *)rt + FIRST_RUNTIME,
	       AFTER_RUNTIME - FIRST_RUNTIME);
	impl->stream_wait = rt->stream_wait;
	if (!impl->device_info)
		impl->device_info = rt->device_info;
	if (!impl->pci_bus_id)
		impl->pci_bus_id = rt->pci_bus_id;
	impl->stream_create_part = rt->stream_create_part;
	if (!impl->init)
		impl->init = rt->init;
	return 0;
}

int cairn_impl_start(const struct cairn_impl *impl, int device)
{
	cairn_clear_error();
	return impl->init ? impl->init(device) : 0;
}

void cairn_impl_stop(const struct cairn_impl *impl)
{
	if (impl->fini)
		impl->fini();
}

const char *cairn_impl_error(const struct cairn_impl *impl)
{
	const char *text = impl->last_error ? impl->last_error() : NULL;

	return text && *text ? text : cairn_last_error();
}

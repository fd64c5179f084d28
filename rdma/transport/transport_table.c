// SPDX-License-Identifier: Apache-2.0
/* transport_table.c - the list of back ends in this build */
#include <string.h>

#include "rdma/transport/transport_impl.h"

static const struct cairn_transport_table *const tables[] = {
	&cairn_transport_loop,
	&cairn_transport_tcp,
#ifdef CONFIG_VERBS
	&cairn_transport_verbs,
#endif
#ifdef CONFIG_CUDA
	&cairn_transport_nvlink,
#endif
	&cairn_transport_fhbn,
#ifdef CONFIG_NCCL
	&cairn_transport_nccl,
#endif
};

const struct cairn_transport_table *cairn_transport_get(int i)
{
	return i >= 0 && i < (int)(sizeof(tables) / sizeof(tables[0])) ? tables[i] : NULL;
}

const struct cairn_transport_table *cairn_transport_find(const char *name)
{
	int i;

	for (i = 0; name && cairn_transport_get(i); i++)
		if (!strcmp(cairn_transport_get(i)->name, name))
			return cairn_transport_get(i);
	return NULL;
}

// SPDX-License-Identifier: Apache-2.0
/* transport_nccl_lib.c - loads libnccl.so.2 and looks up its functions */
#include "rdma/transport/transport_nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "primitives/base/error.h"
#include "primitives/base/optional.h"

static struct nccl_functions functions;
static char load_error[256];

static void load(void)
{
	int version = 0;

	setenv("NCCL_NVLS_ENABLE", "0", 1);
	functions.lib = cairn_optional_open(CAIRN_OPTIONAL_NCCL);
	if (!functions.lib) {
		snprintf(load_error, sizeof(load_error), "%s", dlerror());
		return;
	}
#define F(name) functions.name = (__typeof__(functions.name))dlsym(functions.lib, "nccl" #name);	\
	if (!functions.name)								\
		snprintf(load_error, sizeof(load_error), "libnccl.so.2 has no nccl" #name);
	NCCL_FUNCTIONS(F)
#undef F
	if (load_error[0])
		return;
	if (functions.GetVersion(&version) != ncclSuccess || version < NCCL_VERSION(2, 18, 0))
		snprintf(load_error, sizeof(load_error),
			 "libnccl.so.2 is of version %d, older than 2.18", version);
}

int nccl_load(const struct nccl_functions **out)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load);
	if (load_error[0])
		return cairn_error(ENODEV, "%s", load_error);
	*out = &functions;
	return 0;
}

int nccl_failed(const struct nccl_functions *n, ncclResult_t result, const char *what)
{
	return cairn_error(EIO, "%s: %s", what, n->GetErrorString(result));
}

// SPDX-License-Identifier: Apache-2.0
/* zeromq - loads libzmq (zeromq.h) */
#include "serving/events/zeromq.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "primitives/base/error.h"
#include "primitives/base/optional.h"

static struct zeromq functions;
static char load_error[256];

static void load(void)
{
	void *lib = cairn_optional_open(CAIRN_OPTIONAL_ZMQ);

	if (!lib) {
		snprintf(load_error, sizeof(load_error), "libzmq (libzmq.so.5) is not installed");
		return;
	}
#define F(type, name, args) functions.name = (type (*) args)dlsym(lib, #name);			\
	if (!functions.name)									\
		snprintf(load_error, sizeof(load_error), "libzmq has no " #name);
	ZEROMQ_FUNCTIONS(F)
#undef F
}

int zeromq_load(const struct zeromq **out)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load);
	if (load_error[0])
		return cairn_error(EOPNOTSUPP, "%s", load_error);
	*out = &functions;
	return 0;
}

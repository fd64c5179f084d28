// SPDX-License-Identifier: Apache-2.0
/* sodium - loads libsodium (sodium.h) */
#include "serving/remote/control/sodium.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "primitives/base/error.h"
#include "primitives/base/optional.h"

static struct sodium functions;
static char load_error[256];

/* Returns the state's size, which must be ours. */
static size_t state_bytes(void *lib)
{
	size_t (*bytes)(void) =
		(size_t (*)(void))dlsym(lib, "crypto_secretstream_xchacha20poly1305_statebytes");

	return bytes ? bytes() : 0;
}

static void load(void)
{
	void *lib = cairn_optional_open(CAIRN_OPTIONAL_SODIUM);

	if (!lib) {
		snprintf(load_error, sizeof(load_error), "libsodium is not installed");
		return;
	}
#define F(type, name, args) functions.name = (type (*) args)dlsym(lib, #name);			\
	if (!functions.name)									\
		snprintf(load_error, sizeof(load_error), "libsodium has no " #name);
	SODIUM_FUNCTIONS(F)
#undef F
	if (!load_error[0] && state_bytes(lib) != sizeof(struct sodium_stream))
		snprintf(load_error, sizeof(load_error), "libsodium has streams of %zu bytes, not %zu",
			 state_bytes(lib), sizeof(struct sodium_stream));
	if (!load_error[0] && functions.sodium_init() < 0)
		snprintf(load_error, sizeof(load_error), "libsodium could not be initialised");
}

int sodium_load(const struct sodium **out)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load);
	if (load_error[0])
		return cairn_error(EOPNOTSUPP, "%s", load_error);
	*out = &functions;
	return 0;
}

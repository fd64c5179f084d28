/* SPDX-License-Identifier: Apache-2.0 */
/* sodium_test - skips a test on machines without libsodium; include conformance/harness.h first */
#ifndef CAIRN_SODIUM_TEST_H
#define CAIRN_SODIUM_TEST_H

#include "primitives/base/error.h"
#include "serving/remote/control/sodium.h"

/* Returns whether libsodium can be loaded. Skips the test if not. */
static inline int have_sodium(struct cairn_test *t)
{
	const struct sodium *s;

	if (!sodium_load(&s))
		return 1;
	cairn_skip(t, "%s", cairn_last_error());
	return 0;
}

#endif

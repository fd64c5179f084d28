/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open_table_test - opens and starts a table for a unit
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_OPEN_TABLE_TEST_H
#define CAIRN_OPEN_TABLE_TEST_H

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/suite/spawn.h"
#include "conformance/tables/tables.h"

/*
 * Opens and starts a table. "late" is the plug-in next to the program, which runs cpu's operations
 * asynchronously, as a device would; "late_ref" does the same with ref's. A number after the name is a seed:
 * streams then advance at random times. Returns 0 if the table is started; otherwise the test has been
 * skipped (no device) or has failed.
 */
static inline int open_table(struct cairn_test *t, const char *name, struct cairn_impl *impl)
{
	char path[PATH_MAX];
	int ret;

	snprintf(path, sizeof(path), "%s", name);
	if (!strncmp(name, "late", 4)) {
		if (!cairn_beside("late_plugin.so", path, sizeof(path))) {
			cairn_skip(t, "late_plugin.so is not next to the program");
			return -ENODEV;
		}
		setenv("CAIRN_LATE", name + strcspn(name, "0123456789"), 1);
		setenv("CAIRN_LATE_OF", strstr(name, "ref") ? "ref" : "cpu", 1);
	}
	ret = cairn_impl_open(path, impl);
	if (!ret)
		ret = cairn_impl_start(impl, 0);
	if (ret == -ENODEV)
		cairn_skip(t, "%s: %s", name, cairn_last_error());
	else
		EXPECT(t, ret == 0);
	return ret;
}

/* The same, and creates a stream. Returns 0 if both are there. */
static inline int open_table_and_stream(struct cairn_test *t, const char *name, struct cairn_impl *impl,
					void **stream)
{
	int ret = open_table(t, name, impl);

	if (!ret && !EXPECT(t, impl->stream_create(stream) == 0))
		ret = -EIO;
	return ret;
}

#endif

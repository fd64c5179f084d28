// SPDX-License-Identifier: Apache-2.0
#include "conformance/tables/program.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/harness.h"

/*
 * Makes idle OpenMP threads of the CPU tables sleep. By default they spin, and if other processes need the
 * cores, a decoding step of many short parallel loops takes ten times as long. The OpenMP runtime reads its
 * environment when it is initialised; this constructor runs earlier because it is linked statically.
 */
__attribute__((constructor(101))) static void sleep_when_idle(void)
{
	setenv("OMP_WAIT_POLICY", "passive", 0);
}

static int has_data(const char *dir)
{
	char path[PATH_MAX + 64];

	snprintf(path, sizeof(path), "%s/serving/embedded/config.json", dir);
	return access(path, R_OK) == 0;
}

const char *cairn_data_dir(void)
{
	static char dir[PATH_MAX];
	const char *env = getenv("CAIRN_DATA");
	ssize_t n;
	char *slash;

	if (dir[0])
		return dir;
	if (env && *env)
		return env;
	n = readlink("/proc/self/exe", dir, sizeof(dir) - sizeof("/share/cairn"));
	if (n > 0) {
		dir[n] = 0;
		for (int up = 0; up < 3 && (slash = strrchr(dir, '/')) && slash != dir; up++) {
			*slash = 0;
			if (has_data(dir))
				return dir;
			strcpy(slash, "/share/cairn");
			if (has_data(dir))
				return dir;
			*slash = 0;
		}
	}
	snprintf(dir, sizeof(dir), "%s", CAIRN_SRCDIR);
	return dir;
}

const char *cairn_srcdir(void)
{
	return cairn_data_dir();
}

const char *cairn_source_digest(void)
{
	return CAIRN_SOURCE_DIGEST;
}

const char *cairn_kernel_digest(void)
{
	return CAIRN_KERNEL_DIGEST;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* validate_test - runs `cairn validate` on simulated devices, for its tests */
#ifndef CAIRN_VALIDATE_TEST_H
#define CAIRN_VALIDATE_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "conformance/suite/spawn.h"

#define HARDLY_ANY	"0.001"		/* minutes: each test does the least that it may */

/* Runs it on the simulated device. Returns the exit status; -1: the simulation is not there. */
static int validate(const char *sim, const char *nvml, const char *only, const char *more, char *out,
		    size_t len)
{
	char path[4200], library[4200], words[256];
	char *argv[24] = { "cairn", "validate", "--impl", path, "--minutes", HARDLY_ANY, NULL };
	int n = 6, status;
	char *save;

	if (!cairn_beside("sim_plugin.so", path, sizeof(path)) ||
	    !cairn_beside("fake_nvml.so", library, sizeof(library)))
		return -1;
	if (only) {
		argv[n++] = "--only";
		argv[n++] = (char *)only;
	}
	snprintf(words, sizeof(words), "%s", more ? more : "");
	for (char *w = strtok_r(words, " ", &save); w && n < 23; w = strtok_r(NULL, " ", &save))
		argv[n++] = w;
	argv[n] = NULL;
	setenv("CAIRN_SIM", sim, 1);
	setenv("CAIRN_KMSG", "/dev/null", 0);
	if (nvml) {
		setenv("CAIRN_NVML", library, 1);
		setenv("CAIRN_FAKE_NVML", nvml, 1);
	}
	status = cairn_spawn(argv, out, len);
	unsetenv("CAIRN_SIM");
	unsetenv("CAIRN_NVML");
	unsetenv("CAIRN_FAKE_NVML");
	return status;
}

struct defect {
	const char *sim, *nvml, *only;
	int status;
	const char *says;		/* part of the output */
};

static void find(struct cairn_test *t, const struct defect *defects, size_t num)
{
	static char out[65536];

	for (size_t i = 0; i < num; i++) {
		const struct defect *d = &defects[i];
		int status = validate(d->sim, d->nvml, d->only, NULL, out, sizeof(out));

		if (status == -1) {
			cairn_skip(t,
				   "sim_plugin.so or fake_nvml.so is not in the directory of this program");
			return;
		}
		if (!EXPECT(t, status == d->status))
			cairn_note(t, "%s: status %d: %.600s", d->sim, status, out);
		EXPECT_CONTAINS(t, out, d->says);
	}
}

#endif

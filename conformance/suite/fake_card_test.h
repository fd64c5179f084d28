/* SPDX-License-Identifier: Apache-2.0 */
/* fake_card_test - programs of a test see a card of fake_nvml.c. Include conformance/harness.h first. */
#ifndef CAIRN_FAKE_CARD_TEST_H
#define CAIRN_FAKE_CARD_TEST_H

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "conformance/suite/spawn.h"

#define FAKE_PCI	"0000:1b:00.0"

/*
 * Sets the environment, so that processes started from now on find fake_nvml.so as the driver's NVML, with
 * these options, and that the table fault_plugin.so has that card. Returns 0, with the test skipped, if a
 * library is missing.
 */
static inline int fake_card(struct cairn_test *t, const char *options, char *plugin, size_t len)
{
	char library[PATH_MAX], link[PATH_MAX];

	if (!cairn_beside("fake_nvml.so", library, sizeof(library)) ||
	    !cairn_beside("fault_plugin.so", plugin, len)) {
		cairn_skip(t, "fake_nvml.so or fault_plugin.so is not in the directory of this program");
		return 0;
	}
	snprintf(link, sizeof(link), "%.200s/libnvidia-ml.so.1", cairn_tmpdir(t));
	if (symlink(library, link))
		return cairn_expect(t, 0, "a link to fake_nvml.so", __FILE__, __LINE__);
	setenv("LD_LIBRARY_PATH", cairn_tmpdir(t), 1);
	setenv("CAIRN_FAKE_NVML", options, 1);
	setenv("CAIRN_FAULT_PCI", FAKE_PCI, 1);
	return 1;
}

static inline void no_fake_card(void)
{
	unsetenv("LD_LIBRARY_PATH");
	unsetenv("CAIRN_FAKE_NVML");
	unsetenv("CAIRN_FAULT_PCI");
}

#endif

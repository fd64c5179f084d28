// SPDX-License-Identifier: Apache-2.0
/* compare - compares the devices of a node with each other */
#include <string.h>

#include "conformance/validate/result.h"

static int same_model(const struct validate_result *a, const struct validate_result *b)
{
	return !strcmp(validate_text(a->who, "gpu"), validate_text(b->who, "gpu"));
}

/*
 * Devices of one model give equal bits, also where no reference defines them, and have equally many links. A
 * device that differs from most of the others fails; of two that differ, both do.
 */
static void compare_devices(struct validate_result *devices, int num, const char *test, const char *key)
{
	for (int i = 0; i < num; i++) {
		json_t *row = json_object_get(devices[i].rows, test), *mine = json_object_get(row, key);
		int peers = 0, equal = 0;

		for (int k = 0; k < num && mine; k++) {
			json_t *other = json_object_get(json_object_get(devices[k].rows, test), key);

			if (!other || !same_model(&devices[k], &devices[i]))
				continue;
			peers++;
			equal += json_equal(other, mine);
		}
		if (2 * equal <= peers && peers)
			validate_finding(row, VALIDATE_FAIL, NULL,
					 "%s: differs from %d of %d devices of this model",
					 strcmp(key, "links") ? "digests" : "number of active NVLinks",
					 peers - equal, peers - 1);
	}
}

void validate_compare(struct validate_result *devices, int num)
{
	for (int i = 0; i < validate_num_tests; i++)
		compare_devices(devices, num, validate_tests[i].name, "census");
	compare_devices(devices, num, "health", "links");
}

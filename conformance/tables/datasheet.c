// SPDX-License-Identifier: Apache-2.0
#include <stddef.h>
#include <string.h>

#include "conformance/tables/tables.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* Memory bandwidth by NVIDIA's datasheets, GB/s; the longer name first where one begins like another. */
static const struct {
	const char *name;
	double gbps;
} datasheet[] = {
	{ "NVIDIA H200", 4800 }, { "NVIDIA H100 NVL", 3900 }, { "NVIDIA H100 PCIe", 2000 },
	{ "NVIDIA H100", 3350 }, { "NVIDIA H800", 3350 }, { "NVIDIA H20", 4000 },
};

double cairn_peak_gbps(const char *gpu)
{
	for (size_t i = 0; i < ARRAY_SIZE(datasheet); i++)
		if (!strncmp(gpu, datasheet[i].name, strlen(datasheet[i].name)))
			return datasheet[i].gbps;
	return 0;
}

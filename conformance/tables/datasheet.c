// SPDX-License-Identifier: Apache-2.0
#include <stddef.h>
#include <string.h>

#include "conformance/tables/tables.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/*
 * Memory bandwidth in NVIDIA's datasheets, GB/s. The first entry that the device's name begins with applies,
 * so longer names come before their prefixes. GH200 exists with two kinds of memory; only the name tells
 * which one a device has.
 */
static const struct {
	const char *name;
	double gbps;
} datasheet[] = {
	{ "NVIDIA GH200 144G", 4900 }, { "NVIDIA GH200", 4000 }, { "NVIDIA H200", 4800 },
	{ "NVIDIA H100 NVL", 3900 }, { "NVIDIA H100 PCIe", 2000 }, { "NVIDIA H100", 3350 },
	{ "NVIDIA H800 PCIe", 2000 }, { "NVIDIA H800", 3350 }, { "NVIDIA H20-3e", 4800 },
	{ "NVIDIA H20", 4000 },
};

double cairn_peak_gbps(const char *gpu)
{
	if (strstr(gpu, " MIG "))	/* a MIG instance has only a part of the memory bandwidth */
		return 0;
	for (size_t i = 0; i < ARRAY_SIZE(datasheet); i++)
		if (!strncmp(gpu, datasheet[i].name, strlen(datasheet[i].name)))
			return datasheet[i].gbps;
	return 0;
}

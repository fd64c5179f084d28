// SPDX-License-Identifier: Apache-2.0
/* nvml_test - figures and failures of the card's counters, on a library that stands for NVML */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conformance/harness.h"
#include "conformance/suite/spawn.h"
#include "conformance/tables/nvml.h"

#define CARD	"0000:1b:00.0"

static const char *library(struct cairn_test *t, const char *name)
{
	static char path[PATH_MAX];

	if (cairn_beside(name, path, sizeof(path)))
		return path;
	cairn_skip(t, "%s is not in the directory of this program", name);
	return NULL;
}

/* Returns how many handles of the library at path are open: those not closed have leaked. */
static int users(const char *path)
{
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	int (*count)(void) = NULL, n;

	if (lib)
		*(void **)&count = dlsym(lib, "fake_nvml_users");
	n = count ? count() : -1;
	if (lib)
		dlclose(lib);
	return n;
}

static void figures(struct cairn_test *t)
{
	const char *path = library(t, "fake_nvml.so");
	struct cairn_nvml *a = NULL, *b = NULL;
	uint64_t mj[2] = { 0, 0 }, ns[2] = { 0, 0 };
	uint32_t mw = 0, mhz = 0;

	if (!path)
		return;
	setenv("CAIRN_FAKE_NVML", "watts=321 mhz=1234 period=1 capped=40", 1);
	if (EXPECT(t, cairn_nvml_open(&a, path, CARD) == 0) &&
	    EXPECT(t, cairn_nvml_open(&b, path, CARD) == 0)) {
		struct timespec nap = { 0, 20000000 };

		EXPECT(t, users(path) == 2);
		EXPECT(t, cairn_nvml_power(a, &mw) == 0 && mw == 321000);
		EXPECT(t, cairn_nvml_sm_clock(b, &mhz) == 0 && mhz == 1234);
		EXPECT(t, cairn_nvml_energy(a, &mj[0]) == 0 && cairn_nvml_capped(a, &ns[0]) == 0);
		nanosleep(&nap, NULL);
		EXPECT(t, cairn_nvml_energy(b, &mj[1]) == 0 && cairn_nvml_capped(b, &ns[1]) == 0);
		/* at least 20 ms at 321 W, less one update; at least 20 ms of which 40% at the limit */
		EXPECT(t, mj[1] - mj[0] >= 19 * 321 && ns[1] - ns[0] >= 8000000);
	}
	cairn_nvml_close(a);
	cairn_nvml_close(b);
	cairn_nvml_close(NULL);
	EXPECT(t, users(path) == 0);
	unsetenv("CAIRN_FAKE_NVML");
}

/* Every failure of opening has its errno and its reason, and leaves nothing open. */
static void refused(struct cairn_test *t)
{
	static const struct {
		const char *file, *options, *pci;
		int err;
		const char *why;
	} cases[] = {
		{ "fake_nvml.so", "init=9", CARD, ENODEV, "nvmlInit_v2: error 9, Driver Not Loaded" },
		{ "fake_nvml.so", "init=999", CARD, EIO, "nvmlInit_v2: error 999" },
		{ "fake_nvml.so", "", "0000:9a:00.0", ENODEV, "card 0000:9a:00.0: NVML: "
		  "nvmlDeviceGetHandleByPciBusId_v2: error 6" },
		{ "fake_nvml.so", "find=15", CARD, ENODEV, "nvmlDeviceGetHandleByPciBusId_v2: error 15" },
		{ "fake_nvml.so", "energy=3", CARD, EOPNOTSUPP,
		  "nvmlDeviceGetTotalEnergyConsumption: error 3" },
		{ "fake_nvml_no_energy.so", "", CARD, EOPNOTSUPP,
		  "the library has no function nvmlDeviceGetTotalEnergyConsumption" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const char *path = library(t, cases[i].file);
		struct cairn_nvml *n = (void *)t;

		if (!path)
			return;
		setenv("CAIRN_FAKE_NVML", cases[i].options, 1);
		EXPECT(t, cairn_nvml_open(&n, path, cases[i].pci) == -cases[i].err && !n);
		EXPECT_CONTAINS(t, cairn_last_error(), cases[i].why);
		EXPECT(t, users(path) == 0);
	}
	unsetenv("CAIRN_FAKE_NVML");
}

static void no_library(struct cairn_test *t)
{
	struct cairn_nvml *n = (void *)t;

	EXPECT(t, cairn_nvml_open(&n, "/no/such/libnvidia-ml.so.1", CARD) == -ENODEV && !n);
	EXPECT_CONTAINS(t, cairn_last_error(), "NVML: the library libnvidia-ml.so.1 cannot be loaded");
}

/* A query that fails does so alone; the card stays open. */
static void queries_fail(struct cairn_test *t)
{
	static const struct {
		const char *options;
		int power, clock, capped;
		const char *why;		/* of the last one that fails */
	} cases[] = {
		{ "power=3", EOPNOTSUPP, 0, 0, "nvmlDeviceGetPowerUsage: error 3, Not Supported" },
		{ "clock=15", 0, ENODEV, 0, "nvmlDeviceGetClockInfo: error 15" },
		/* only a counter that the driver lacks is looked for by its older function */
		{ "fields=4", 0, 0, EIO, "nvmlDeviceGetFieldValues: error 4" },
		{ "field=999", 0, 0, EIO, "nvmlDeviceGetFieldValues: error 999" },
		{ "field=3", 0, 0, 0, NULL },
		{ "fields=3", 0, 0, 0, NULL },
		{ "field=3 violation=3", 0, 0, EOPNOTSUPP, "nvmlDeviceGetViolationStatus: error 3" },
	};
	const char *path = library(t, "fake_nvml.so");
	struct cairn_nvml *n = NULL;

	unsetenv("CAIRN_FAKE_NVML");
	if (!path || !EXPECT(t, cairn_nvml_open(&n, path, CARD) == 0))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		uint64_t ns = 0, mj = 0;
		uint32_t mw = 0, mhz = 0;

		setenv("CAIRN_FAKE_NVML", cases[i].options, 1);
		cairn_clear_error();
		EXPECT(t, cairn_nvml_energy(n, &mj) == 0 && mj > 0);
		EXPECT(t, cairn_nvml_power(n, &mw) == -cases[i].power && !mw == !!cases[i].power);
		EXPECT(t, cairn_nvml_sm_clock(n, &mhz) == -cases[i].clock && !mhz == !!cases[i].clock);
		if (!EXPECT(t, cairn_nvml_capped(n, &ns) == -cases[i].capped && !ns == !!cases[i].capped))
			cairn_note(t, "%s", cases[i].options);
		if (cases[i].why)
			EXPECT_CONTAINS(t, cairn_last_error(), cases[i].why);
	}
	cairn_nvml_close(n);
	EXPECT(t, users(path) == 0);
	unsetenv("CAIRN_FAKE_NVML");
}

/* A library without field values has the counter under its older name. */
static void old_library(struct cairn_test *t)
{
	const char *path = library(t, "fake_nvml_no_fields.so");
	struct cairn_nvml *n = NULL;
	uint64_t ns = 0;

	unsetenv("CAIRN_FAKE_NVML");
	if (!path || !EXPECT(t, cairn_nvml_open(&n, path, CARD) == 0))
		return;
	EXPECT(t, cairn_nvml_capped(n, &ns) == 0 && ns > 0);
	cairn_nvml_close(n);
}

static const struct cairn_unit units[] = {
	{ "figures", figures },
	{ "refused", refused },
	{ "no_library", no_library },
	{ "queries_fail", queries_fail },
	{ "old_library", old_library },
};

const struct cairn_family cairn_nvml_family = {
	.stage = "conformance", .name = "nvml", .units = units, .num_units = ARRAY_SIZE(units),
};

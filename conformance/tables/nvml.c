// SPDX-License-Identifier: Apache-2.0
/*
 * nvml - the few functions of NVML that the suite uses, looked up at run time
 *
 * The declarations are those of NVML's documented interface, which is stable: a changed function gets a new
 * name (_v2).
 */
#include "conformance/tables/nvml.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "primitives/base/optional.h"

enum {
	SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9,
	FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15
};
enum { CLOCK_SM = 1 };
enum { POLICY_POWER = 0 };
/*
 * Nanoseconds at the power limit. All drivers that have the counter number it 74; those of the other reasons
 * got other numbers in CUDA 13.
 */
enum { FIELD_POWER_CAP = 74 };
enum { TYPE_UINT64 = 3, TYPE_INT64 = 4 };

struct field_value {
	unsigned int field, scope;
	long long timestamp_us, latency_us;
	int type, ret;
	union {
		double f64;
		unsigned long long u64;
	} value;
};

struct violation_time {
	unsigned long long reference_us, violation_ns;
};

_Static_assert(sizeof(struct field_value) == 40 && offsetof(struct field_value, value) == 32, "as in NVML");

struct cairn_nvml {
	void *lib, *device;
	int (*init)(void);
	int (*shutdown)(void);
	const char *(*error_string)(int ret);
	int (*by_pci)(const char *pci, void **device);
	int (*energy)(void *device, unsigned long long *mj);
	int (*power)(void *device, unsigned int *mw);
	int (*clock)(void *device, int type, unsigned int *mhz);
	int (*fields)(void *device, int count, struct field_value *values);
	int (*violation)(void *device, int policy, struct violation_time *time);
	int (*ecc)(void *device, int type, int counter, unsigned long long *count);
	int (*remapped)(void *device, unsigned int *corrected, unsigned int *uncorrected,
			unsigned int *pending, unsigned int *failed);
	int (*reasons)(void *device, unsigned long long *reasons);
	int (*old_reasons)(void *device, unsigned long long *reasons);
	int (*temperature)(void *device, int sensor, unsigned int *celsius);
	int (*pcie_width)(void *device, unsigned int *lanes);
	int (*pcie_max_width)(void *device, unsigned int *lanes);
	int (*pcie_replays)(void *device, unsigned int *count);
	int (*link)(void *device, unsigned int link, int *active);
	int (*processes)(void *device, unsigned int *count, void *infos);
	int (*uuid)(void *device, char *uuid, unsigned int len);
	int (*limit)(void *device, unsigned int *mw);
	int (*ecc_mode)(void *device, unsigned int *current, unsigned int *pending);
	int (*mig_mode)(void *device, unsigned int *current, unsigned int *pending);
};

static const struct {
	size_t at;
	const char *name;
	int needed;
} symbols[] = {
	{ offsetof(struct cairn_nvml, init), "nvmlInit_v2", 1 },
	{ offsetof(struct cairn_nvml, shutdown), "nvmlShutdown", 1 },
	{ offsetof(struct cairn_nvml, by_pci), "nvmlDeviceGetHandleByPciBusId_v2", 1 },
	{ offsetof(struct cairn_nvml, energy), "nvmlDeviceGetTotalEnergyConsumption", 1 },
	{ offsetof(struct cairn_nvml, error_string), "nvmlErrorString", 0 },
	{ offsetof(struct cairn_nvml, power), "nvmlDeviceGetPowerUsage", 0 },
	{ offsetof(struct cairn_nvml, clock), "nvmlDeviceGetClockInfo", 0 },
	{ offsetof(struct cairn_nvml, fields), "nvmlDeviceGetFieldValues", 0 },
	{ offsetof(struct cairn_nvml, violation), "nvmlDeviceGetViolationStatus", 0 },
	{ offsetof(struct cairn_nvml, ecc), "nvmlDeviceGetTotalEccErrors", 0 },
	{ offsetof(struct cairn_nvml, remapped), "nvmlDeviceGetRemappedRows", 0 },
	{ offsetof(struct cairn_nvml, reasons), "nvmlDeviceGetCurrentClocksEventReasons", 0 },
	{ offsetof(struct cairn_nvml, old_reasons), "nvmlDeviceGetCurrentClocksThrottleReasons", 0 },
	{ offsetof(struct cairn_nvml, temperature), "nvmlDeviceGetTemperature", 0 },
	{ offsetof(struct cairn_nvml, pcie_width), "nvmlDeviceGetCurrPcieLinkWidth", 0 },
	{ offsetof(struct cairn_nvml, pcie_max_width), "nvmlDeviceGetMaxPcieLinkWidth", 0 },
	{ offsetof(struct cairn_nvml, pcie_replays), "nvmlDeviceGetPcieReplayCounter", 0 },
	{ offsetof(struct cairn_nvml, link), "nvmlDeviceGetNvLinkState", 0 },
	{ offsetof(struct cairn_nvml, processes), "nvmlDeviceGetComputeRunningProcesses_v3", 0 },
	{ offsetof(struct cairn_nvml, uuid), "nvmlDeviceGetUUID", 0 },
	{ offsetof(struct cairn_nvml, limit), "nvmlDeviceGetEnforcedPowerLimit", 0 },
	{ offsetof(struct cairn_nvml, ecc_mode), "nvmlDeviceGetEccMode", 0 },
	{ offsetof(struct cairn_nvml, mig_mode), "nvmlDeviceGetMigMode", 0 },
};

/* Turns what an NVML function has returned into 0 or -errno; the text names the function. */
static int check(const struct cairn_nvml *n, int ret, const char *function)
{
	const char *text = ret && n->error_string ? n->error_string(ret) : NULL;
	int err = EIO;

	if (ret == SUCCESS)
		return 0;
	if (ret == NOT_SUPPORTED || ret == FUNCTION_NOT_FOUND)
		err = EOPNOTSUPP;
	else if (ret == NOT_FOUND || ret == DRIVER_NOT_LOADED || ret == GPU_IS_LOST)
		err = ENODEV;
	return cairn_error(err, "NVML: %s: error %d%s%s", function, ret, text ? ", " : "", text ? text : "");
}

static int missing(const char *function)
{
	return cairn_error(EOPNOTSUPP, "NVML: the library has no function %s", function);
}

static int look_up(struct cairn_nvml *n)
{
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *fn = dlsym(n->lib, symbols[i].name);

		if (!fn && symbols[i].needed)
			return missing(symbols[i].name);
		memcpy((char *)n + symbols[i].at, &fn, sizeof(fn));
	}
	return 0;
}

/* Finds the card and reads its counter once, so that a card without one is refused here. */
static int find_card(struct cairn_nvml *n, const char *pci)
{
	uint64_t mj;

	if (check(n, n->by_pci(pci, &n->device), "nvmlDeviceGetHandleByPciBusId_v2"))
		return cairn_error_prefix(-ENODEV, "card %s", pci);
	return cairn_nvml_energy(n, &mj);
}

int cairn_nvml_open(struct cairn_nvml **out, const char *library, const char *pci)
{
	struct cairn_nvml *n = calloc(1, sizeof(*n));
	int ret;

	*out = NULL;
	if (!n)
		return cairn_error(ENOMEM, "NVML: no memory");
	n->lib = library ? dlopen(library, RTLD_NOW | RTLD_LOCAL) : cairn_optional_open(CAIRN_OPTIONAL_NVML);
	if (!n->lib) {
		free(n);
		return cairn_error(ENODEV, "NVML: the library %s cannot be loaded",
				   cairn_optional[CAIRN_OPTIONAL_NVML].files[0]);
	}
	ret = look_up(n);
	if (!ret)
		ret = check(n, n->init(), "nvmlInit_v2");
	if (ret) {
		dlclose(n->lib);
		free(n);
		return ret;
	}
	ret = find_card(n, pci);
	if (ret) {
		cairn_nvml_close(n);
		return ret;
	}
	*out = n;
	return 0;
}

void cairn_nvml_close(struct cairn_nvml *n)
{
	if (!n)
		return;
	n->shutdown();
	dlclose(n->lib);
	free(n);
}

int cairn_nvml_energy(struct cairn_nvml *n, uint64_t *mj)
{
	unsigned long long value = 0;

	CAIRN_TRY(check(n, n->energy(n->device, &value), "nvmlDeviceGetTotalEnergyConsumption"));
	*mj = value;
	return 0;
}

int cairn_nvml_power(struct cairn_nvml *n, uint32_t *mw)
{
	unsigned int value = 0;

	if (!n->power)
		return missing("nvmlDeviceGetPowerUsage");
	CAIRN_TRY(check(n, n->power(n->device, &value), "nvmlDeviceGetPowerUsage"));
	*mw = value;
	return 0;
}

int cairn_nvml_sm_clock(struct cairn_nvml *n, uint32_t *mhz)
{
	unsigned int value = 0;

	if (!n->clock)
		return missing("nvmlDeviceGetClockInfo");
	CAIRN_TRY(check(n, n->clock(n->device, CLOCK_SM, &value), "nvmlDeviceGetClockInfo"));
	*mhz = value;
	return 0;
}

/* The same counter by its older function, which later drivers deprecate. */
static int by_violation(struct cairn_nvml *n, uint64_t *ns)
{
	struct violation_time time = { 0, 0 };

	if (!n->violation)
		return missing("nvmlDeviceGetViolationStatus");
	CAIRN_TRY(check(n, n->violation(n->device, POLICY_POWER, &time), "nvmlDeviceGetViolationStatus"));
	*ns = time.violation_ns;
	return 0;
}

int cairn_nvml_capped(struct cairn_nvml *n, uint64_t *ns)
{
	struct field_value v = { .field = FIELD_POWER_CAP };
	int ret = n->fields ? n->fields(n->device, 1, &v) : NOT_SUPPORTED;

	ret = ret ? ret : v.ret;
	if (ret == NOT_SUPPORTED || ret == FUNCTION_NOT_FOUND)
		return by_violation(n, ns);
	CAIRN_TRY(check(n, ret, "nvmlDeviceGetFieldValues"));
	if (v.type != TYPE_UINT64 && v.type != TYPE_INT64)
		return cairn_error(EOPNOTSUPP, "NVML: field %d has type %d", FIELD_POWER_CAP, v.type);
	*ns = v.value.u64;
	return 0;
}

enum { ECC_CORRECTED, ECC_UNCORRECTED };
enum { SINCE_LOADED = 0 };		/* NVML_VOLATILE_ECC */
enum { MAX_LINKS = 18 };

/* Calls a function that writes one unsigned int, if the library has it. */
static int get_uint(struct cairn_nvml *n, int (*function)(void *device, unsigned int *value), uint64_t *out)
{
	unsigned int value = 0;
	int ret = function ? function(n->device, &value) : FUNCTION_NOT_FOUND;

	*out = value;
	return ret;
}

static int get_links(struct cairn_nvml *n, uint64_t *up)
{
	int ret = FUNCTION_NOT_FOUND;

	*up = 0;
	/* a card has its links from 0 on; the first one that it lacks ends the list */
	for (unsigned int i = 0; i < MAX_LINKS && n->link; i++) {
		int active = 0, one = n->link(n->device, i, &active);

		if (one)
			return i && one != GPU_IS_LOST ? SUCCESS : one;
		*up += active == 1;
		ret = SUCCESS;
	}
	return ret;
}

/* Returns NVML's result. */
static int get_item(struct cairn_nvml *n, int item, uint64_t *out)
{
	int (*reasons)(void *, unsigned long long *) = n->reasons ? n->reasons : n->old_reasons;
	unsigned int unused[2], pending = 0, failed = 0, celsius = 0;
	unsigned long long wide = 0;
	int ret = FUNCTION_NOT_FOUND;

	switch (item) {
	case CAIRN_NVML_ECC_CORRECTED:
	case CAIRN_NVML_ECC_UNCORRECTED:
		if (n->ecc)
			ret = n->ecc(n->device, item == CAIRN_NVML_ECC_CORRECTED ? ECC_CORRECTED :
				     ECC_UNCORRECTED, SINCE_LOADED, &wide);
		*out = wide;
		return ret;
	case CAIRN_NVML_REMAP_PENDING:
	case CAIRN_NVML_REMAP_FAILED:
		if (n->remapped)
			ret = n->remapped(n->device, &unused[0], &unused[1], &pending, &failed);
		*out = item == CAIRN_NVML_REMAP_PENDING ? pending : failed;
		return ret;
	case CAIRN_NVML_REASONS:
		if (reasons)
			ret = reasons(n->device, &wide);
		*out = wide;
		return ret;
	case CAIRN_NVML_CELSIUS:
		if (n->temperature)
			ret = n->temperature(n->device, 0, &celsius);
		*out = celsius;
		return ret;
	case CAIRN_NVML_PCIE_WIDTH:
		return get_uint(n, n->pcie_width, out);
	case CAIRN_NVML_PCIE_MAX_WIDTH:
		return get_uint(n, n->pcie_max_width, out);
	case CAIRN_NVML_PCIE_REPLAYS:
		return get_uint(n, n->pcie_replays, out);
	default:
		return get_links(n, out);
	}
}

int cairn_nvml_health(struct cairn_nvml *n, uint32_t items, struct cairn_nvml_health *h)
{
	memset(h, 0, sizeof(*h));
	for (int i = 0; i < CAIRN_NVML_NUM_ITEMS; i++) {
		int ret = items >> i & 1 ? get_item(n, i, &h->value[i]) : NOT_SUPPORTED;

		if (ret == GPU_IS_LOST)
			return check(n, ret, "a query of the card's health");
		if (ret == SUCCESS)
			h->has |= 1u << i;
		else
			h->value[i] = 0;
	}
	return 0;
}

int cairn_nvml_processes(struct cairn_nvml *n)
{
	unsigned int count = 0;
	int ret;

	if (!n->processes)
		return missing("nvmlDeviceGetComputeRunningProcesses_v3");
	ret = n->processes(n->device, &count, NULL);
	if (ret != INSUFFICIENT_SIZE)
		CAIRN_TRY(check(n, ret, "nvmlDeviceGetComputeRunningProcesses_v3"));
	return (int)count;
}

static int32_t mode_of(struct cairn_nvml *n, int (*mode)(void *, unsigned int *, unsigned int *))
{
	unsigned int current = 0, pending = 0;

	return mode && mode(n->device, &current, &pending) == SUCCESS ? current == 1 : -1;
}

void cairn_nvml_settings(struct cairn_nvml *n, struct cairn_nvml_settings *out)
{
	uint64_t mw = 0;

	out->limit_mw = get_uint(n, n->limit, &mw) == SUCCESS ? (int64_t)mw : -1;
	out->ecc = mode_of(n, n->ecc_mode);
	out->mig = mode_of(n, n->mig_mode);
}

int cairn_nvml_uuid(struct cairn_nvml *n, char *uuid, unsigned int len)
{
	if (!n->uuid)
		return missing("nvmlDeviceGetUUID");
	return check(n, n->uuid(n->device, uuid, len), "nvmlDeviceGetUUID");
}

// SPDX-License-Identifier: Apache-2.0
/*
 * fake_nvml - a library with NVML's interface and one card, for tests on machines without a GPU
 *
 * $CAIRN_FAKE_NVML sets its behaviour, as NAME=NUMBER separated by blanks; it is read at every call:
 *
 *   watts N	power of the card (500)
 *   period N	milliseconds between updates of the energy (20)
 *   capped N	percent of the time at the limit (25)
 *   mhz N	SM clock (1500)
 *   reset N	the energy starts again at 0 when it has been read N times
 *   init, find, energy, power, clock, fields, field, violation N
 *		that call returns NVML's error N; field: fields succeed and the one field has this error
 *   ecc, uncorrected, replays N
 *		that counter grows by N at every read of it, from 7 on
 *   pending, failed N
 *		a row of memory waits to be remapped, or could not be
 *   reasons N	bits of what holds the clock down (4: the power cap)
 *   celsius N	temperature (60)
 *   width N	PCIe lanes, of 16 (16)
 *   links N	NVLinks that are up, of 18 (18); drop N: one less from the N-th read on
 *   limit N	watts of its power limit (700); eccmode, mig N: 1 if that is on (1, 0), 2: unknown
 *   processes N
 *		processes on the card (0)
 *   lost N	every query of health says so from the N-th read of the temperature on
 *
 * The card's PCI address is 0000:1b:00.0. With FAKE_NO_ENERGY and FAKE_NO_FIELDS the library lacks these
 * functions, as old versions do.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BEGUN_MJ	123456789ll	/* a driver that was loaded long ago */

struct field_value {
	unsigned int field, scope;
	long long timestamp_us, latency_us;
	int type, ret;
	unsigned long long value;
};

struct violation_time {
	unsigned long long reference_us, violation_ns;
};

int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int ret);
int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **device);
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj);
int nvmlDeviceGetPowerUsage(void *device, unsigned int *mw);
int nvmlDeviceGetClockInfo(void *device, int type, unsigned int *mhz);
int nvmlDeviceGetFieldValues(void *device, int count, struct field_value *values);
int nvmlDeviceGetViolationStatus(void *device, int policy, struct violation_time *time);
int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *count);
int nvmlDeviceGetRemappedRows(void *device, unsigned int *corrected, unsigned int *uncorrected,
			      unsigned int *pending, unsigned int *failed);
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons);
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *celsius);
int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned int *lanes);
int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned int *lanes);
int nvmlDeviceGetPcieReplayCounter(void *device, unsigned int *count);
int nvmlDeviceGetNvLinkState(void *device, unsigned int link, int *active);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, void *infos);
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int len);
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned int *mw);
int nvmlDeviceGetEccMode(void *device, unsigned int *current, unsigned int *pending);
int nvmlDeviceGetMigMode(void *device, unsigned int *current, unsigned int *pending);
int fake_nvml_users(void);

static int users, card;

/* Returns how many users have called nvmlInit_v2() and not nvmlShutdown(). */
int fake_nvml_users(void)
{
	return users;
}

static long long option(const char *name, long long otherwise)
{
	const char *at = getenv("CAIRN_FAKE_NVML");
	size_t n = strlen(name);

	for (; at && *at; at += strcspn(at, " "), at += *at == ' ')
		if (!strncmp(at, name, n) && at[n] == '=')
			return atoll(at + n + 1);
	return otherwise;
}

static long long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static int result(const char *name, const void *device)
{
	if (!users)
		return 1;	/* NVML_ERROR_UNINITIALIZED */
	return device == &card ? (int)option(name, 0) : 2;
}

int nvmlInit_v2(void)
{
	int ret = (int)option("init", 0);

	users += !ret;
	return ret;
}

int nvmlShutdown(void)
{
	users--;
	return 0;
}

const char *nvmlErrorString(int ret)
{
	return ret == 9 ? "Driver Not Loaded" : ret == 3 ? "Not Supported" : "an \"error\"";
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **device)
{
	*device = &card;
	return strcmp(pci, "0000:1b:00.0") ? 6 : result("find", &card);
}

#ifndef FAKE_NO_ENERGY
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj)
{
	static int num_reads;
	long long period = option("period", 20) * 1000000, reset = option("reset", 0);
	long long mj_now = now_ns() / period * period / 1000000 * option("watts", 500);

	num_reads++;
	*mj = (unsigned long long)(mj_now + (reset && num_reads >= reset ? 0 : BEGUN_MJ));
	return result("energy", device);
}
#endif

int nvmlDeviceGetPowerUsage(void *device, unsigned int *mw)
{
	*mw = (unsigned int)option("watts", 500) * 1000;
	return result("power", device);
}

int nvmlDeviceGetClockInfo(void *device, int type, unsigned int *mhz)
{
	*mhz = type == 1 ? (unsigned int)option("mhz", 1500) : 345;
	return result("clock", device);
}

#ifndef FAKE_NO_FIELDS
int nvmlDeviceGetFieldValues(void *device, int count, struct field_value *values)
{
	for (int i = 0; i < count; i++) {
		values[i].ret = values[i].field == 74 ? (int)option("field", 0) : 3;
		values[i].type = 3;
		values[i].value = (unsigned long long)(now_ns() / 100 * option("capped", 25));
	}
	return result("fields", device);
}
#endif

int nvmlDeviceGetViolationStatus(void *device, int policy, struct violation_time *time)
{
	time->reference_us = (unsigned long long)(now_ns() / 1000);
	time->violation_ns = policy ? 0 : (unsigned long long)(now_ns() / 100 * option("capped", 25));
	return result("violation", device);
}

/* Returns a counter that grows by the option's number at every read. */
static unsigned long long growing(const char *name, int which)
{
	static unsigned long long counters[3] = { 7, 7, 7 };

	return counters[which] += (unsigned long long)option(name, 0);
}

static int temperature_reads;

static int health(void *device)
{
	long long lost = option("lost", 0);

	return lost && temperature_reads >= lost ? 15 : result("health", device);
}

int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *count)
{
	*count = counter ? 0 : type ? growing("uncorrected", 0) : growing("ecc", 1);
	return health(device);
}

int nvmlDeviceGetRemappedRows(void *device, unsigned int *corrected, unsigned int *uncorrected,
			      unsigned int *pending, unsigned int *failed)
{
	*corrected = *uncorrected = 1;
	*pending = (unsigned int)option("pending", 0);
	*failed = (unsigned int)option("failed", 0);
	return health(device);
}

int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons)
{
	*reasons = (unsigned long long)option("reasons", 4);
	return health(device);
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *celsius)
{
	*celsius = sensor ? 0 : (unsigned int)option("celsius", 60);
	temperature_reads++;
	return health(device);
}

int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned int *lanes)
{
	*lanes = (unsigned int)option("width", 16);
	return health(device);
}

int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned int *lanes)
{
	*lanes = 16;
	return health(device);
}

int nvmlDeviceGetPcieReplayCounter(void *device, unsigned int *count)
{
	*count = (unsigned int)growing("replays", 2);
	return health(device);
}

int nvmlDeviceGetNvLinkState(void *device, unsigned int link, int *active)
{
	static int num_reads;
	long long drop = option("drop", 0);

	num_reads += link == 0;
	*active = link < option("links", 18) - (drop && num_reads >= drop);
	return health(device);
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, void *infos)
{
	(void)infos;
	*count = (unsigned int)option("processes", 0);
	return *count ? 7 : health(device);
}

int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned int *mw)
{
	*mw = (unsigned int)option("limit", 700) * 1000;
	return health(device);
}

static int mode(void *device, const char *name, long long otherwise, unsigned int *current,
		unsigned int *pending)
{
	long long is = option(name, otherwise);

	*current = *pending = (unsigned int)is;
	return is > 1 ? 3 : health(device);
}

int nvmlDeviceGetEccMode(void *device, unsigned int *current, unsigned int *pending)
{
	return mode(device, "eccmode", 1, current, pending);
}

int nvmlDeviceGetMigMode(void *device, unsigned int *current, unsigned int *pending)
{
	return mode(device, "mig", 0, current, pending);
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int len)
{
	static const char text[] = "GPU-00000000-0000-0000-0000-000000000001";

	if (len < sizeof(text))
		return 7;
	memcpy(uuid, text, sizeof(text));
	return health(device);
}

// SPDX-License-Identifier: Apache-2.0
/* energy_test - the window between updates of a counter, and the meter on a library that stands for NVML */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conformance/harness.h"
#include "conformance/suite/spawn.h"
#include "conformance/tables/energy.h"
#include "conformance/tables/tables.h"

#define MS	1000000ll

/*
 * Reads, every `poll` ms from `begin` to `end` ms, a counter that a card of `watts` updates every `period`.
 */
static void read_card(struct cairn_energy_window *w, double begin, double end, double poll, double period,
		      double watts)
{
	for (double ms = begin; ms < end; ms += poll)
		cairn_energy_read(w, (int64_t)(ms * 1e6), (uint64_t)(floor(ms / period) * period * watts));
}

static int is_near(double got, double want, double share)
{
	return fabs(got - want) <= share * want;
}

/* The power is exact to the uncertainty of two updates, whenever the load begins and ends. */
static void window(struct cairn_test *t)
{
	static const double periods[] = { 1, 20, 33, 100 };

	for (size_t i = 0; i < ARRAY_SIZE(periods); i++)
		for (double begin = 1000; begin < 1100; begin += 7) {
			struct cairn_energy_window w = { 0 };
			double ms;

			read_card(&w, begin, begin + 420, 1, periods[i], 650);
			ms = (double)cairn_energy_length(&w) * 1e-6;
			EXPECT(t, ms > 420 - 2 * periods[i] - 2 && ms <= 420);
			EXPECT(t, is_near(cairn_energy_watts(&w), 650, 1 / ms));
		}
}

/* The window begins at the first update: what the card did before does not count. */
static void idle_before(struct cairn_test *t)
{
	struct cairn_energy_window w = { 0 };

	/* 60 of the first 100 ms idle at 70 W; the update at 1100 ms has that in it */
	EXPECT(t, !cairn_energy_read(&w, 1060 * MS, 5000));
	EXPECT(t, cairn_energy_length(&w) == 0 && isnan(cairn_energy_watts(&w)));
	EXPECT(t, cairn_energy_read(&w, 1100 * MS, 5000 + 60 * 70 + 40 * 700));
	EXPECT(t, cairn_energy_length(&w) == 0 && isnan(cairn_energy_watts(&w)));
	EXPECT(t, cairn_energy_read(&w, 1140 * MS, 5000 + 60 * 70 + 80 * 700));
	EXPECT(t, !cairn_energy_read(&w, 1160 * MS, 5000 + 60 * 70 + 80 * 700));
	/* updates at 1080 and at 1120, halfway between the readings */
	EXPECT(t, cairn_energy_length(&w) == 40 * MS && cairn_energy_watts(&w) == 700);
}

/* A counter that falls begins a new window; one that has passed 2^32 or 2^53 is one like any other. */
static void resets(struct cairn_test *t)
{
	static const uint64_t large[] = { (1ull << 32) - 100, (1ull << 53) - 100, UINT64_MAX - 1000 };

	for (size_t i = 0; i < ARRAY_SIZE(large); i++) {
		struct cairn_energy_window w = { 0 };

		for (int k = 0; k < 3; k++)
			cairn_energy_read(&w, k * 100 * MS, large[i] + (uint64_t)k * 300);
		EXPECT(t, cairn_energy_length(&w) == 100 * MS && cairn_energy_watts(&w) == 3);
		EXPECT(t, !cairn_energy_read(&w, 300 * MS, 7));
		EXPECT(t, cairn_energy_length(&w) == 0);
		EXPECT(t, cairn_energy_read(&w, 400 * MS, 107) && cairn_energy_read(&w, 500 * MS, 207));
		EXPECT(t, cairn_energy_length(&w) == 100 * MS && cairn_energy_watts(&w) == 1);
	}
}

static void share(struct cairn_test *t)
{
	struct cairn_counted a = { 1000, 50 };

	EXPECT(t, cairn_energy_share(a, (struct cairn_counted){ 2000, 300 }) == 25);
	EXPECT(t, cairn_energy_share(a, (struct cairn_counted){ 2000, 50 }) == 0);
	EXPECT(t, cairn_energy_share(a, (struct cairn_counted){ 2000, 1060 }) == 100);
	EXPECT(t, isnan(cairn_energy_share(a, (struct cairn_counted){ 2000, 49 })));
	EXPECT(t, isnan(cairn_energy_share(a, (struct cairn_counted){ 1000, 50 })));
}

static void members(struct cairn_test *t)
{
	struct cairn_energy e = { .watts = 612.34, .sm_mhz = 1500, .capped_pct = 12.34 };
	char json[CAIRN_ENERGY_MEMBERS];

	cairn_energy_members(&e, 2e-6, json, sizeof(json));
	EXPECT(t, !strcmp(json, ",\"joules\":0.001225,\"watts\":612.3,\"capped_pct\":12.3"));
	e.capped_pct = NAN;
	strcpy(e.why_capped, "NVML: \"x\\y\"\n");
	cairn_energy_members(&e, 1, json, sizeof(json));
	EXPECT(t, !strcmp(json, ",\"joules\":612.3,\"watts\":612.3,\"no_capped_pct\":\"NVML: 'x'y''\""));
	cairn_error(ENODEV, "%0200d", 7);
	cairn_energy_unknown(&e);
	cairn_energy_members(&e, 1, json, sizeof(json));
	EXPECT(t, !strncmp(json, ",\"no_energy\":\"000", 17) && strlen(json) == 14 + 127 + 1 &&
		  json[strlen(json) - 1] == '"');
}

static void rest(struct cairn_test *t)
{
	struct cairn_energy whole = { .watts = 600, .sm_mhz = 1500, .capped_pct = 10 };
	struct cairn_energy part = { .watts = 700 }, e;

	/* 180 J in 0.3 s, of which 70 J in 0.1 s */
	cairn_energy_rest(&whole, 0.3, &part, 0.1, &e);
	EXPECT(t, is_near(e.watts, 550, 1e-12) && e.sm_mhz == 1500 && e.capped_pct == 10 && !e.why[0]);
	cairn_energy_rest(&whole, 0.1, &part, 0.1, &e);
	EXPECT(t, isnan(e.watts));
	EXPECT_CONTAINS(t, e.why, "the whole took no more than its part: 60 J in 0.1 s, 70 J in 0.1 s");
	part = (struct cairn_energy){ .watts = NAN, .why = "gone" };
	cairn_energy_rest(&whole, 0.3, &part, 0.1, &e);
	EXPECT(t, isnan(e.watts) && !strcmp(e.why, "gone"));
	whole = (struct cairn_energy){ .watts = NAN, .why = "never there" };
	cairn_energy_rest(&whole, 0.3, &part, 0.1, &e);
	EXPECT(t, isnan(e.watts) && !strcmp(e.why, "never there"));
}

/* ---- the meter ---- */

/* Runs a meter until it has enough or has failed, at most two seconds. Returns 0 if the card did not open. */
static int measure(struct cairn_test *t, const char *options, int64_t least_ns, struct cairn_energy *e)
{
	struct timespec nap = { 0, 2 * MS };
	struct cairn_meter *m = NULL;
	struct cairn_nvml *card = NULL;
	char path[PATH_MAX];

	if (!cairn_beside("fake_nvml.so", path, sizeof(path))) {
		cairn_skip(t, "fake_nvml.so is not in the directory of this program");
		return 0;
	}
	unsetenv("CAIRN_FAKE_NVML");
	if (!EXPECT(t, cairn_nvml_open(&card, path, "0000:1b:00.0") == 0))
		return 0;
	setenv("CAIRN_FAKE_NVML", options, 1);
	if (!EXPECT(t, cairn_meter_start(&m, card, least_ns) == 0))
		return 0;
	for (int i = 0; i < 1000 && cairn_meter_state(m) < CAIRN_METER_ENOUGH; i++)
		nanosleep(&nap, NULL);
	cairn_meter_stop(m, e);
	cairn_nvml_close(card);
	unsetenv("CAIRN_FAKE_NVML");
	return 1;
}

/* The tolerances are those of a machine whose cores are busy with other things. */
static void meter(struct cairn_test *t)
{
	struct cairn_energy e;

	if (!measure(t, "watts=640 period=50 capped=30 mhz=1410", CAIRN_ENERGY_NS, &e))
		return;
	EXPECT(t, is_near(e.watts, 640, 0.2) && e.sm_mhz == 1410 && is_near(e.capped_pct, 30, 0.2));
	EXPECT(t, !e.why[0] && !e.why_capped[0]);
}

static void meter_without_some(struct cairn_test *t)
{
	struct cairn_energy e;

	if (!measure(t, "watts=200 clock=3 field=3 violation=3", CAIRN_ENERGY_NS, &e))
		return;
	EXPECT(t, is_near(e.watts, 200, 0.2) && isnan(e.sm_mhz) && isnan(e.capped_pct));
	EXPECT(t, !e.why[0]);
	EXPECT_CONTAINS(t, e.why_capped, "nvmlDeviceGetViolationStatus: error 3");
}

static void meter_fails(struct cairn_test *t)
{
	static const struct {
		const char *options, *why;
	} cases[] = {
		{ "energy=15", "nvmlDeviceGetTotalEnergyConsumption: error 15" },
		{ "watts=0", "the energy counter has stood still for a second" },
		{ "period=5000", "stood still" },
	};
	struct cairn_energy e;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		if (!measure(t, cases[i].options, CAIRN_ENERGY_NS, &e))
			return;
		EXPECT(t, isnan(e.watts) && isnan(e.sm_mhz) && isnan(e.capped_pct));
		EXPECT_CONTAINS(t, e.why, cases[i].why);
	}
}

/* The driver is loaded anew amid the window, which then begins again. */
static void meter_reset(struct cairn_test *t)
{
	struct cairn_energy e;

	if (!measure(t, "watts=300 period=10 reset=30", CAIRN_ENERGY_NS, &e))
		return;
	EXPECT(t, is_near(e.watts, 300, 0.2) && !e.why[0]);
}

/* A load that ends too early has no figures, and a reason. */
static void meter_stopped(struct cairn_test *t)
{
	struct cairn_energy e;

	if (!measure(t, "watts=300 period=20", 60000 * MS, &e))
		return;
	EXPECT(t, isnan(e.watts));
	EXPECT_CONTAINS(t, e.why, "the load was too short: the energy counter was updated ");
}

struct runs {
	int num, fails_at;
};

static int sleep_some(void *arg)
{
	struct timespec nap = { 0, 40 * MS };
	struct runs *r = arg;

	if (++r->num == r->fails_at)
		return cairn_error(EIO, "run %d fails", r->num);
	nanosleep(&nap, NULL);
	return 0;
}

static void whole_runs(struct cairn_test *t)
{
	struct runs good = { 0, 0 }, bad = { 0, 3 };
	struct cairn_nvml *card = NULL;
	struct cairn_energy e;
	char path[PATH_MAX];
	double s = 0;

	if (!cairn_beside("fake_nvml.so", path, sizeof(path))) {
		cairn_skip(t, "fake_nvml.so is not in the directory of this program");
		return;
	}
	setenv("CAIRN_FAKE_NVML", "watts=200", 1);
	if (!EXPECT(t, cairn_nvml_open(&card, path, "0000:1b:00.0") == 0))
		return;
	EXPECT(t, cairn_energy_of_runs(card, 400 * MS, sleep_some, &good, &e, &s) == 0);
	EXPECT(t, is_near(e.watts, 200, 0.2) && s >= 0.04 && s < 0.2 && good.num * s > 0.4);
	EXPECT(t, cairn_energy_of_runs(card, 400 * MS, sleep_some, &bad, &e, &s) == -EIO && s == 0);
	EXPECT_CONTAINS(t, cairn_last_error(), "run 3 fails");
	setenv("CAIRN_FAKE_NVML", "energy=15", 1);
	EXPECT(t, cairn_energy_of_runs(card, 400 * MS, sleep_some, &good, &e, &s) == 0);
	EXPECT(t, isnan(e.watts) && s == 0);
	EXPECT_CONTAINS(t, e.why, "error 15");
	cairn_nvml_close(card);
	unsetenv("CAIRN_FAKE_NVML");
}

/* Tables of the host have no card. */
static void no_card(struct cairn_test *t)
{
	struct cairn_nvml *card = (void *)t;

	EXPECT(t, cairn_power_open(&card, &cairn_host_runtime) == -EOPNOTSUPP && !card);
	EXPECT_CONTAINS(t, cairn_last_error(), "the table host has no card");
}

static const struct cairn_unit units[] = {
	{ "window", window },
	{ "idle_before", idle_before },
	{ "resets", resets },
	{ "share", share },
	{ "members", members },
	{ "rest", rest },
	{ "meter", meter },
	{ "meter_without_some", meter_without_some },
	{ "meter_fails", meter_fails },
	{ "meter_reset", meter_reset },
	{ "meter_stopped", meter_stopped },
	{ "whole_runs", whole_runs },
	{ "no_card", no_card },
};

const struct cairn_family cairn_energy_family = {
	.stage = "conformance", .name = "energy", .units = units, .num_units = ARRAY_SIZE(units), .waits = 1,
};

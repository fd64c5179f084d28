// SPDX-License-Identifier: Apache-2.0
/* bench_energy_test - energy of repeated calls, alone and in the rows of `cairn bench`, on a made-up card */
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "conformance/harness.h"
#include "conformance/bench/bench_energy.h"
#include "conformance/suite/fake_card_test.h"
#include "conformance/tables/tables.h"

struct calls {
	int num, fails_at;		/* the call that fails; 0: none */
	long ns;
	double slept;			/* ns of all calls, which a busy machine makes longer */
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int sleep_once(void *arg)
{
	struct calls *c = arg;
	struct timespec nap = { 0, c->ns };
	const double begin = now();

	if (++c->num == c->fails_at)
		return cairn_error(EIO, "call %d fails", c->num);
	nanosleep(&nap, NULL);
	c->slept += now() - begin;
	return 0;
}

/* Repeats calls on a table whose streams run at once. -ENODEV: the made-up card cannot be opened. */
static int repeat(struct cairn_test *t, const char *options, struct calls *c, struct cairn_energy *e,
		  double *ns)
{
	struct cairn_repeat r = { .impl = &cairn_host_runtime, .launch = sleep_once, .arg = c,
				  .launch_ns = (double)c->ns };
	struct cairn_nvml *card;
	char path[PATH_MAX];
	int ret;

	if (!cairn_beside("fake_nvml.so", path, sizeof(path))) {
		cairn_skip(t, "fake_nvml.so is not in the directory of this program");
		return -ENODEV;
	}
	unsetenv("CAIRN_FAKE_NVML");
	if (!EXPECT(t, cairn_nvml_open(&card, path, FAKE_PCI) == 0))
		return -ENODEV;
	setenv("CAIRN_FAKE_NVML", options, 1);
	EXPECT(t, r.impl->stream_create(&r.stream) == 0);
	ret = cairn_repeat_energy(&r, card, e, ns);
	cairn_nvml_close(card);
	unsetenv("CAIRN_FAKE_NVML");
	return ret;
}

/* Short and long calls: both give the card's power and the time of a call. */
static void calls(struct cairn_test *t)
{
	static const long lengths[] = { 500000, 30000000, 250000000 };

	for (size_t i = 0; i < ARRAY_SIZE(lengths); i++) {
		struct calls c = { .ns = lengths[i] };
		struct cairn_energy e;
		double ns = 0;

		if (repeat(t, "watts=700 period=25 capped=60 mhz=1800", &c, &e, &ns) == -ENODEV)
			return;
		EXPECT(t, fabs(e.watts - 700) < 140 && fabs(e.capped_pct - 60) < 12 && e.sm_mhz == 1800);
		if (!EXPECT(t, ns >= (double)c.ns && ns < 2 * c.slept / c.num && (double)c.num * ns > 2e8))
			cairn_note(t, "%d calls of %.0f ns, which slept %.0f", c.num, ns, c.slept / c.num);
	}
}

/* A failing call is an error; a failing card is none, and has a reason. */
static void failures(struct cairn_test *t)
{
	struct calls bad = { .ns = 1000000, .fails_at = 77 }, good = { .ns = 1000000 };
	struct cairn_energy e;
	double ns = 5;

	if (repeat(t, "", &bad, &e, &ns) == -ENODEV)
		return;
	EXPECT(t, bad.num == 77 && ns == 0);
	EXPECT_CONTAINS(t, cairn_last_error(), "call 77 fails");
	EXPECT(t, repeat(t, "energy=999", &good, &e, &ns) == 0 && ns == 0 && isnan(e.watts));
	EXPECT_CONTAINS(t, e.why, "nvmlDeviceGetTotalEnergyConsumption: error 999");
}

/* The same on a table whose work runs only when an event forces it to. */
static struct cairn_impl late;
static struct {
	void *stream, *memory;
	int num;
} work;

static int set_memory(void *arg)
{
	(void)arg;
	work.num++;
	return late.mem_set(work.memory, work.num & 255, 1 << 20, work.stream);
}

static void late_table(struct cairn_test *t)
{
	struct cairn_repeat r = { .impl = &late, .launch = set_memory, .launch_ns = 50000 };
	char plugin[PATH_MAX], path[PATH_MAX];
	struct cairn_nvml *card = NULL;
	struct cairn_energy e;
	double ns = 0;

	if (!cairn_beside("late_plugin.so", plugin, sizeof(plugin)) ||
	    !cairn_beside("fake_nvml.so", path, sizeof(path))) {
		cairn_skip(t, "late_plugin.so or fake_nvml.so is not in the directory of this program");
		return;
	}
	if (!EXPECT(t, cairn_impl_open(plugin, &late) == 0 && cairn_impl_start(&late, 0) == 0) ||
	    !EXPECT(t, late.stream_create(&work.stream) == 0 && late.mem_alloc(&work.memory, 1 << 20) == 0))
		return;
	r.stream = work.stream;
	if (!EXPECT(t, cairn_nvml_open(&card, path, FAKE_PCI) == 0))
		return;
	EXPECT(t, cairn_repeat_energy(&r, card, &e, &ns) == 0);
	EXPECT(t, fabs(e.watts - 500) < 100 && ns > 0 && ns < 2e8);
	cairn_nvml_close(card);
}

/* Times one row by `cairn bench` and returns its record, a new reference, or NULL. */
static json_t *bench(struct cairn_test *t, const char *options)
{
	char plugin[PATH_MAX], json[PATH_MAX], out[4096];
	char *argv[] = { "cairn", "bench", "--impl", plugin, "--json", json,
			 "primitives.rope.rows1_heads32_8_dim128_bf16", NULL };
	json_t *row;

	if (!fake_card(t, options, plugin, sizeof(plugin)))
		return NULL;
	snprintf(json, sizeof(json), "%.200s/rows", cairn_tmpdir(t));
	if (!EXPECT(t, cairn_spawn(argv, out, sizeof(out)) == 0))
		cairn_note(t, "%s", out);
	no_fake_card();
	row = json_load_file(json, 0, NULL);
	EXPECT(t, row != NULL);
	return row;
}

static double number(const json_t *row, const char *key)
{
	const json_t *v = json_object_get(row, key);

	return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static void row(struct cairn_test *t)
{
	json_t *r = bench(t, "watts=432 mhz=1234 capped=50 period=10");
	double call;

	if (!r)
		return;
	/* joules over watts is the time of a call under load */
	call = number(r, "joules") / number(r, "watts") * 1e9;
	EXPECT(t, fabs(number(r, "watts") - 432) < 90 && number(r, "sm_mhz") == 1234);
	EXPECT(t, fabs(number(r, "capped_pct") - 50) < 10);
	if (!EXPECT(t, call > 0.2 * number(r, "min_ns") && call < 20 * number(r, "p95_ns")))
		cairn_note(t, "%.0f ns under load, median %.0f ns", call, number(r, "median_ns"));
	EXPECT(t, !json_object_get(r, "no_energy") && !json_object_get(r, "no_capped_pct"));
	json_decref(r);
}

/* A row without energy says why and has all its other members. */
static void row_without(struct cairn_test *t)
{
	json_t *r = bench(t, "init=9");

	if (!r)
		return;
	EXPECT(t, !json_object_get(r, "joules") && !json_object_get(r, "watts"));
	EXPECT(t, number(r, "median_ns") > 0 && number(r, "roof_pct") >= 0);
	EXPECT_CONTAINS(t, json_string_value(json_object_get(r, "no_energy")),
			"NVML: nvmlInit_v2: error 9, Driver Not Loaded");
	json_decref(r);
}

static const struct cairn_unit units[] = {
	{ "calls", calls },
	{ "failures", failures },
	{ "late_table", late_table },
	{ "row", row },
	{ "row_without", row_without },
};

const struct cairn_family cairn_bench_energy_family = {
	.stage = "conformance", .name = "bench_energy", .units = units, .num_units = ARRAY_SIZE(units),
	.waits = 1,
};

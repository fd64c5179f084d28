// SPDX-License-Identifier: Apache-2.0
/* serve_power_test - power and energy in /metrics, on a made-up card */
#include "conformance/harness.h"
#include "conformance/suite/fake_card_test.h"
#include "serving/serve/front/serve_front.h"
#include "serving/serve/tests/serve_test.h"

#define SHORT	"{\"prompt\":\"a\",\"max_tokens\":2}"
#define POWER	"cairn:gpu_power_watts"
#define ENERGY	"cairn:gpu_energy_joules_total"

/* Energy counts on over the death of a worker. */
static void counts(struct cairn_test *t)
{
	static struct reply r;
	char plugin[PATH_MAX];
	struct server s;
	double joules, begun = now_s();

	if (!fake_card(t, "watts=432 period=10", plugin, sizeof(plugin)))
		return;
	if (start_server(t, &s, FAULT_ARGS(plugin, "--batch", "4", "--resume-limit", "0")) &&
	    EXPECT(t, wait_ready(&s))) {
		EXPECT(t, WAIT_FOR(metric_of(&s, POWER, "") == 432, 10000));
		EXPECT(t, WAIT_FOR(metric_of(&s, ENERGY, "") > 400, 10000));
		joules = metric_of(&s, ENERGY, "");
		EXPECT(t, joules < 432 * (now_s() - begun) + 5);
		tell_fault(&s, "crash");
		EXPECT(t, post(&s, "/v1/completions", SHORT, &r) == 500);
		EXPECT(t, WAIT_FOR(metric_of(&s, ENERGY, "") > joules + 800, 20000));
		EXPECT(t, metric_of(&s, "cairn:worker_restarts_total", "") == 1);
		EXPECT(t, metric_of(&s, ENERGY, "") < 432 * (now_s() - begun) + 5);
	}
	stop_server(&s);
	no_fake_card();
}

/* A card that cannot be read: no metrics, one line in the log, and the server serves. */
static void unreadable(struct cairn_test *t)
{
	static const struct {
		const char *options, *why;
	} cases[] = {
		{ "init=9", "nvmlInit_v2: error 9, Driver Not Loaded" },
		{ "energy=3", "nvmlDeviceGetTotalEnergyConsumption: error 3, Not Supported" },
	};
	static struct reply r;
	char plugin[PATH_MAX], log[4096];
	struct server s;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		if (i)
			setenv("CAIRN_FAKE_NVML", cases[i].options, 1);
		else if (!fake_card(t, cases[i].options, plugin, sizeof(plugin)))
			return;
		if (start_server(t, &s, FAULT_ARGS(plugin, "--batch", "4")) && EXPECT(t, wait_ready(&s))) {
			EXPECT(t, WAIT_FOR(strstr(log_of(&s, log, sizeof(log)), cases[i].why), 10000));
			EXPECT_CONTAINS(t, log, "cairn serve: no power or energy in /metrics: NVML: ");
			EXPECT(t, post(&s, "/v1/completions", SHORT, &r) == 200);
			EXPECT(t, metric_of(&s, POWER, "") == -1 && metric_of(&s, ENERGY, "") == -1);
		}
		stop_server(&s);
	}
	no_fake_card();
}

/* A card without power readings has its energy alone. */
static void energy_alone(struct cairn_test *t)
{
	char plugin[PATH_MAX];
	struct server s;

	if (!fake_card(t, "watts=300 power=3", plugin, sizeof(plugin)))
		return;
	if (start_server(t, &s, FAULT_ARGS(plugin, "--batch", "4")) && EXPECT(t, wait_ready(&s))) {
		EXPECT(t, WAIT_FOR(metric_of(&s, ENERGY, "") > 100, 10000));
		EXPECT(t, metric_of(&s, POWER, "") == -1);
	}
	stop_server(&s);
	no_fake_card();
}

/* A table of the host says nothing about power. */
static void host(struct cairn_test *t)
{
	char log[4096];
	struct server s;

	if (start_server(t, &s, (const char *const[]){ "--impl", "cpu", "--quiet", NULL }) &&
	    EXPECT(t, wait_ready(&s)))
		EXPECT(t, metric_of(&s, POWER, "") == -1 && metric_of(&s, ENERGY, "") == -1);
	stop_server(&s);
	EXPECT(t, !strstr(log_of(&s, log, sizeof(log)), "power"));
}

static int take(struct serve *s, int64_t energy_mj, int32_t power_mw)
{
	struct cairn_wire_frame f = { .kind = CAIRN_WIRE_POWER };

	f.power.energy_mj = energy_mj;
	f.power.power_mw = power_mw;
	return serve_take_frame(s, &f);
}

/* The first count is the base, a count that has fallen is a new one, and negative numbers are refused. */
static void frames(struct cairn_test *t)
{
	static const struct {
		int64_t energy_mj;
		uint64_t sum;
	} says[] = { { 1ll << 40, 0 }, { (1ll << 40) + 250, 250 }, { (1ll << 40) + 250, 250 }, { 100, 250 },
		     { 130, 280 }, { 0, 280 }, { 50, 280 }, { 60, 290 } };
	static struct serve s;

	if (!EXPECT(t, cairn_metrics_new("m", "0", 64, &s.metrics) == 0))
		return;
	EXPECT(t, take(&s, 1, 1) == -EINVAL);	/* before READY */
	atomic_store(&s.state, SERVE_READY);
	for (size_t i = 0; i < ARRAY_SIZE(says); i++) {
		EXPECT(t, take(&s, says[i].energy_mj, 500000) == 0);
		EXPECT(t, cairn_metric_count(s.metrics, CAIRN_GPU_ENERGY, 0) == says[i].sum);
	}
	EXPECT(t, cairn_metric_gauge(s.metrics, CAIRN_GPU_POWER) == 500);
	EXPECT(t, take(&s, -1, 0) == -EINVAL && take(&s, 1, -1) == -EINVAL);
	cairn_metrics_free(s.metrics);
}

static const struct cairn_unit units[] = {
	{ "counts", counts },
	{ "unreadable", unreadable },
	{ "energy_alone", energy_alone },
	{ "host", host },
	{ "frames", frames },
};

const struct cairn_family cairn_serve_power_family = {
	.stage = "serving", .name = "serve_power", .units = units, .num_units = ARRAY_SIZE(units), .waits = 1,
};

// SPDX-License-Identifier: Apache-2.0
/*
 * bench - `cairn bench`: verifies rows, then times them
 *
 * A row is verified first, and is not timed if it is wrong. Calls rotate through copies of all buffers, so
 * that every call finds its inputs in memory and not in a cache; on a device the copies have 1 GiB together,
 * but there are at most 64. The "warm" figure uses one copy for all calls. The calls of a sample form one
 * CUDA graph that lasts about a quarter of a millisecond, so that launch and event overhead are negligible; a
 * host table is called in a loop. A record contains the row's share of the ceilings (stream and gemm rows)
 * measured in the same run, and of the memory bandwidth in the datasheet. On a card with an energy counter,
 * the same calls are repeated after the timed samples until their energy is known (bench_energy.c).
 *
 * With --once a row is called once under a profiler (reports/traffic.py), and is neither timed nor compared
 * with the reference. If several tables have a row, the lines of the second and later ones end with the speed
 * of the first relative to them. Measures, which are rows without an operation, come last (measure.c). With a
 * plug-in among the tables and without a GLOB, only the operations that a plug-in has are timed.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "conformance/bench/bench_energy.h"
#include "conformance/suite/op_case.h"
#include "conformance/suite/families.h"
#include "conformance/tables/program.h"
#include "conformance/tables/tables.h"
#include "conformance/suite/runner.h"

#define SAMPLES		31
#define MAX_SETS	64
#define MAX_CALLS	256
#define SAMPLE_MS	0.25
#define ROTATE_BYTES	(1ull << 30)

struct bench {
	FILE *out;
	const struct cairn_family *f;
	const struct cairn_impl *impl;
	const struct cairn_options *opt;
	struct cairn_roofs *roofs;
	/* this is the first pass: only rows marked `ceiling`, without a report */
	int ceilings;
	struct cairn_device_info info;
	struct cairn_outcome outcome;
	void *stream, *start, *end;
	struct cairn_nvml *card;	/* NULL: no energy is measured, because of no_card or on a host */
	struct cairn_energy no_card;
};

struct timing {
	double min_ns, median_ns, p95_ns;
	int n;
	struct cairn_energy energy;
	double busy_ns;			/* time of a call while the energy was measured */
};

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Times one sample: `calls` calls that rotate through the sets, as a graph if the table has graphs. */
static int run_calls(struct bench *b, struct cairn_side *sets, int num_sets, int calls)
{
	for (int i = 0; i < calls; i++)
		CAIRN_TRY(cairn_side_call(&sets[i % num_sets], b->f));
	return 0;
}

static int timed(struct bench *b, void *graph, struct cairn_side *sets, int num_sets, int calls, double *ns)
{
	const struct cairn_impl *impl = b->impl;
	float ms;

	CAIRN_TRY(impl->event_record(b->start, b->stream));
	if (graph)
		CAIRN_TRY(impl->graph_launch(graph, b->stream));
	else
		CAIRN_TRY(run_calls(b, sets, num_sets, calls));
	CAIRN_TRY(impl->event_record(b->end, b->stream));
	CAIRN_TRY(impl->stream_sync(b->stream));
	CAIRN_TRY(impl->event_elapsed(&ms, b->start, b->end));
	*ns = (double)ms * 1e6 / calls;
	return 0;
}

/* The calls of a sample: a graph, or the table has none and they are made one by one. */
struct sample {
	struct bench *b;
	void *graph;
	struct cairn_side *sets;
	int num_sets, calls;
};

static int launch(void *arg)
{
	const struct sample *s = arg;

	if (s->graph)
		return s->b->impl->graph_launch(s->graph, s->b->stream);
	return run_calls(s->b, s->sets, s->num_sets, s->calls);
}

static int capture(struct sample *s)
{
	const struct cairn_impl *impl = s->b->impl;
	void *broken;
	int ret;

	CAIRN_TRY(impl->graph_begin(s->b->stream));
	ret = run_calls(s->b, s->sets, s->num_sets, s->calls);
	if (!ret)
		return impl->graph_end(s->b->stream, &s->graph);
	if (!impl->graph_end(s->b->stream, &broken))
		impl->graph_destroy(broken);
	return ret;
}

static int take_samples(struct sample *s, struct timing *t)
{
	double samples[SAMPLES], spent = 0;
	int n = 0;

	/* a slow row gets at least three samples, a fast one all of them */
	for (int i = -2; i < SAMPLES && !(n >= 3 && spent > 2e9); i++) {
		double ns;

		CAIRN_TRY(timed(s->b, s->graph, s->sets, s->num_sets, s->calls, &ns));
		if (i < 0)
			continue;
		samples[n++] = ns;
		spent += ns * s->calls;
	}
	qsort(samples, n, sizeof(*samples), compare);
	t->n = n;
	t->min_ns = samples[0];
	t->median_ns = samples[n / 2];
	t->p95_ns = samples[n * 95 / 100];
	return 0;
}

static int take_energy(struct sample *s, struct timing *t)
{
	const struct cairn_repeat r = { .impl = s->b->impl, .stream = s->b->stream, .launch = launch,
					.arg = s, .launch_ns = t->median_ns * s->calls };

	t->energy = s->b->no_card;
	if (!s->b->card)
		return 0;
	CAIRN_TRY(cairn_repeat_energy(&r, s->b->card, &t->energy, &t->busy_ns));
	t->busy_ns /= s->calls;
	return 0;
}

/* cold: the calls find their inputs in memory; the energy is that of such calls. */
static int measure(struct bench *b, struct cairn_side *sets, int num_sets, int cold, struct timing *t)
{
	struct sample s = { .b = b, .sets = sets, .num_sets = num_sets };
	double est;
	int ret = 0;

	/* the first calls load modules and make plans */
	CAIRN_TRY(timed(b, NULL, sets, num_sets, 1, &est));
	CAIRN_TRY(timed(b, NULL, sets, num_sets, num_sets < 8 ? 8 : num_sets, &est));
	s.calls = (int)ceil(SAMPLE_MS * 1e6 / est);
	s.calls = s.calls < 1 ? 1 : s.calls > MAX_CALLS ? MAX_CALLS : s.calls;
	if (s.calls < num_sets && est < 1e6)
		s.calls = num_sets;
	if (!(b->impl->flags & CAIRN_IMPL_HOST_MEM))
		CAIRN_TRY(capture(&s));
	ret = take_samples(&s, t);
	if (!ret && cold)
		ret = take_energy(&s, t);
	if (s.graph)
		b->impl->graph_destroy(s.graph);
	return ret;
}

/* Writes the shares of the memory bandwidth as JSON members; an unknown ceiling gives none. */
static void memory_shares(const struct bench *b, double gbps, double stream, char *text, size_t len)
{
	double peak = cairn_peak_gbps(b->info.name);

	text[0] = 0;
	if (stream > 0)
		snprintf(text, len, ",\"stream_pct\":%.1f", stream * 100);
	if (peak > 0)
		snprintf(text + strlen(text), len - strlen(text), ",\"peak_pct\":%.1f", gbps / peak * 100);
}

static void report(struct bench *b, const struct cairn_selected *s, const struct timing *cold,
		   const struct timing *warm, size_t workspace)
{
	int host = !!(b->impl->flags & CAIRN_IMPL_HOST_MEM);
	double gbps = s->desc.bytes / cold->median_ns, tflops = s->desc.flops / cold->median_ns * 1e-3;
	double by_bytes = b->roofs->gbps[host] > 0 ? gbps / b->roofs->gbps[host] : 0;
	double by_flops = b->roofs->tflops[host] > 0 ? tflops / b->roofs->tflops[host] : 0;
	double roof = by_bytes > by_flops ? by_bytes : by_flops;
	const char *rules = b->outcome.peer_rule ? ",\"rules\":\"peer\"" : "";
	char shares[64], space[40] = "", watts[16] = "", energy[CAIRN_ENERGY_MEMBERS] = "";
	struct cairn_device_info now;

	if (b->ceilings) {
		if (gbps > b->roofs->gbps[host] && s->desc.flops == 0)
			b->roofs->gbps[host] = gbps;
		if (tflops > b->roofs->tflops[host])
			b->roofs->tflops[host] = tflops;
		return;
	}
	if (b->impl->device_info(&now))
		now = b->info;
	if (cold->energy.sm_mhz > 0)
		now.clock_mhz = (int32_t)lround(cold->energy.sm_mhz);
	if (b->impl->pci_bus_id)
		cairn_energy_members(&cold->energy, cold->busy_ns * 1e-9, energy, sizeof(energy));
	memory_shares(b, gbps, by_bytes, shares, sizeof(shares));
	if (workspace)
		snprintf(space, sizeof(space), ",\"workspace_bytes\":%zu", workspace);
	fprintf(b->out, "J {\"v\":1,\"op\":\"%s\",\"case\":\"%s\",\"impl\":\"%s\",\"impl_version\":\"%s\","
		"\"ok\":true,\"err_over_bound\":%.4g,\"n\":%d,\"min_ns\":%.0f,\"median_ns\":%.0f,"
		"\"p95_ns\":%.0f,\"warm_ns\":%.0f,\"bytes\":%.0f,\"flops\":%.0f,\"gbps\":%.1f,"
		"\"tflops\":%.2f,\"roof_pct\":%.1f%s%s%s%s%s%s,"
		"\"sm_mhz\":%d,\"gpu\":\"%s\",\"driver\":\"%s\",\"source\":\"%s\",\"seed\":%llu}\n",
		b->f->name, s->desc.name, b->impl->name, b->impl->version, b->outcome.err_over_bound, cold->n,
		cold->min_ns, cold->median_ns, cold->p95_ns, warm->median_ns, s->desc.bytes, s->desc.flops,
		gbps, tflops, roof * 100, shares, space, energy, rules, b->outcome.extra[0] ? "," : "",
		b->outcome.extra, now.clock_mhz, b->info.name, b->info.driver, cairn_source_digest(),
		(unsigned long long)b->opt->seed);
	if (cold->energy.watts > 0)
		snprintf(watts, sizeof(watts), " %4.0f W", cold->energy.watts);
	fprintf(b->out, "P %s\t%.0f\t%-16s %-36s %-6s %10.2f us %9.1f GB/s %8.2f TFLOP/s %5.1f%%%s%s%.60s\n",
		s->desc.name, cold->median_ns, b->f->name, s->desc.name, b->impl->name,
		cold->median_ns * 1e-3, gbps, tflops, roof * 100, watts, b->outcome.extra[0] ? "  " : "",
		b->outcome.extra);
}

/*
 * Makes one call under the profiler, which reports the counts. Its inputs are not in a cache, as in a timed
 * call.
 */
static int call_once(struct bench *b, const struct cairn_selected *s, struct cairn_side *sets, int num_sets)
{
	int ret;

	CAIRN_TRY(run_calls(b, sets, num_sets, num_sets));
	CAIRN_TRY(b->impl->stream_sync(b->stream));
	cairn_profiler(1);
	ret = run_calls(b, sets, 1, 1);
	if (!ret)
		ret = b->impl->stream_sync(b->stream);
	cairn_profiler(0);
	CAIRN_TRY(ret);
	fprintf(b->out, "J {\"v\":1,\"op\":\"%s\",\"case\":\"%s\",\"impl\":\"%s\",\"impl_version\":\"%s\","
		"\"bytes\":%.0f,\"flops\":%.0f%s%s,"
		"\"gpu\":\"%s\",\"driver\":\"%s\",\"source\":\"%s\",\"seed\":%llu}\n",
		b->f->name, s->desc.name, b->impl->name, b->impl->version, s->desc.bytes, s->desc.flops,
		b->outcome.extra[0] ? "," : "", b->outcome.extra, b->info.name, b->info.driver,
		cairn_source_digest(), (unsigned long long)b->opt->seed);
	fprintf(b->out, "P %s\t0\t%-16s %-36s %-6s called once\n", s->desc.name, b->f->name, s->desc.name,
		b->impl->name);
	return 0;
}

static int too_much(const struct bench *b, size_t bytes)
{
	return b->info.mem_bytes > 0 && (double)bytes > 0.5 * (double)b->info.mem_bytes;
}

static int bench_row(struct bench *b, const struct cairn_selected *s, struct cairn_op *op)
{
	struct cairn_side sets[MAX_SETS];
	size_t set_bytes = 1, rotate;
	int want, num = 0, ret = 0;
	struct timing cold = { 0 }, warm = { 0 };

	for (int i = 0; i < op->num_bufs; i++)
		set_bytes += op->bufs[i].bytes + 2 * CAIRN_CANARY;
	rotate = 2 * (size_t)b->info.l2_bytes + 64 * 1024 * 1024;
	if (!(b->impl->flags & CAIRN_IMPL_HOST_MEM) && rotate < ROTATE_BYTES)
		rotate = ROTATE_BYTES;
	want = rotate / set_bytes >= MAX_SETS ? MAX_SETS : (int)(rotate / set_bytes) + 1;
	if (s->desc.sparse && s->desc.bytes < (double)set_bytes)
		want = rotate / s->desc.bytes >= MAX_SETS ? MAX_SETS : (int)(rotate / s->desc.bytes) + 1;
	/* a row without traffic has its figures in `extra`, where the kernel has measured them */
	if (s->desc.bytes == 0 && s->desc.flops == 0)
		want = 1;
	while (want > 1 && too_much(b, want * set_bytes))
		want--;
	while (num < want && !ret) {
		ret = num ? cairn_side_clone(&sets[num], b->f, op, &sets[0]) :
			cairn_side_open(&sets[0], b->f, op, b->impl, b->stream);
		if (num && !ret)
			cairn_side_share_workspace(&sets[num], &sets[0], b->f);
		num += !ret;
	}
	if (!ret && b->opt->once) {
		ret = call_once(b, s, sets, num);
	} else if (!ret) {
		ret = measure(b, sets, num, 1, &cold);
		if (!ret)
			ret = measure(b, sets, 1, 0, &warm);
		if (!ret)
			report(b, s, &cold, &warm, sets[0].workspace_bytes);
	}
	if (ret)
		fprintf(b->out, "D %s: %s\n", s->name, cairn_impl_error(b->impl));
	while (num > 0)
		cairn_side_close(&sets[--num], op);
	return ret;
}

static int one_row(const struct cairn_selected *s, void *arg)
{
	struct bench *b = arg;
	struct cairn_expected expected = { 0 };
	struct cairn_op op;
	int ret;

	if (s->what != CAIRN_SEL_CASE || (!b->opt->once && (!s->desc.bench || s->kind != CAIRN_KIND_NORMAL)))
		return 0;
	if (b->ceilings && !s->desc.ceiling)
		return 0;
	if (s->desc.device_only && (b->impl->flags & CAIRN_IMPL_HOST_MEM))
		return 0;
	fprintf(b->out, "B %s\n", s->name);
	if (cairn_op_open(&op, b->f, s->case_index, s->kind, b->opt->seed)) {
		fprintf(b->out, "F %s: %s\n", s->name, cairn_last_error());
		return 0;
	}
	cairn_op_verify(b->f, &op, b->impl, b->stream, &expected, &b->outcome);
	cairn_expected_free(&expected);
	switch (b->outcome.verdict) {
	case CAIRN_PASS:
		ret = bench_row(b, s, &op);
		if (ret)
			fprintf(b->out, "F %s\n", s->name);
		break;
	case CAIRN_SKIP:
		b->outcome.text[strcspn(b->outcome.text, "\n")] = 0;
		fprintf(b->out, "S %s: %s\n", s->name, b->outcome.text);
		ret = 0;
		break;
	default:
		ret = b->outcome.verdict == CAIRN_LOST ? -EIO : 0;
		fprintf(b->out, "F %s: wrong, so not timed: %s\n", s->name, strtok(b->outcome.text, "\n"));
	}
	cairn_op_close(&op);
	return ret == -EIO;
}

struct bench_pass {
	struct cairn_roofs *roofs;
	int ceilings;
};

/* The arguments of one process, which times a family on a table. */
struct bench_call {
	const struct cairn_options *opt;
	const struct cairn_family *f;
	const struct cairn_impl *impl;
	const struct bench_pass *pass;
	struct sink *sink;
};

static void bench_child(FILE *out, void *arg)
{
	const struct bench_call *call = arg;
	const struct cairn_options *opt = call->opt;
	const struct cairn_family *f = call->f;
	const struct cairn_impl *impl = call->impl;
	const struct bench_pass *pass = call->pass;
	struct cairn_options all = *opt;
	struct cairn_family unjudged;
	struct bench *b = calloc(1, sizeof(*b));
	int ret;

	if (!b)
		return;
	b->out = out;
	b->f = f;
	if (opt->once) {
		unjudged = *f;
		unjudged.exact = NULL;
		unjudged.judge = NULL;
		b->f = &unjudged;
	}
	b->impl = impl;
	b->opt = opt;
	b->roofs = pass->roofs;
	b->ceilings = pass->ceilings;
	if (b->ceilings)
		all.num_globs = 0;
	ret = cairn_impl_start(impl, opt->device);
	if (!ret)
		ret = impl->stream_create(&b->stream);
	if (!ret)
		ret = impl->event_create(&b->start);
	if (!ret)
		ret = impl->event_create(&b->end);
	if (!ret)
		ret = impl->device_info(&b->info);
	if (!ret && !b->ceilings && !opt->once && cairn_power_open(&b->card, impl))
		cairn_energy_unknown(&b->no_card);
	if (ret == -ENODEV)
		fprintf(out, "S %s: %s\n", f->name, cairn_impl_error(impl));
	else if (ret)
		fprintf(out, "F %s: %s\n", f->name, cairn_impl_error(impl));
	else
		cairn_each(&all, f, one_row, b);
	cairn_nvml_close(b->card);
	free(b);
}

#define MAX_ROWS	256	/* rows of a family */

struct sink {
	FILE *json;
	struct cairn_totals sum;
	const char *first;		/* name of the first table; NULL while that one is timed */
	struct {
		char name[96];
		double ns;
	} rows[MAX_ROWS];		/* the first table's times of the current family */
	int num_rows;
};

/* Takes CASE<TAB>NS<TAB>TEXT: prints TEXT, and the first table's speed relative to it. */
static void print_row(struct sink *s, char *text)
{
	char *end, *name = strtok_r(text, "\t", &end), *took = strtok_r(NULL, "\t", &end);
	double ns = took ? strtod(took, NULL) : 0;

	if (!took)
		return;
	if (!s->first && s->num_rows < MAX_ROWS) {
		snprintf(s->rows[s->num_rows].name, sizeof(s->rows[0].name), "%s", name);
		s->rows[s->num_rows++].ns = ns;
	}
	fputs(end, stdout);
	for (int i = 0; s->first && ns > 0 && i < s->num_rows; i++)
		if (!strcmp(s->rows[i].name, name))
			printf("  %s %.2fx", s->first, ns / s->rows[i].ns);
	putchar('\n');
}

static void bench_line(char *text, void *arg)
{
	struct sink *s = ((struct bench_call *)arg)->sink;

	if (text[0] != 'P') {
		cairn_bench_line(text, s->json, &s->sum);
		return;
	}
	s->sum.passed++;
	print_row(s, text + 2);
	fflush(stdout);
}

static int has_ceiling(const struct cairn_selected *s, void *arg)
{
	(void)arg;
	return s->what == CAIRN_SEL_CASE && s->desc.ceiling;
}

static void quiet_line(char *text, void *arg)
{
	if (text[0] == 'F' || text[0] == 'D')
		bench_line(text, arg);
}

static int has_op(const struct cairn_impl *impl, size_t offset)
{
	void *fn;

	memcpy(&fn, (const char *)impl + offset, sizeof(fn));
	return fn != NULL;
}

/* Returns whether to time only the operations of plug-ins: there is one, and the user has chosen no rows. */
static int is_vendors(const struct cairn_options *opt)
{
	int plugins = 0;

	for (int k = 0; k < opt->num_impls; k++)
		plugins += strchr(opt->impls[k], '/') != NULL;
	return plugins && !opt->num_globs;
}

static int is_wanted(const struct cairn_options *opt, const struct cairn_impl *impls,
		     const struct cairn_family *f)
{
	int have = 0;

	if (!is_vendors(opt))
		return cairn_family_selected(opt, f);
	for (int k = 0; f->num_cases && k < opt->num_impls; k++)
		have |= strchr(opt->impls[k], '/') && has_op(&impls[k], f->op);
	return have;
}

/* Makes one pass over families and tables; with pass->ceilings, only over the rows that set the ceilings. */
static void run_pass(const struct cairn_options *opt, const struct cairn_impl *impls, struct bench_pass *pass,
		     struct sink *sink)
{
	struct cairn_options all = *opt;

	all.num_globs = 0;
	for (const struct cairn_family *const *f = cairn_families(); *f; f++) {
		int wanted = pass->ceilings ? cairn_each(&all, *f, has_ceiling, NULL) :
			is_wanted(opt, impls, *f);

		sink->num_rows = 0;
		for (int k = 0; (*f)->num_cases && wanted && k < opt->num_impls; k++) {
			struct bench_call call;
			struct cairn_child child;
			const char *death;

			/* a table without the operation has no rows */
			if (!has_op(&impls[k], (*f)->op))
				continue;
			sink->first = k ? impls[0].name : NULL;
			call = (struct bench_call){ opt, *f, &impls[k], pass, sink };
			child = (struct cairn_child){ .run = bench_child, .arg = &call,
				.line = pass->ceilings ? quiet_line : bench_line,
				.timeout_s = cairn_timeout_s(opt, *f) };
			death = cairn_child_run(&child);
			if (!death)
				continue;
			printf("FAILED %s %s: %s\n", (*f)->name, impls[k].name, death);
			sink->sum.failed++;
		}
	}
}

int cairn_cmd_bench(const struct cairn_options *opt)
{
	struct cairn_impl impls[ARRAY_SIZE(opt->impls)];
	struct bench_pass pass = { NULL, 1 };
	struct sink sink = { 0 };
	int cases = 0, measures = 0, lost;

	for (const struct cairn_family *const *f = cairn_families(); *f; f++) {
		cases |= cairn_family_selected(opt, *f);
		measures |= !opt->once && !is_vendors(opt) && cairn_measures_selected(opt, *f);
	}
	if (!cases && !measures) {
		fprintf(stderr, "cairn bench: no case matches\n");
		return 2;
	}
	for (int k = 0; k < opt->num_impls; k++) {
		if (cairn_impl_open(opt->impls[k], &impls[k])) {
			fprintf(stderr, "cairn bench: %s\n", cairn_last_error());
			return 2;
		}
	}
	if (cairn_name_apart(opt, impls)) {
		fprintf(stderr, "cairn bench: %s\n", cairn_last_error());
		return 2;
	}
	pass.roofs = mmap(NULL, sizeof(*pass.roofs), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (pass.roofs == MAP_FAILED)
		return 2;
	if (opt->json && !(sink.json = fopen(opt->json, "a"))) {
		fprintf(stderr, "cairn bench: --json: %s: cannot be written\n", opt->json);
		return 2;
	}
	if (sink.json)
		setvbuf(sink.json, NULL, _IOLBF, 0);	/* whoever stops the bench keeps the rows so far */
	if (cases && !opt->once)
		run_pass(opt, impls, &pass, &sink);
	pass.ceilings = 0;
	run_pass(opt, impls, &pass, &sink);
	for (const struct cairn_family *const *f = cairn_families(); *f && measures; f++)
		cairn_measures(opt, *f, sink.json, &sink.sum);
	lost = cairn_close_output(sink.json, "bench", "json", opt->json);
	munmap(pass.roofs, sizeof(*pass.roofs));
	printf("%d %s, %d failed, %d skipped\n", sink.sum.passed, opt->once ? "called" : "timed",
	       sink.sum.failed, sink.sum.skipped);
	return sink.sum.failed || lost ? 1 : 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "conformance/check/check_child.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "conformance/check/check_scope.h"
#include "conformance/suite/op_case.h"
#include "conformance/device/side_memory.h"
#include "conformance/suite/threads.h"
#include "conformance/device/turn.h"
#include "conformance/tables/tables.h"

struct child {
	FILE *out;
	struct cairn_check_work work;
	const struct cairn_check_work *w;	/* &work */
	void *stream[CAIRN_MAX_IMPLS];
	char *no_device[CAIRN_MAX_IMPLS];	/* why every case of the table is skipped, or NULL */
	int started[CAIRN_MAX_IMPLS];
	int broken;				/* a table failed to start, not for want of a device */
	uint64_t seed;
	struct cairn_outcome outcome;
	double begun;
};

static double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void print_lines(FILE *out, const char *text)
{
	while (*text) {
		size_t n = strcspn(text, "\n");

		fprintf(out, "D %.*s\n", (int)n, text);
		text += n + (text[n] == '\n');
	}
}

static void begin(struct child *c, int k, int item)
{
	fprintf(c->out, "B %d %d\n", k, item);
	c->begun = now_s();
}

/* Shares the processors equally among the processes. least: the fewest threads that this one gets */
static void use_threads(const struct child *c, int least)
{
	int working = atomic_load(&c->w->shared->working);
	int threads = cairn_num_processors() / (working > 0 ? working : 1);

	threads = threads > least ? threads : least;
	if (!getenv("OMP_NUM_THREADS"))
		cairn_set_threads(threads > 0 ? threads : 1);
}

/* Runs a unit. In a family of operations, its result counts for every table, although it calls none. */
static void one_unit(struct child *c, const struct cairn_selected *s, int k, int item)
{
	char reason[256];

	begin(c, k, item);
	use_threads(c, 2);	/* one thread would hide what is wrong in a parallel loop */
	switch (cairn_unit_run(&c->w->f->units[s->case_index], c->seed, c->out, reason, sizeof(reason))) {
	case CAIRN_UNIT_PASS:
		fprintf(c->out, "P %d %d 0 1 %.6f\n", k, item, now_s() - c->begun);
		break;
	case CAIRN_UNIT_SKIP:
		fprintf(c->out, "S %d %d %s\n", k, item, reason);
		break;
	default:
		fprintf(c->out, "F %d %d %.6f\n", k, item, now_s() - c->begun);
	}
}

/* Returns why table k skips the case even before it is opened, or NULL. */
static const char *skip_reason(struct child *c, int k, const struct cairn_selected *s, int at)
{
	const struct cairn_impl *impl = &c->w->impls[k];

	if (c->no_device[k])
		return c->no_device[k];
	if (s->desc.device_only && (impl->flags & CAIRN_IMPL_HOST_MEM))
		return "too large for a host table";
	if (cairn_check_left_to_bench(c->w->opt, c->w->f, s))
		return "a large row, which cairn bench judges before it times it";
	if (c->w->takes && !c->w->takes[at])
		return "not of the selection of --sanitize";
	return NULL;
}

/* Reports the outcome of case s on table k. Returns whether the table can go on. */
static int report(struct child *c, int k, const struct cairn_selected *s, int item)
{
	const struct cairn_options *opt = c->w->opt;
	struct cairn_outcome *o = &c->outcome;
	double seconds = now_s() - c->begun;
	const char *waiver;

	if (o->verdict == CAIRN_SKIP && !o->exempt && cairn_list_match(&opt->mustpass, s->name)) {
		o->verdict = CAIRN_FAIL;
		fprintf(c->out, "D may not be skipped (--mustpass):\n");
	}
	if (o->verdict == CAIRN_FAIL && (waiver = cairn_list_match(&opt->waivers, s->name))) {
		print_lines(c->out, o->text);
		fprintf(c->out, "S %d %d waived: %s\n", k, item, waiver);
		return 1;
	}
	switch (o->verdict) {
	case CAIRN_PASS:
		fprintf(c->out, "P %d %d %.3g %lld %.6f\n", k, item, o->err_over_bound, (long long)o->judged,
			seconds);
		return 1;
	case CAIRN_SKIP:
		o->text[strcspn(o->text, "\n")] = 0;
		fprintf(c->out, "S %d %d %s\n", k, item, o->text);
		return 1;
	default:
		print_lines(c->out, o->text);
		fprintf(c->out, "F %d %d %.6f\n", k, item, seconds);
		return o->verdict != CAIRN_LOST;
	}
}

/*
 * Replaces this process's claim by `bytes` bytes of host memory. Returns 0 if that does not fit beside the
 * claims of the other processes. It always fits if they have none.
 */
static int try_claim(struct child *c, long long bytes, int anyway)
{
	struct cairn_check_shared *s = c->w->shared;
	long long room = sysconf(_SC_PHYS_PAGES) / 5 * 3 * sysconf(_SC_PAGESIZE), others = 0;
	int ok;

	if (pthread_mutex_lock(&s->memory) == EOWNERDEAD)
		pthread_mutex_consistent(&s->memory);
	for (int i = 0; i < CAIRN_CHECK_MAX_WORKERS; i++)
		others += i == c->w->slot ? 0 : s->claims[i];
	ok = anyway || others == 0 || bytes <= s->claims[c->w->slot] || others + bytes <= room;
	if (ok)
		s->claims[c->w->slot] = bytes;
	pthread_mutex_unlock(&s->memory);
	return ok;
}

/*
 * Waits until the claim fits. Processes that all wait to raise their claims would deadlock, so after a minute
 * a claim is granted in any case.
 */
static void claim(struct child *c, long long bytes)
{
	for (int tries = 1; !try_claim(c, bytes, tries == 60 * 50); tries++) {
		usleep(20000);
		if (tries % 50 == 0)
			fprintf(c->out, "W\n");
	}
}

/*
 * Returns the host memory that judging the case takes: its buffers, two images of them, and the value and
 * bound of each element of an output. (A table in device memory needs the buffers once more there.)
 */
static long long memory_of(const struct cairn_op *op)
{
	long long bytes = 0;

	for (int i = 0; i < op->num_bufs; i++) {
		const struct cairn_buf *b = &op->bufs[i];

		bytes += 3 * (long long)b->used;
		if (b->role != CAIRN_ROLE_IN)
			bytes += 16 * (long long)(b->used / cairn_dtype_bytes(b->dtype));
	}
	return bytes;
}

/*
 * Judges the case on table `first` and those after it. Returns whether the process can continue: it cannot if
 * a device was lost.
 */
static int one_case(struct child *c, int item, int first)
{
	const struct cairn_check_work *w = c->w;
	int at = w->order[item];
	const struct cairn_selected *s = &w->cases[at];
	struct cairn_expected expected = { 0 };
	struct cairn_op op = { 0 };
	const int large_share = cairn_num_processors() / 8;	/* a large case gets at least that many */
	int opened = 0, large = 0, going_on = 1;
	const char *reason;

	for (int k = first; k < w->num_impls && going_on; k++) {
		struct cairn_outcome *o = &c->outcome;

		if (atomic_load(&w->counter->dead[k]))
			continue;
		if ((reason = skip_reason(c, k, s, at))) {
			fprintf(c->out, "S %d %d %s\n", k, item, reason);
			continue;
		}
		if (!large && s->desc.device_only) {
			claim(c, 1 + (long long)s->desc.bytes);
			large = 1;
		}
		begin(c, k, item);
		use_threads(c, large ? large_share : 1);
		if (!cairn_check_has_op(&w->impls[k], w->f)) {
			o->verdict = CAIRN_SKIP;
			o->exempt = 0;
			snprintf(o->text, sizeof(o->text), "not in table %s\n", w->impls[k].name);
		} else if (s->what == CAIRN_SEL_REJECT) {
			cairn_op_reject(w->f, s->case_index, &w->impls[k], c->stream[k], c->seed, o);
		} else if (!opened && cairn_op_open(&op, w->f, s->case_index, s->kind, c->seed)) {
			o->verdict = CAIRN_FAIL;
			snprintf(o->text, sizeof(o->text), "%s\n", cairn_last_error());
		} else {
			if (!opened && large)
				claim(c, memory_of(&op));
			opened = 1;
			cairn_op_verify(w->f, &op, &w->impls[k], c->stream[k], &expected, o);
		}
		going_on = report(c, k, s, item);
		if (!going_on) {
			atomic_store(&w->counter->dead[k], 1);
			fprintf(c->out, "E %d the device was lost at %s\n", k, s->name);
		}
	}
	if (opened) {
		cairn_expected_free(&expected);
		cairn_op_close(&op);
	}
	if (large)
		claim(c, 0);
	return going_on;
}

/*
 * Starts the tables that are alive, unless they have been started for another family. A table that fails for
 * any reason other than a missing device is dead from then on. For collectives, the processes of the ranks
 * start the table instead (ranks.h).
 */
static void start_tables(struct child *c)
{
	const struct cairn_check_work *w = c->w;

	for (int k = 0; k < w->num_impls && w->f->num_cases && !w->f->comm_field; k++) {
		int ret;

		if (atomic_load(&w->counter->dead[k]) || c->started[k] || c->no_device[k])
			continue;
		fprintf(c->out, "I %d starting the table\n", k);
		ret = cairn_impl_start(&w->impls[k], w->opt->device);
		if (!ret)
			ret = w->impls[k].stream_create(&c->stream[k]);
		fprintf(c->out, "I -1\n");
		c->started[k] = !ret;
		if (!ret && !w->opt->sanitize)
			cairn_side_memory_keep(&w->impls[k]);
		if (!ret)
			continue;
		c->no_device[k] = strdup(cairn_impl_error(&w->impls[k]));
		if (ret != -ENODEV) {
			c->broken = 1;
			atomic_store(&w->counter->dead[k], 1);
			fprintf(c->out, "E %d the table does not start: %s (%d)\n", k, c->no_device[k], ret);
		}
	}
}

/* Runs cases of the family until none is left. Returns whether the process can continue. */
static int run_family(struct child *c)
{
	const struct cairn_check_work *w = c->w;
	int item, first = w->resume_impl, going_on = 1;

	start_tables(c);
	item = w->resume_item >= 0 ? w->resume_item : atomic_fetch_add(&w->counter->next, 1);
	for (; item < w->num_cases && going_on; item = atomic_fetch_add(&w->counter->next, 1)) {
		int at = w->order[item];

		fprintf(c->out, "T %d\n", item);
		c->seed = w->cases[at].seed;
		if (w->cases[at].what == CAIRN_SEL_UNIT) {
			for (int k = first; k < w->num_impls; k++)
				if (!atomic_load(&w->counter->dead[k]))
					one_unit(c, &w->cases[at], k, item);
		} else {
			going_on = one_case(c, item, first);
		}
		first = 0;
	}
	return going_on;
}

/* Asks the parent for another family. Returns its index, or -1. */
static int next_family(struct child *c)
{
	sem_t *given = &c->w->shared->next[c->w->slot].given;

	if (!cairn_check_shares(c->w) || c->broken)
		return -1;
	fprintf(c->out, "N\n");
	while (sem_wait(given))		/* interrupted by a signal; the parent's death ends this process */
		;
	return c->w->shared->next[c->w->slot].group;
}

static void stop_tables(struct child *c)
{
	for (int k = 0; k < c->w->num_impls; k++) {
		if (c->started[k]) {
			fprintf(c->out, "I %d stopping the table\n", k);
			cairn_side_memory_drop(&c->w->impls[k]);
			if (c->stream[k])
				c->w->impls[k].stream_destroy(c->stream[k]);
			cairn_impl_stop(&c->w->impls[k]);
		}
		free(c->no_device[k]);
	}
	fprintf(c->out, "I -1\n");
}

void cairn_check_child(FILE *out, const struct cairn_check_work *w,
		       const struct cairn_check_work *(*by_index)(void *arg, int index), void *arg)
{
	struct child *c = calloc(1, sizeof(*c));
	int going_on, next;

	if (!c)
		exit(3);
	c->out = out;
	c->work = *w;
	c->w = &c->work;
	cairn_turn_share(w->shared->device, w->slot, out);
	while ((going_on = run_family(c)) && (next = next_family(c)) >= 0) {
		c->work = *by_index(arg, next);
		c->work.slot = w->slot;
	}
	stop_tables(c);
	free(c);
	if (!going_on)
		exit(4);
}

// SPDX-License-Identifier: Apache-2.0
/* ranks_case - what one rank does in a case of a collective */
#include "conformance/suite/ranks.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "conformance/suite/random.h"
#include "conformance/tables/tables.h"

#define HEAP		((size_t)8192)
#define ABORT_TIMEOUT_MS	60000	/* so long that the abort must end the wait */
#define SLACK_S		10.0		/* a busy machine may be this late */
#define CALLS		6		/* calls back to back */
#define HELD_CALLS	4		/* calls back to back; the second one is held */

/* The communicator of the case under way. */
static struct cairn_comm comm;
static void *stream;

static double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

void cairn_ranks_place(struct cairn_op *op, const struct cairn_family *f)
{
	struct cairn_comm of = comm;

	if (!f->comm_field)
		return;
	if (!cairn_ranks_inside())
		of = (struct cairn_comm){ NULL, 0, f->ranks(op->case_index) };
	op->rank = of.rank;
	op->ranks = of.ranks;
	memcpy((char *)op->args + f->comm_field, &of, sizeof(of));
}

int cairn_ranks_exact(const struct cairn_family *f, const struct cairn_op *op, struct cairn_exact *exact)
{
	const struct cairn_comm mine = comm;
	const void *args[CAIRN_COMM_MAX_RANKS];
	struct cairn_op ops[CAIRN_COMM_MAX_RANKS];
	int32_t open;
	int ret = 0;

	for (open = 0; open < mine.ranks && !ret; open++) {
		comm.rank = open;
		ret = cairn_op_open(&ops[open], f, op->case_index, op->kind, op->seed);
		if (ret)
			break;
		if (op->relisted)
			f->relist(ops[open].args);
		args[open] = ops[open].args;
	}
	comm = mine;
	if (!ret)
		ret = f->exact_ranks(args, mine.rank, exact);
	while (open > 0)
		cairn_op_close(&ops[--open]);
	return ret;
}

void cairn_ranks_settle(const struct cairn_family *f, struct cairn_outcome *o)
{
	int32_t mine = (int32_t)o->verdict, all[CAIRN_COMM_MAX_RANKS];

	if (!f->comm_field)
		return;
	if (cairn_ranks_exchange(NULL, &mine, all, sizeof(mine))) {
		o->verdict = CAIRN_FAIL;
		cairn_say(o, "%s\n", cairn_last_error());
		return;
	}
	for (int32_t r = 0; r < comm.ranks; r++)
		if (all[r] != CAIRN_PASS && o->verdict == CAIRN_PASS)
			o->verdict = all[r] == CAIRN_SKIP ? CAIRN_SKIP : CAIRN_FAIL;
}

/* ---- outputs that are equal on all ranks ---- */

static void check_agree(const struct cairn_more *m)
{
	uint64_t all[CAIRN_COMM_MAX_RANKS], mine;

	for (size_t k = 0; k < ARRAY_SIZE(m->f->agree) && m->f->agree[k]; k++) {
		int at = cairn_buf_of(m->op, m->f->agree[k]);

		if (at < 0)
			continue;
		mine = 0xcbf29ce484222325u;
		for (size_t i = 0; i < m->op->bufs[at].bytes; i++)
			mine = (mine ^ m->own[at][CAIRN_CANARY + i]) * 0x100000001b3u;
		if (cairn_ranks_exchange(NULL, &mine, all, sizeof(mine))) {
			m->o->verdict = CAIRN_FAIL;
			cairn_say(m->o, "%s\n", cairn_last_error());
			return;
		}
		for (int32_t r = 0; r < comm.ranks; r++) {
			if (all[r] == mine)
				continue;
			m->o->verdict = CAIRN_FAIL;
			cairn_say(m->o, "%s: its bits differ from those of rank %d\n", m->op->bufs[at].name,
				  r);
			break;
		}
	}
}

/* ---- calls back to back ---- */

static const struct cairn_round calm = { .canary = 0x4b, .workspace = 0x5a };

/*
 * Returns the inputs of call i. Calls that are two apart use the same mailbox, so their inputs differ. The
 * held call has other inputs than those around it.
 */
static const struct cairn_op *inputs_of(const struct cairn_more *m, int i, int held)
{
	return (held ? i == 1 : i & 2) ? m->other : m->op;
}

static int make_calls(const struct cairn_more *m, struct cairn_side *sides)
{
	for (int i = 0; i < CALLS; i++) {
		/* in two calls a rank is late: it finds the others' next messages, they find its old ones */
		if ((i == 1 && comm.rank == m->op->case_index % comm.ranks) ||
		    (i == 4 && comm.rank == (m->op->case_index + 1) % comm.ranks))
			usleep(1000);
		CAIRN_TRY(cairn_side_call_round(&sides[i], m->f, &calm));
	}
	return m->side->impl->stream_sync(m->side->stream);
}

static void hold(void)
{
	cairn_ranks_hold(HELD_CALLS);
}

/* Makes several calls. In one of them, every access to a page of one rank's memory waits for the others. */
static int make_held_calls(const struct cairn_more *m, struct cairn_side *sides)
{
	const int mine = comm.rank == (m->op->case_index + 2) % comm.ranks;
	int32_t all[CAIRN_COMM_MAX_RANKS];
	int ret;

	cairn_ranks_count_from_0();
	ret = cairn_ranks_exchange(NULL, &comm.rank, all, sizeof(comm.rank));
	if (mine)
		cairn_side_hold(&sides[1], m->op, hold);
	for (int i = 0; i < HELD_CALLS && !ret; i++) {
		ret = cairn_side_call_round(&sides[i], m->f, &calm);
		cairn_ranks_count_call();
	}
	if (mine)
		cairn_side_release(&sides[1], m->op);
	return ret;
}

/*
 * Makes calls with different inputs, in memory of their own, without a wait between them; judges each. A held
 * call may fail: the kernel cannot read held memory for a table that moves data by system calls.
 */
static void call_back_to_back(const struct cairn_more *m, struct cairn_expected *theirs, int held)
{
	const struct cairn_round round = { .canary = calm.canary, .workspace = calm.workspace,
					   .apart = held };
	const int calls = held ? HELD_CALLS : CALLS;
	struct cairn_side sides[CALLS];
	int open, ret = 0, failed = 0;

	for (open = 0; open < calls && !ret; open++) {
		const struct cairn_op *op = inputs_of(m, open, held);

		ret = cairn_side_open_guarded(&sides[open], m->f, op, m->side->impl, m->side->stream);
		if (ret)
			break;
		ret = cairn_side_send(&sides[open], m->f, op, &round, 0);
	}
	if (!ret && held)
		failed = make_held_calls(m, sides);
	else if (!ret)
		ret = make_calls(m, sides);
	for (int i = 0; i < calls && !ret && !failed; i++) {
		const struct cairn_op *op = inputs_of(m, i, held);

		ret = cairn_side_fetch(&sides[i], op, m->later);
		if (!ret)
			cairn_check_memory(&sides[i], op, m->later, &calm, m->o);
		if (!ret)
			cairn_judge_call(m->f, op, m->later, op == m->op ? m->expected : theirs, m->o);
		if (m->o->verdict != CAIRN_PASS) {
			cairn_say(m->o, "in call %d of %d back to back%s\n", i + 1, calls, held ?
				  ", while a rank was kept waiting in the middle of a copy" : "");
			break;
		}
	}
	if (ret)
		cairn_call_failed(m->o, m->side->impl, ret, "calls back to back");
	while (open > 0)
		cairn_side_close(&sides[--open], m->op);
}

void cairn_ranks_further(const struct cairn_more *m)
{
	struct cairn_expected theirs = { 0 };

	if (!m->f->comm_field)
		return;
	cairn_ranks_settle(m->f, m->o);
	if (m->o->verdict != CAIRN_PASS)
		return;
	check_agree(m);
	cairn_ranks_settle(m->f, m->o);
	if (m->o->verdict == CAIRN_PASS && m->cheap)
		call_back_to_back(m, &theirs, 0);
	cairn_ranks_settle(m->f, m->o);
	if (m->o->verdict == CAIRN_PASS && m->cheap && m->op->kind == CAIRN_KIND_NORMAL && comm.ranks > 1 &&
	    cairn_side_is_guarded(m->side->impl))
		call_back_to_back(m, &theirs, 1);
	cairn_expected_free(&theirs);
}

/* ---- trouble ---- */

static void fail(struct cairn_outcome *o, const char *what)
{
	o->verdict = CAIRN_FAIL;
	cairn_say(o, "%s: %s\n", what, cairn_last_error());
}

/* Writes into the own heap, if the table has heaps, and reads the same place of all ranks' heaps. */
static int check_heap(const struct cairn_ranks_work *w, struct cairn_outcome *o)
{
	const struct cairn_impl *t = &w->impl;
	int32_t all[CAIRN_COMM_MAX_RANKS];
	uint64_t mine = 0x1234567u * (uint64_t)(comm.rank + 1), got[HEAP / 8];
	int bad = 0;
	char *base;

	if (!t->comm_heap)
		return 0;
	if (t->comm_heap(&comm, comm.rank, (void **)&base) ||
	    t->mem_copy(got, base, HEAP, CAIRN_COPY_TO_HOST, stream) || t->stream_sync(stream))
		return fail(o, "comm_heap"), 1;
	for (size_t i = 0; i < ARRAY_SIZE(got); i++)
		bad |= got[i] != 0;
	if (bad || (uintptr_t)base % 256)
		return cairn_error(EIO, "not zeroed, or not aligned to 256 bytes"), fail(o, "comm_heap"), 1;
	if (t->mem_copy(base + HEAP - 8, &mine, 8, CAIRN_COPY_TO_DEVICE, stream) || t->stream_sync(stream) ||
	    cairn_ranks_exchange(NULL, &comm.rank, all, sizeof(comm.rank)))
		return fail(o, "comm_heap"), 1;
	for (int32_t r = 0; r < comm.ranks; r++) {
		uint64_t theirs = 0;

		if (t->comm_heap(&comm, r, (void **)&base) ||
		    t->mem_copy(&theirs, base + HEAP - 8, 8, CAIRN_COPY_TO_HOST, stream) ||
		    t->stream_sync(stream))
			return fail(o, "comm_heap of another rank"), 1;
		if (theirs != 0x1234567u * (uint64_t)(r + 1)) {
			o->verdict = CAIRN_FAIL;
			cairn_say(o, "comm_heap: rank %d's heap does not hold what it wrote\n", r);
		}
	}
	return o->verdict != CAIRN_PASS;
}

/* Calls while the last rank makes trouble. Returns 0 if the call failed as it must. */
static int check_call(const struct cairn_ranks_work *w, struct cairn_side *side, const char *which,
		      struct cairn_outcome *o)
{
	const struct cairn_impl *t = &w->impl;
	const int want = w->trouble == CAIRN_TROUBLE_ABORT ? -ECANCELED : -ETIMEDOUT;
	double begun = now_s(), least = 0;
	char last[24];
	int ret = cairn_side_call_round(side, w->f, &calm), sync = t->stream_sync(stream);
	int error = t->comm_error(&comm);
	/* a table need not have texts */
	const char *text = t->last_error ? cairn_impl_error(t) : "no last_error";
	int named;

	begun = now_s() - begun;
	if (want == -ETIMEDOUT && !strcmp(which, "first"))
		least = CAIRN_RANKS_TIMEOUT_MS * 0.9e-3;
	snprintf(last, sizeof(last), "rank %d", w->ranks - 1);
	named = !t->last_error || (strstr(text, w->f->name) &&
				   (w->trouble == CAIRN_TROUBLE_ABORT || strstr(text, last)));
	if ((ret == 0 || ret == want) && !sync && error == want && begun >= least && begun < SLACK_S && named)
		return 0;
	o->verdict = CAIRN_FAIL;
	cairn_say(o, "the %s call returned %d, the stream %d, comm_error %d after %.2f s (%s); want %d, "
		  "after at least %.2f s, and %s named\n", which, ret, sync, error, begun, text, want, least,
		  last);
	return 1;
}

static void make_trouble(const struct cairn_ranks_work *w, const struct cairn_op *op,
			 struct cairn_outcome *o)
{
	int32_t all[CAIRN_COMM_MAX_RANKS];
	struct cairn_side side;
	int ret = cairn_side_open_guarded(&side, w->f, op, &w->impl, stream);

	if (ret || (ret = cairn_side_send(&side, w->f, op, &calm, 0))) {
		cairn_call_failed(o, &w->impl, ret, "setting up");
		return;
	}
	if (cairn_ranks_exchange(NULL, &comm.rank, all, sizeof(comm.rank)))
		fail(o, "before the trouble");
	else if (comm.rank < w->ranks - 1)
		(void)(check_call(w, &side, "first", o) || check_call(w, &side, "next", o));
	else if (w->trouble == CAIRN_TROUBLE_KILLED)
		raise(SIGKILL);
	else if (w->trouble == CAIRN_TROUBLE_ABORT)
		usleep(20000), w->impl.comm_abort(&comm);
	/* a communicator is closed when no rank has a call under way */
	if (w->trouble != CAIRN_TROUBLE_KILLED &&
	    cairn_ranks_exchange(NULL, &comm.rank, all, sizeof(comm.rank)))
		fail(o, "after the trouble");
	cairn_side_close(&side, op);
}

/* ---- a case ---- */

/* Starts the table on this rank's device, once. Returns 0, or a positive number if the case is skipped. */
static int start_table(const struct cairn_ranks_work *w, int32_t rank, struct cairn_outcome *o)
{
	static int (*started)(int device);
	int device = w->impl.flags & CAIRN_IMPL_HOST_MEM ? 0 : rank, ret;

	if (stream && started == w->impl.init)
		return 0;
	ret = cairn_impl_start(&w->impl, device);
	if (ret && device == 1)		/* a single device holds two ranks */
		ret = cairn_impl_start(&w->impl, 0);
	if (!ret)
		ret = w->impl.stream_create(&stream);
	if (!ret) {
		started = w->impl.init;
		return 0;
	}
	o->verdict = ret == -ENODEV || device > 0 ? CAIRN_SKIP : CAIRN_FAIL;
	o->exempt = 1;
	if (device)
		cairn_say(o, "%d ranks need %d devices: %s\n", w->ranks, w->ranks,
			  cairn_impl_error(&w->impl));
	else
		cairn_say(o, "%s\n", cairn_impl_error(&w->impl));
	return 1;
}

static int open_comm(const struct cairn_ranks_work *w, int32_t rank, struct cairn_outcome *o)
{
	const struct cairn_comm_args a = {
		.size = sizeof(a), .exchange = cairn_ranks_exchange, .heap_bytes = HEAP, .rank = rank,
		.ranks = w->ranks,
		.timeout_ms = w->trouble == CAIRN_TROUBLE_NONE ? 0 :
			      w->trouble == CAIRN_TROUBLE_ABORT ? ABORT_TIMEOUT_MS : CAIRN_RANKS_TIMEOUT_MS,
	};
	int ret;

	if (!w->impl.comm_open) {
		o->verdict = CAIRN_SKIP;
		cairn_say(o, "comm_open: not in table %s\n", w->impl.name);
		return 1;
	}
	ret = w->impl.comm_open(&a, &comm);
	return ret ? cairn_call_failed(o, &w->impl, ret, "comm_open") : 0;
}

static void run_case(const struct cairn_ranks_work *w, struct cairn_outcome *o)
{
	struct cairn_expected expected = { 0 };
	struct cairn_op op;

	if (cairn_op_open(&op, w->f, w->case_index, w->kind, w->seed)) {
		fail(o, "setting up");
		return;
	}
	if (w->trouble == CAIRN_TROUBLE_NONE)
		cairn_op_verify(w->f, &op, &w->impl, stream, &expected, o);
	else if (!check_heap(w, o))
		make_trouble(w, &op, o);
	cairn_expected_free(&expected);
	cairn_op_close(&op);
}

void cairn_ranks_run(const struct cairn_ranks_work *w, int32_t rank, struct cairn_outcome *o)
{
	int32_t all[CAIRN_COMM_MAX_RANKS];

	comm = (struct cairn_comm){ NULL, rank, w->ranks };
	start_table(w, rank, o);
	cairn_ranks_settle(w->f, o);
	if (o->verdict != CAIRN_PASS || open_comm(w, rank, o))
		return;
	if (w->is_reject)
		cairn_op_reject(w->f, w->case_index, &w->impl, stream, w->seed, o);
	else
		run_case(w, o);
	/* no rank closes while another one's calls are under way */
	if (w->trouble == CAIRN_TROUBLE_NONE)
		cairn_ranks_exchange(NULL, &rank, all, sizeof(rank));
	w->impl.comm_close(&comm);
}

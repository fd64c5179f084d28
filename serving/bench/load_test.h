/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_test - many requests of one length through an engine, and the time their tokens take.
 * Include conformance/harness.h first.
 *
 * The load is that of a server which has been busy for long. With rows a step, prompts of `in` tokens and
 * answers of `out`, rows * out / (in + out) sequences decode at any time. So many requests begin, of such
 * lengths that they are spread evenly over their answers when the last of them has begun. From then on tokens
 * are counted, until nobody waits any more.
 */
#ifndef CAIRN_LOAD_TEST_H
#define CAIRN_LOAD_TEST_H

#include "serving/engine/engine.h"

struct load {
	int32_t in, out, rows;		/* of a request; of a step */
	int32_t max_batch, num_requests, page_size;	/* 0: 16 */
	int32_t host_pages;		/* not 0: all KV is offloaded there */
	double max_s;			/* of the counting; 0: until nobody waits */
	int (*at_end)(struct cairn_engine *e, void *ctx);	/* while it is still busy; may be NULL */
	void *ctx;
};

/* A step, us from the beginning of the first one: what the host did when, and the pass it waited for. */
struct load_step {
	double at, plan, launch, wait, report;	/* one after the other, from `at` on */
	double begin, end;			/* the pass's, on the device */
};

enum { LOAD_STEPS = 16 };

struct load_result {
	int64_t steps, prompt_tokens, new_tokens;	/* in the time counted */
	double seconds, fill_seconds;
	double idle_share, max_idle_us;			/* of the device, between passes */
	double plan_us, launch_us, report_us;	/* of the host, a step, at the median; p95 of their sum */
	double host_us, host_p95_us;
	double running;					/* sequences, at the mean */
	int64_t graph_steps, preempted;
	int64_t offloaded, layer_offloads;		/* pages; of them layer by layer */
	int32_t num_finished, num_wrong;		/* answers that were not of the length asked for */
	/* the last steps counted. The clocks of host and device meet where the host had waited for a pass:
	 * that ended then */
	struct load_step last[LOAD_STEPS];
	int32_t num_last;
};

/* A shape with random weights on the GPU: 0, or it is not there, and the test skips or has failed. */
int load_open(struct cairn_test *t, const char *shape, struct cairn_impl *impl, struct cairn_model **m);

/* 0, or -errno with the text. The engine has pages enough for max_batch sequences. */
int load_run(struct cairn_test *t, struct cairn_model *m, const struct load *load, struct load_result *r);

#endif

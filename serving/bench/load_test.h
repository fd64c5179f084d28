/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_test - runs many requests of one length through an engine and measures its throughput
 *
 * Include conformance/harness.h first. The load is that of a server in a steady state. With `rows` rows per
 * step, prompts of `in` tokens and answers of `out`, rows * out / (in + out) sequences decode at any time.
 * The load begins with a first wave of that many requests. Their lengths are chosen so that, once the last of
 * them has begun, their progress is spread evenly over an answer. Tokens are counted from then on until no
 * request is waiting.
 */
#ifndef CAIRN_LOAD_TEST_H
#define CAIRN_LOAD_TEST_H

#include "conformance/tables/energy.h"
#include "serving/engine/engine.h"

struct load {
	int32_t in, out, rows;		/* tokens per prompt; tokens per answer; rows per step */
	int32_t max_batch, num_requests, page_size;	/* page_size 0: 16 */
	int32_t host_pages;		/* size of a host tier to which all KV is offloaded; 0: none */
	const struct cairn_nano_plans *nano;	/* NULL: passes are sequential */
	double max_s;			/* counted time; 0: until no request waits */
	int (*at_end)(struct cairn_engine *e, void *ctx);	/* called while e is busy; may be NULL */
	void *ctx;
};

/*
 * A step's phases on the host and the pass it waited for, in us. at, begin and end count from the start of
 * the first recorded step.
 */
struct load_step {
	double at, plan, launch, wait, report;	/* start; lengths of the consecutive phases */
	double begin, end;			/* begin and end of the pass on the device */
};

enum { LOAD_STEPS = 16 };

struct load_result {
	int64_t steps, prompt_tokens, new_tokens;	/* in the counted time */
	double seconds, fill_seconds;
	struct cairn_energy energy;			/* of the device in the counted time */
	double idle_share, max_idle_us;			/* device idle time between passes */
	double plan_us, launch_us, report_us;	/* host time per step, medians */
	double host_us, host_p95_us;		/* their sum: median and p95 */
	double running;					/* mean number of decoding sequences */
	int64_t graph_steps, nano_steps, preempted;
	int64_t offloaded, layer_offloads;		/* pages; those of them offloaded layer by layer */
	int32_t num_finished, num_wrong;		/* num_wrong: answers of a wrong length */
	/*
	 * the last counted steps; host and device times are aligned at the end of the first step's wait,
	 * where its pass ends
	 */
	struct load_step last[LOAD_STEPS];
	int32_t num_last;
};

/*
 * Opens a shape with random weights on the GPU. Returns 0, or nonzero if the test is skipped or has failed.
 */
int load_open(struct cairn_test *t, const char *shape, struct cairn_impl *impl, struct cairn_model **m);
int load_open_as(struct cairn_test *t, const char *shape, enum cairn_weights weights, enum cairn_kv_form kv,
		 struct cairn_impl *impl, struct cairn_model **m);

/*
 * Runs the load on an engine with enough pages for max_batch sequences. Returns 0, or -errno with the error
 * text set.
 */
int load_run(struct cairn_test *t, struct cairn_model *m, const struct load *load, struct load_result *r);

#endif

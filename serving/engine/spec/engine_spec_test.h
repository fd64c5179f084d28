/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_spec_test - random requests, run without speculation and then with a drafter that knows the answers
 *
 * The drafter is right as often as it is told to be, so that every number of accepted drafts occurs.
 */
#ifndef CAIRN_ENGINE_SPEC_TEST_H
#define CAIRN_ENGINE_SPEC_TEST_H

#include "conformance/harness.h"
#include "serving/engine/engine_naive_test.h"

enum { JOBS = 10, PROMPT = 60, NEW = 40, ANSWERS = 3 };

struct job {
	struct cairn_request r;
	int32_t prompt[PROMPT], stop_ids[3];
	struct cairn_logit_bias bias[2];
	int stop_at, cancel_at, end_at;		/* as in struct answer */
	struct answer want[ANSWERS], got[ANSWERS];
};

struct crowd {
	struct cairn_model *m, *drafter;	/* drafter: NULL: the drafts are made from the answers */
	struct cairn_draft_head *head;	/* not NULL: it drafts */
	enum cairn_speculate method;	/* with head: EAGLE3 or MTP */
	struct cairn_engine_options opt;
	struct job jobs[JOBS];
	double right;			/* share of the drafts that are right */
	uint64_t seed;
	struct cairn_engine_stats stats;	/* of the last run; the following are sums */
	int64_t tokens, accepted, drafts, fused;
	int64_t swapped, recomputed, trees, moved;
	int num_jobs, silent, by_ngram;	/* silent: the drafter proposes nothing */
	int32_t depth;			/* maximum drafts; 0: random, and sometimes as many as pay */
	int32_t branches;		/* 0: chains; otherwise trees, of random shapes */
	struct cairn_speculation run;	/* options of this run */
	int may_fail;			/* the drafter may see another answer than that of the first run */
};

/* Returns a random number below n. */
int32_t crowd_below(struct crowd *c, int32_t n);
void crowd_make_engine(struct crowd *c);	/* random options */
void crowd_make_job(struct crowd *c, int i);
/* One request that samples, whose drafts are all right: then only its drafted rows can go wrong. */
void crowd_make_single(struct crowd *c, int max_new);
/* Runs all jobs, with speculation if again; some arrive while others decode. */
void crowd_run(struct cairn_test *t, struct crowd *c, int again);
/* Compares the answers of both runs, bit for bit. */
void crowd_compare(struct cairn_test *t, struct crowd *c);
int crowd_same(const struct answer *a, const struct answer *b);
/* Runs random engines with random requests, `rounds` times. */
void crowd_rounds(struct cairn_test *t, struct crowd *c, int rounds);
/* Opens a model for crowd_rounds(). */
void crowd_of_model(struct cairn_test *t, const char *table, const char *model, enum cairn_kv_form kv,
		    int32_t branches, int rounds);
/* Opens a crowd of one request with n tokens, none of which ends it. */
struct crowd *crowd_open_single(struct cairn_test *t, struct cairn_impl *impl, struct golden *g, int n);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * search_profile - measured times of operations, alone and in pairs
 *
 * A profile is a file of JSON lines, one for each measurement on one GPU with one build of the kernels:
 *
 *   {"v":1,"op":"interference","case":"gate_up_m512","impl":"cuda","how":"alone","sms_a":132,
 *    "alone_a_ns":271000,"tflops_a":705.1,"gpu":"...","kernels":"..."}
 *   {"v":1,"op":"interference","case":"gate_up_m512__dec_b170_kv1280","impl":"cuda","how":"queue",
 *    "sms_a":92,"sms_b":40,"alone_a_ns":..,"alone_b_ns":..,"pair_a_ns":..,"pair_b_ns":..,"r":..,"p":..}
 *
 * case         one operation, or two that run together, separated by two underscores; a case of three is a
 *              check of the others, and is not read further
 * NAME_mROWS   an operation of the pipeline (search_pipeline.h) for that many rows, with the light operations
 *              that it covers; all_reduce_mROWS stands for all collectives of a layer of one of several ranks
 * dec_bBATCH_kvCONTEXT   attention of BATCH decoding requests with CONTEXT cached tokens each
 * pre_mROWS_kvCONTEXT    attention of ROWS rows of prompts with CONTEXT keys each
 * how          alone; in pairs streams, priority, green, queue or coresident: how the two share the GPU.
 *              priority: two streams, the second operation's of the higher priority
 * sms_a, sms_b SMs of each
 * alone_X_ns   time of one call alone, by its fastest form; in an alone row on sms_a SMs
 * pair_X_ns    time of one call while the other one runs
 * gpu, impl    the device and the table; like kernels, the same in all rows
 * kernels      digest of the operations' sources (program.h)
 * shape        digest of the model's sizes (search_pipeline.h); if absent, the profile fits all models
 * r, p         alone_a_ns / pair_a_ns and alone_b_ns / pair_b_ns
 *
 * tflops_a, gbps_b and, in alone rows, gbps_a are optional: rates of the alone best, whose largest values
 * tell operations bound by arithmetic from those bound by memory. So is at_s, seconds since the profile
 * began. Other members are ignored. If two rows measure the same thing, the last one counts.
 *
 * Errors: -EINVAL: the text names file, line and member. -EIO, -ENOMEM.
 */
#ifndef CAIRN_SEARCH_PROFILE_H
#define CAIRN_SEARCH_PROFILE_H

#include <stddef.h>
#include <stdint.h>

#define CAIRN_SEARCH_NAME		24	/* bytes of an operation's name, including its NUL */
#define CAIRN_SEARCH_ALL_REDUCE	"all_reduce"
#define CAIRN_SEARCH_MOST_SMS	1024
#define CAIRN_SEARCH_MOST_ROWS	(1 << 20)

enum cairn_search_kind {		/* what bounds an operation */
	CAIRN_SEARCH_COMPUTE, CAIRN_SEARCH_MEMORY, CAIRN_SEARCH_NETWORK,
	CAIRN_NUM_SEARCH_KINDS
};

enum cairn_search_how {
	CAIRN_SEARCH_ALONE, CAIRN_SEARCH_STREAMS, CAIRN_SEARCH_GREEN, CAIRN_SEARCH_QUEUE,
	CAIRN_SEARCH_CORESIDENT, CAIRN_SEARCH_PRIORITY,
	CAIRN_NUM_SEARCH_HOWS
};
extern const char *const cairn_search_how_names[];	/* ends with NULL */
extern const char *const cairn_search_kind_names[];

struct cairn_search_time {	/* one operation alone */
	char op[CAIRN_SEARCH_NAME];
	int32_t rows, context;	/* context 0: not attention */
	int32_t sms;
	double ms;
};

struct cairn_search_pair {	/* an operation bound by arithmetic, and one of another kind */
	char op[CAIRN_SEARCH_NAME];	/* the first one */
	double ms;			/* its time alone */
	enum cairn_search_kind other;
	enum cairn_search_how how;
	int32_t sms_a, sms_b;
	double r, p;		/* in (0, 1] */
};

struct cairn_search_profile {
	char gpu[96], impl[64], kernels[32];
	char shape[64];		/* "": no row has it */
	struct cairn_search_time *times;
	struct cairn_search_pair *pairs;
	int32_t num_times, num_pairs;
	int32_t sms;		/* most SMs of an alone row */
	double tflops, gbps;	/* the largest; 0: no row has it */
	double seconds;		/* that measuring took, by the rows' largest at_s; 0: no row has it */
};

int cairn_search_profile_read(struct cairn_search_profile **out, const char *path);
/* The same for a file in memory; path: its name in messages. */
int cairn_search_profile_parse(struct cairn_search_profile **out, const char *text, size_t num_bytes,
			       const char *path);
void cairn_search_profile_free(struct cairn_search_profile *profile);	/* NULL is legal */

/* Sets *ms to the time of an operation alone on all SMs. -EINVAL: no such row; the text names it. */
int cairn_search_profile_ms(const struct cairn_search_profile *profile, const char *op, int32_t rows,
			    double *ms);

/*
 * Attention alone takes base_ms + slope_ms * (rows * context): the line with the least squared relative
 * errors through the rows of `op`, "dec" or "pre"; if its base were below 0, the line through 0.
 */
struct cairn_search_line {
	double base_ms, slope_ms;
	double worst;		/* largest relative error of the line at a row */
};
/* -EINVAL: fewer than two rows, or time does not grow with the keys. */
int cairn_search_profile_line(const struct cairn_search_profile *profile, const char *op,
			      struct cairn_search_line *line);
int cairn_search_profile_has(const struct cairn_search_profile *profile, const char *op);

/*
 * The table from R to P (NanoFlow, table 3): an operation of kind `other` that leaves the share 1 - r to
 * operations bound by arithmetic runs at p of its speed. A level is a setting, which is how pairs share the
 * GPU and on how many SMs; its r and p are means over all pairs of the setting, weighted by how long their
 * first operations take alone. The best pair of a setting would promise a speed that the others do not have.
 * Level 0 is R = P = 1, the operation alone; the others descend in R and in P, because settings that are
 * worse in both are dropped. If more than max remain, those that lie nearest to their neighbours are dropped.
 */
struct cairn_search_level {
	double r, p;
	enum cairn_search_how how;
	int32_t sms;		/* of this operation; the other one may use other_sms */
	int32_t other_sms;
};
/* hows: bits of enum cairn_search_how to use. Returns the number of levels, at least 1, or -ENOMEM. */
int32_t cairn_search_curve(const struct cairn_search_profile *profile, enum cairn_search_kind other,
			   unsigned hows, struct cairn_search_level *levels, int32_t max);
/*
 * Returns the share of its speed that operation `op` keeps beside one of kind `other` at a level of the
 * table: the mean over its own pairs of that setting, or 1 - r if the profile has none.
 */
double cairn_search_keeps(const struct cairn_search_profile *profile, const char *op,
			  enum cairn_search_kind other, const struct cairn_search_level *level);

#endif

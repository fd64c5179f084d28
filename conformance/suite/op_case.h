/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_case - one case of an operation: its buffers on the host, its copies beside an implementation
 *
 * Every buffer lies between two canaries of 256 bytes, all ones: NaN to every float type, -1 to
 * integers, so that a stray read shows in the result and a stray write in the canary.
 */
#ifndef CAIRN_OP_CASE_H
#define CAIRN_OP_CASE_H

#include "conformance/harness.h"

#define CAIRN_CANARY	256

enum cairn_role { CAIRN_ROLE_IN, CAIRN_ROLE_OUT, CAIRN_ROLE_INOUT };

struct cairn_buf {
	size_t field;		/* offset of its pointer in the argument struct */
	int dtype;
	int64_t count;
	enum cairn_role role;
	size_t bytes;		/* without canaries */
	uint8_t *base;		/* canary, data, canary */
};

/* The case's arguments beside one implementation. */
struct cairn_side {
	const struct cairn_impl *impl;
	void *stream;
	void *args;		/* pointers into base[] */
	uint8_t **base;
	void *workspace;
	size_t workspace_bytes;
};

enum cairn_verdict { CAIRN_PASS, CAIRN_FAIL, CAIRN_SKIP, CAIRN_LOST /* failed, and the device with it */ };

struct cairn_outcome {
	enum cairn_verdict verdict;
	double err_over_bound;	/* worst element */
	int64_t judged;		/* elements compared */
	char text[1024];	/* why, one line each */
	char extra[256 * 1024];	/* JSON members of the family's extra hook */
};

#define CAIRN_MAX_BUFS 32	/* of a case */

/*
 * Memory for a buffer, 256-byte aligned, in huge pages where it is large: gigabytes are touched much faster
 * so. free() it.
 */
void *cairn_buffer_alloc(size_t bytes);

/* Pointers of `args` that lie within another buffer, as op has it: from where that one is now */
void cairn_set_alias(const struct cairn_op *op, void *args);
/* Buffers filled for (family, case, kind, seed). 0 or -errno. */
int cairn_op_open(struct cairn_op *op, const struct cairn_family *f, int case_index,
		  enum cairn_kind kind, uint64_t seed);
void cairn_op_close(struct cairn_op *op);
/* *bytes of all buffers of such a case, which is not filled for that. 0 or -errno. */
int cairn_op_bytes(const struct cairn_family *f, int case_index, enum cairn_kind kind, uint64_t seed,
		   size_t *bytes);

int cairn_side_open(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
		    const struct cairn_impl *impl, void *stream);
/* As another one is: its buffers as they are now, a fresh workspace. */
int cairn_side_clone(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
		     const struct cairn_side *from);
int cairn_side_call(struct cairn_side *side, const struct cairn_family *f);	/* asynchronous */
void cairn_side_share_workspace(struct cairn_side *side, const struct cairn_side *with,
				const struct cairn_family *f);
void cairn_side_close(struct cairn_side *side, const struct cairn_op *op);

/*
 * What the reference says of a case: computed for the first table that needs it, and used for all. Zeroed
 * before.
 */
struct cairn_expected {
	int made;			/* the reference has been asked */
	int ret;			/* what it returned, */
	char text[256];			/* and its error */
	struct cairn_exact exact[CAIRN_MAX_BUFS];	/* of the outputs, in the order of the buffers */
};
void cairn_expected_free(struct cairn_expected *e);

/* Runs the case twice on impl and judges it. */
void cairn_op_verify(const struct cairn_family *f, struct cairn_op *op, const struct cairn_impl *impl,
		     void *stream, struct cairn_expected *expected, struct cairn_outcome *o);
/* Calls with the family's i-th bad argument; 0: there is none. Name in *name. */
int cairn_op_reject(const struct cairn_family *f, int i, const struct cairn_impl *impl, void *stream,
		    uint64_t seed, const char **name, struct cairn_outcome *o);

/*
 * Compares one output with the reference: NaN where NaN, infinity where infinity (or where the
 * exact value plus its bound rounds to it), else !(|got - val| <= bound) fails; a NaN bound means
 * "not to be written": the bits of `before` must still be there. Returns the number of bad
 * elements; *first the first of them; *worst the largest error over its bound.
 */
int64_t cairn_judge(int dtype, int64_t count, const void *got, const void *before,
		    const struct cairn_exact *exact, int equal, int64_t *first, double *worst,
		    int64_t *judged);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_case - one case of an operation: its buffers on the host, and its copies in an implementation's memory
 *
 * Every buffer lies between two canaries with all bits set, which is NaN in every float type and -1 in
 * integers: a stray read shows in the result, and a stray write in the canary. Later calls have other
 * canaries, and buffers in host memory end or begin at a guard page (op_side.h).
 */
#ifndef CAIRN_OP_CASE_H
#define CAIRN_OP_CASE_H

#include "conformance/harness.h"

#define CAIRN_CANARY	4096
#define CAIRN_MAX_DIMS	6

struct cairn_buf {
	size_t field;		/* offset of its pointer in the argument struct */
	int dtype;
	int64_t count;
	enum cairn_role role;
	size_t bytes;		/* without canaries */
	uint8_t *base;		/* canary, data, canary */
	char name[40];		/* the member of the argument struct */
	struct cairn_buf_dim {
		const char *name;
		int64_t count, stride;	/* stride in elements */
	} dims[CAIRN_MAX_DIMS];	/* in order of decreasing stride */
	int num_dims;		/* 0: setup has declared no shape */
	int far;		/* base is cairn_far_alloc()ed; only touched[] is filled, copied, judged */
	int idle;		/* all other elements may be read and written */
	struct cairn_range *touched;	/* ascending, without overlap */
	int num_touched;
	size_t used;		/* bytes that are filled, copied and judged */
};

#define CAIRN_MAX_BUFS 64	/* buffers of a case */

/* The arguments and buffers of a case in the memory of one implementation. */
struct cairn_side {
	const struct cairn_impl *impl;
	void *stream;
	void *args;		/* pointers into base[] */
	uint8_t **base;
	void *workspace;
	size_t workspace_bytes;
	/* private to op_side.c */
	struct cairn_guard *guards;	/* [num_bufs + 1], the workspace's last; NULL: other memory */
	void *passed;			/* the copy of args that an operation gets */
	void *slow;			/* memory that is written to keep the stream busy */
	/* the workspace's canaries, that below it first, as fetched last; NULL: it has none */
	uint8_t *canaries;
	/* the fields of empty buffers whose pointers may be NULL; 0: none */
	size_t nullable[CAIRN_MAX_BUFS];
	/* memory without guard pages: a buffer's shift from its allocation, and the largest allowed shift */
	size_t shift[CAIRN_MAX_BUFS], align[CAIRN_MAX_BUFS];
};

enum cairn_verdict { CAIRN_PASS, CAIRN_FAIL, CAIRN_SKIP, CAIRN_LOST /* failed, and the device with it */ };

struct cairn_outcome {
	enum cairn_verdict verdict;
	double err_over_bound;	/* worst element */
	int64_t judged;		/* elements compared */
	int peer_rule;		/* the contract failed it, so the family's rule for others judged it */
	int exempt;		/* the skip is not the table's fault: must-pass does not fail it */
	char text[4096];	/* why, one line each */
	char extra[256 * 1024];	/* JSON members of the family's extra hook */
};

/*
 * Allocates memory for a buffer, 256-byte aligned; the caller frees it with free(). A large buffer is in huge
 * pages, which take much less time to touch.
 */
void *cairn_buffer_alloc(size_t bytes);

/* Reserves zeroed memory that takes no pages until it is touched. Returns NULL if address space is short. */
void *cairn_far_alloc(size_t bytes);
void cairn_far_free(void *p, size_t bytes);
/* An image of the buffer, with canaries; its contents are undefined. */
void *cairn_image_alloc(const struct cairn_buf *b);
void cairn_image_free(const struct cairn_buf *b, void *image);
/* Sets *r to the k-th range that is filled, copied and judged. Returns 0 past the last one. */
int cairn_buf_range(const struct cairn_buf *b, int k, struct cairn_range *r);
/* Returns whether two images' data x and y of buffer b differ. */
int cairn_buf_differs(const struct cairn_buf *b, const uint8_t *x, const uint8_t *y);
/* Returns the index of the buffer that the argument at `field` points to (perhaps as an alias), or -1. */
int cairn_buf_of(const struct cairn_op *op, size_t field);

/* Sets the pointers of `args` that alias or lie within another buffer from that buffer's current address. */
void cairn_set_alias(const struct cairn_op *op, void *args);
/* Makes and fills the buffers of (family, case, kind, seed). Returns 0 or -errno. */
int cairn_op_open(struct cairn_op *op, const struct cairn_family *f, int case_index,
		  enum cairn_kind kind, uint64_t seed);
void cairn_op_close(struct cairn_op *op);
/*
 * Sets *bytes to the size of all buffers of such a case, without filling them. Far buffers count only what is
 * touched. Returns 0 or -errno.
 */
int cairn_op_bytes(const struct cairn_family *f, int case_index, enum cairn_kind kind, uint64_t seed,
		   size_t *bytes);

int cairn_side_open(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
		    const struct cairn_impl *impl, void *stream);
/* Copies another side: its buffers with their present contents, and a fresh workspace. */
int cairn_side_clone(struct cairn_side *side, const struct cairn_family *f, const struct cairn_op *op,
		     const struct cairn_side *from);
int cairn_side_call(struct cairn_side *side, const struct cairn_family *f);	/* asynchronous */
void cairn_side_share_workspace(struct cairn_side *side, const struct cairn_side *with,
				const struct cairn_family *f);
void cairn_side_close(struct cairn_side *side, const struct cairn_op *op);

/*
 * The reference's results for a case, computed for the first table that needs them and used for all. The
 * caller zeroes the struct.
 */
struct cairn_expected {
	int made;			/* 1: the reference has been called */
	int ret;			/* the reference's return value */
	char text[256];			/* the reference's error text */
	struct cairn_exact exact[CAIRN_MAX_BUFS];	/* one for each output, in the order of the buffers */
	size_t far_bytes[CAIRN_MAX_BUFS];	/* of each array of exact[] that is cairn_far_alloc()ed */
	struct cairn_op *other;		/* the case with the inputs of another seed, or NULL */
	struct cairn_expected *relisted;	/* results of the case with other lists, or NULL */
};
void cairn_expected_free(struct cairn_expected *e);

/* Returns whether the case costs so little, for its family, that it is called five times. */
int cairn_op_is_cheap(const struct cairn_family *f, const struct cairn_op *op);
/* Returns whether the case has a far buffer, of which only ranges are touched. */
int cairn_op_is_far(const struct cairn_op *op);
/*
 * Runs the case on impl, twice or, if it is cheap, five times, and judges it; then makes the further calls
 * that the family declares (op_more.c).
 */
void cairn_op_verify(const struct cairn_family *f, struct cairn_op *op, const struct cairn_impl *impl,
		     void *stream, struct cairn_expected *expected, struct cairn_outcome *o);
/*
 * The bad argument that every family has: a struct that is longer than the operation knows, with a nonzero
 * byte in the unknown part. Such a byte asks for something that the operation does not have.
 */
#define CAIRN_REJECT_UNKNOWN	(-1)
/* Sets *name to the name of the family's i-th bad argument. Returns 1, 0 if there is none, or -ENOMEM. */
int cairn_op_reject_name(const struct cairn_family *f, int i, const char **name);
/* Calls the operation with the family's i-th bad argument. A call that cannot be made counts as failed. */
void cairn_op_reject(const struct cairn_family *f, int i, const struct cairn_impl *impl, void *stream,
		     uint64_t seed, struct cairn_outcome *o);

/*
 * Compares one output with the reference. NaN must match NaN, and infinity must match infinity; infinity is
 * also good if the exact value plus its bound rounds to it. Any other element fails unless |got - val| <=
 * bound. A NaN bound means that the element must not be written: the bits of `before` must still be there.
 * Returns the number of bad elements; sets *first to the first of them and *worst to the largest error over
 * its bound.
 */
int64_t cairn_judge(int dtype, int64_t count, const void *got, const void *before,
		    const struct cairn_exact *exact, int equal, int64_t *first, double *worst,
		    int64_t *judged);
/* Judges element i alone: returns whether it is good, and sets *ratio to its error over its bound. */
int cairn_judge_one(int dtype, int64_t i, const void *got, const void *before,
		    const struct cairn_exact *exact, int equal, double *ratio);

/* The mean signed error of an output, in ulps, and how large it may be (bias.c). */
struct cairn_bias {
	double mean, limit;
	int is_signed;		/* 1: relative to the exact value's sign; positive is away from zero */
};

/* Returns 1 if the errors of an output of f16 or bf16 lean to one side, else 0. */
int cairn_judge_bias(int dtype, int64_t count, const void *got, const struct cairn_exact *exact,
		     struct cairn_bias *b);

/* How large the rounding errors of an output are, and how much of them rows share (bias.c). */
struct cairn_rounding {
	double size, common, most_size, most_common;
};

/*
 * Returns 1 if an output of `rows` rows of floats has larger errors than `most` independent roundings or, in
 * f16 and bf16, its rows share too much of them; else 0. An output that is not judged gets sizes of 0.
 */
int cairn_judge_rounding(int dtype, int64_t rows, int64_t row, const void *got,
			 const struct cairn_exact *exact, double most, struct cairn_rounding *r);

#endif

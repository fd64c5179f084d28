/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harness - how a test describes a family to the runner
 *
 * A family of operations has a list of cases and a setup function. For one case and one kind of input, setup
 * declares the buffers of the argument struct and fills the inputs. The harness does the rest. It places
 * every buffer between canaries or guard pages, fills outputs with NaN, asks the reference for exact values
 * and bounds, and calls the implementation up to five times. It then checks values, repeatability, canaries,
 * and that inputs are unchanged. For `cairn bench` it times the call that it has just verified, rotating
 * through copies of the buffers that together exceed the L2.
 *
 * The family of a host module is a list of test functions (units). It may also have measures: functions that
 * `cairn bench` runs and that verify, time and write rows themselves.
 */
#ifndef CAIRN_HARNESS_H
#define CAIRN_HARNESS_H

#include <stddef.h>
#include <stdint.h>

#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "conformance/abi.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

enum cairn_kind {
	CAIRN_KIND_EXACT,	/* small integers: every partial sum is representable */
	CAIRN_KIND_NORMAL,	/* standard normal */
	CAIRN_KIND_EXTREME,	/* zeros, subnormals, equal values, values near the largest */
	CAIRN_KIND_POISON,	/* standard normal, with NaN in all memory that must not be read */
	CAIRN_NUM_KINDS
};
#define CAIRN_KIND_BIT(k)	(1u << (k))
#define CAIRN_ALL_KINDS		((1u << CAIRN_NUM_KINDS) - 1)

struct cairn_test;		/* a running unit test */

struct cairn_unit {
	const char *name;
	void (*run)(struct cairn_test *t);
};

struct cairn_case {
	char name[128];		/* lower case, digits and _; never changes once published */
	unsigned kinds;		/* CAIRN_KIND_BIT()s; 0: only NORMAL */
	int bench;		/* also a row of `cairn bench`, with kind NORMAL */
	int device_only;	/* too large for host implementations */
	/* a call touches only part of its buffers, so bench sizes its copies by `bytes` instead */
	int sparse;
	/*
	 * Not 0: results are sums of many terms of similar size, so that errors of NORMAL are at most those
	 * of so many independent roundings of all terms or of the result (bias.c).
	 */
	double roundings;
	int far;		/* has buffers of several GiB, little of which is touched: cairn_in_far() */
	/* a bench row that measures a ceiling of the machine; such rows always run, before all others */
	int ceiling;
	double bytes, flops;	/* memory (or DSMEM) traffic and arithmetic of one call, for bench */
};

/* One operation under test: the argument struct and its buffers, all on the host. */
struct cairn_op {
	/* family->args_size bytes, zeroed but for `size`; cairn_in() and its siblings set the pointers */
	void *args;
	enum cairn_kind kind;
	int case_index;
	/* private */
	struct cairn_buf *bufs;
	int num_bufs;
	struct cairn_place {
		size_t field, same_as, offset;
	} alias[24];
	int num_alias;
	uint64_t rng;
	int only_sizes;		/* cairn_fill() writes zeros */
	uint64_t seed;
	/* collectives: rank that these inputs belong to, and number of ranks (else 0); setup may read both */
	int32_t rank, ranks;
	uint64_t shared_rng;		/* before cairn_apart() */
	int relisted;			/* f->relist() has changed the index arrays */
};

/* Offsets in the arguments: the contract allows the pointer at `out` to be the same as the one at `in`. */
struct cairn_may_alias {
	size_t out, in;
	/* returns whether the contract allows it for these arguments; NULL: for all */
	int (*if_args)(const void *args);
};

/* Offsets in the arguments: an output that a caller may leave out, and one that goes with it (0: none). */
struct cairn_may_omit {
	size_t out, with;
};

/*
 * Declares that the bits of a row's, or request's, result do not depend on what the other rows of the call
 * hold or, if `keys` is set, on how many keys later requests have. All members are offsets in the arguments;
 * 0: none.
 */
struct cairn_company {
	size_t rows;			/* int32_t: number of rows of all arrays below */
	/* int32_t number of requests, and their int32_t row pointers; 0: each row is a request */
	size_t requests, indptr;
	size_t keys;			/* int32_t array: where each request's keys or pages begin; from 0 */
	/* int64_t: if not 0, the order of sums may depend on how many keys other requests have */
	size_t nnz_keys;
	size_t stride;			/* int64_t: elements between rows of in[0]; value 0: no gaps */
	size_t in[4], out[4];
};

struct cairn_draw;

/* What the last rank does in a case of trouble, while the others call; they must fail as ranks.h says. */
enum cairn_trouble {
	CAIRN_TROUBLE_NONE,
	CAIRN_TROUBLE_ABSENT,	/* does not call */
	CAIRN_TROUBLE_ABORT,	/* aborts the communicator */
	CAIRN_TROUBLE_KILLED,	/* its process is killed */
};

struct cairn_family {
	const char *stage, *name;

	/* host module */
	const struct cairn_unit *units;
	int num_units;
	/* write rows of `cairn bench` that belong to no operation; each has its own process and time-out */
	const struct cairn_unit *measures;
	int num_measures;

	/* operation: op and workspace_op are offsets in struct cairn_impl, fields are offsets in the args */
	size_t op, workspace_op;		/* workspace_op 0: no workspace */
	/* void *workspace, directly followed by size_t workspace_bytes */
	size_t args_size, workspace_field;
	/* outputs that hold times or SM numbers, which may differ between two runs */
	size_t timing_fields[4];
	int num_cases;
	/* with kind EXACT, results must equal the reference; the bound is not used */
	int exact_is_equal;
	/*
	 * the contract allows errors whose mean is not 0, so the mean is not judged (bias.c); a family that
	 * sets this says why
	 */
	int errors_may_lean;
	/* the workspace is zeroed before the first call and kept for the later ones; else it holds junk */
	int zeroed_workspace;
	/* size of the argument struct without its later members, which a caller may omit; 0: it has none */
	size_t first_bytes;
	/* the operation must refuse a workspace smaller than the query's answer with -EINVAL */
	int refuses_small_workspace;
	/* returns whether the workspace is zeroed for these arguments; NULL: for all */
	int (*zeroed_if)(const void *args);
	/*
	 * The shapes from which cases are drawn (draw.h); NULL: none are. Their indexes follow num_cases,
	 * and describe() and setup() take them too.
	 */
	const struct cairn_draw *draw;
	void (*describe)(int case_index, struct cairn_case *c);
	void (*setup)(struct cairn_op *op);
	/* the reference; exact[k] is the k-th output in declaration order */
	int (*exact)(const void *args, struct cairn_exact *exact);
	/*
	 * Judges results that cannot be compared with a number and a bound, either alone or after exact. got:
	 * the arguments, pointing to the implementation's outputs and the original inputs. Returns 0 if the
	 * outputs are good, else 1 with the reason in why.
	 */
	int (*judge)(const struct cairn_op *op, const void *got, char *why, size_t why_len);
	/*
	 * Take the place of exact and judge for another library's kernel that the contract fails, if the
	 * table may have one (cairn_impl_has_own_rules()); NULL: the contract's rule stays. The row's record
	 * says so. Such a row is not held to the further promises.
	 */
	int (*peer_exact)(const void *args, struct cairn_exact *exact);
	int (*peer_judge)(const struct cairn_op *op, const void *got, char *why, size_t why_len);
	/*
	 * Further promises of the contract. A case that costs little gets a further call for each, which must
	 * give the bits of the first one.
	 */
	struct cairn_may_alias may_alias[2];
	/* where the family's argument check allows it, a call without these outputs */
	struct cairn_may_omit may_omit[2];
	struct cairn_company company;
	/*
	 * Narrows args to the i-th of a few parts, which together cover every row once; results must not
	 * depend on how many rows a call has. The function may only advance pointers, which may be device
	 * pointers, and change scalars. Returns 0 past the last part, or if the case has no parts.
	 * cairn_part() chooses the rows.
	 */
	int (*part)(void *args, int i);
	/*
	 * Changes scalars of args to the i-th other form of the call, which must give the same bits. Returns
	 * 0 past the last one. A form for which the table returns -EOPNOTSUPP is left out.
	 */
	int (*form)(void *args, int i);
	/*
	 * planned_field: the argument `planned`, an int32_t; 0: none. If it is 1, the workspace holds a plan
	 * for the same lists. The plan was made by plan_op (an offset in struct cairn_impl; 0: none) if the
	 * table has that operation, else by a call with planned 0. Calls that use a plan must give the same
	 * bits as a call that makes its own. then_op: an operation that uses the plan made by `op` and writes
	 * the outputs (0: none); bench does not time then_op.
	 */
	size_t planned_field, plan_op, then_op;
	/* floats, 0 or above, that a call may have changed since its plan was made; 0: none */
	size_t plan_scalars[2];
	/* the argument sms; 0: none. A number above that of the device's SMs means all of them, as 0 does. */
	size_t sms_field;
	/*
	 * Writes other contents into index arrays that only the device reads, within the limits that the
	 * scalars and the inputs set; args point to host memory. Returns 0 if these arguments have nothing to
	 * change. A case that is called five times gets a further call with the new contents at the addresses
	 * of the previous call, and its results must be those of the new contents. Not called for kinds
	 * POISON and EXTREME: other lists would point to inputs that hold NaN, or larger numbers.
	 */
	int (*relist)(void *args);
	/*
	 * Puts the i-th bad argument into the args of case 0 and sets *want to the error that it must give.
	 * Returns the argument's name, or NULL past the last one.
	 */
	const char *(*reject)(void *args, int i, int *want);
	/* Writes JSON members for the bench record from a call's outputs: "\"cycles\":512". May be NULL. */
	int (*extra)(const struct cairn_op *op, const void *got, char *json, size_t len);
	int timeout_s;				/* time-out of a case; 0: 300 */
	/*
	 * rough processor seconds of all cases together, or seconds if the family waits; on a GPU if it
	 * needs one; 0: less than one
	 */
	int cost_s;
	/* multiplies the cost up to which a case is cheap, for families without small cases; 0: 1 */
	int cheap_factor;
	/* the cases spend most of their time waiting for sockets, clocks or other processes */
	int waits;
	int one_process;		/* units use what the first of them has made, at great cost */
	/* "case.kind" names that --sanitize always takes, ending with NULL; may be NULL */
	const char *const *sanitized;
	/*
	 * Collectives (ranks.h): comm_field is the argument of type struct cairn_comm; 0: none. A case runs
	 * on ranks(case_index) ranks, each a process. Setup makes the inputs of op->rank; what it draws after
	 * cairn_apart() differs between ranks. exact_ranks takes the place of exact: args[r] are those of
	 * rank r, and exact belongs to args[rank]. Outputs in agree have the same bits on all ranks.
	 */
	size_t comm_field, agree[4];
	int32_t (*ranks)(int case_index);
	int (*exact_ranks)(const void *const *args, int32_t rank, struct cairn_exact *exact);
	/* the trouble that a case makes instead of being judged; NULL: none does */
	enum cairn_trouble (*trouble)(int case_index);
};

/*
 * Each declares a buffer, returns it, and stores its pointer in the arguments at `field`, an offsetof(struct
 * cairn_x_args, q). Only setup calls them. Setup fills inputs and also in/out buffers, whose old values the
 * operation reads. An output starts as NaN, or as junk if it holds integers. Messages name a buffer by the
 * last word of the expression `field`; where that is a variable, cairn_name() sets the name.
 */
#define cairn_in(op, field, dtype, count)	cairn_buffer(op, field, #field, CAIRN_ROLE_IN, dtype, count)
#define cairn_out(op, field, dtype, count)	cairn_buffer(op, field, #field, CAIRN_ROLE_OUT, dtype, count)
#define cairn_inout(op, field, dtype, count) \
	cairn_buffer(op, field, #field, CAIRN_ROLE_INOUT, dtype, count)
enum cairn_role { CAIRN_ROLE_IN, CAIRN_ROLE_OUT, CAIRN_ROLE_INOUT };
void *cairn_buffer(struct cairn_op *op, size_t field, const char *expression, enum cairn_role role, int dtype,
		   int64_t count);
void cairn_name(struct cairn_op *op, size_t field, const char *name);

/*
 * Declares the dimensions of a buffer, outermost first, for messages. Outputs and in/out buffers need them.
 *   cairn_shape(op, FIELD(q), { "row", rows }, { "head", heads }, { "dim", dim });
 * A name is a noun that forms its plural with s. cairn_stride() sets the number of elements from one index of
 * a dimension to the next; without it, or with 0, there is no gap.
 */
struct cairn_axis {
	const char *name;
	int64_t count;
};
#define cairn_shape(op, field, ...) \
	cairn_set_shape(op, field, (const struct cairn_axis[]){ __VA_ARGS__, { NULL, 0 } })
void cairn_set_shape(struct cairn_op *op, size_t field, const struct cairn_axis *dims);
void cairn_stride(struct cairn_op *op, size_t field, const char *dim, int64_t stride);

/*
 * For cairn_family.judge: returns whether any element of output `field` is bad. If so, describes the first
 * one and where the bad ones lie, as other messages do:
 *   out[row 3, head 2, dim 17]: got 1, want 2; 96 of 4096 elements bad: all of row 3
 * is_bad returns whether element i is bad and, if why is not NULL, writes the part after the first colon
 * ("got 1, want 2"). Several threads call it at once.
 */
typedef int (*cairn_bad_fn)(const void *arg, int64_t i, char *why, size_t why_len);
int cairn_judge_each(const struct cairn_op *op, size_t field, cairn_bad_fn is_bad, const void *arg, char *why,
		     size_t why_len);

/*
 * Far buffers have several GiB, to test offsets that do not fit in 32 bits. The operation may touch only the
 * ranges that setup names with cairn_touch() before it fills them. The rest of the buffer is inaccessible in
 * host memory, and is never filled, copied or judged. The ranges of a buffer must not overlap. The reference
 * must not go through all of such a buffer either.
 */
#define cairn_in_far(op, field, dtype, count) \
	cairn_far_buffer(op, field, #field, CAIRN_ROLE_IN, dtype, count)
#define cairn_out_far(op, field, dtype, count) \
	cairn_far_buffer(op, field, #field, CAIRN_ROLE_OUT, dtype, count)
#define cairn_inout_far(op, field, dtype, count) \
	cairn_far_buffer(op, field, #field, CAIRN_ROLE_INOUT, dtype, count)
void *cairn_far_buffer(struct cairn_op *op, size_t field, const char *expression, enum cairn_role role,
		       int dtype, int64_t count);
void cairn_touch(struct cairn_op *op, const void *buffer, int64_t first, int64_t count);
/*
 * For operations that go through all of a far buffer: makes every element that setup has not touched idle. An
 * idle element may be read and written, and is not judged. In host memory all idle elements share a few
 * pages, which hold NaN at first; on a device their contents are undefined. The reference skips idle elements
 * with cairn_is_wanted().
 */
void cairn_idle(struct cairn_op *op, const void *buffer);
/*
 * Declares a far buffer of `rows` contiguous rows of `row` elements. The first two rows, two in the middle
 * and the last three are touched; in inputs and in/out buffers cairn_fill() fills them, unless scale is 0.
 * All other rows are idle. cairn_far_row() returns the i-th touched row, or -1 past the last one.
 */
int32_t cairn_far_row(int32_t rows, int i);
#define cairn_in_rows(op, field, dtype, rows, row, scale) \
	cairn_far_rows(op, field, #field, CAIRN_ROLE_IN, dtype, rows, row, scale)
#define cairn_out_rows(op, field, dtype, rows, row) \
	cairn_far_rows(op, field, #field, CAIRN_ROLE_OUT, dtype, rows, row, 0)
#define cairn_inout_rows(op, field, dtype, rows, row, scale) \
	cairn_far_rows(op, field, #field, CAIRN_ROLE_INOUT, dtype, rows, row, scale)
void *cairn_far_rows(struct cairn_op *op, size_t field, const char *expression, enum cairn_role role,
		     int dtype, int32_t rows, int64_t row, double scale);
/* Sets pointer `field` to the buffer declared for `same_as`: the operation works in place. */
void cairn_alias(struct cairn_op *op, size_t field, size_t same_as);
/* Sets pointer `field` to `offset` bytes into the buffer of `same_as`, so that inputs share a buffer. */
void cairn_within(struct cairn_op *op, size_t field, size_t same_as, size_t offset);

/* Draw random numbers for this case. The sequence depends on --seed, the family, the case and the kind. */
uint64_t cairn_op_rand(struct cairn_op *op);
int64_t cairn_op_range(struct cairn_op *op, int64_t lo, int64_t hi);	/* in [lo, hi] */
/*
 * Collectives: numbers drawn after cairn_apart() differ from rank to rank, those drawn after cairn_together()
 * are again the same on all ranks.
 */
void cairn_apart(struct cairn_op *op);
void cairn_together(struct cairn_op *op);
/*
 * Fills a float array as the kind requires. NORMAL has standard deviation scale; EXACT has integers from -4
 * to 4, which f16 and bf16 hold exactly.
 */
void cairn_fill(struct cairn_op *op, void *p, int dtype, int64_t count, double scale);
/*
 * As cairn_fill(), but EXACT has integers from -most to most, limited to those that dtype holds exactly (up
 * to 256 in bf16, 2048 in f16, 2^24 in f32). Sums of integers from -4 to 4 have so few bits that even an
 * accumulator that is too narrow holds them. With most = cairn_exact_most(n), a sum of n products is exact in
 * fp32 in any order.
 */
void cairn_fill_exact(struct cairn_op *op, void *p, int dtype, int64_t count, double scale, int64_t most);
/* Returns the largest integer whose square, n times, is at most 2^24. */
int64_t cairn_exact_most(int64_t n);
void cairn_fill_nan(void *p, int dtype, int64_t first, int64_t count);

/*
 * For cairn_family.part: sets *first and *count to the rows of part i of `rows` rows. Each part begins at a
 * multiple of 16 bytes in an array of row_bytes bytes a row. Part 0 has as few rows as possible; one or two
 * others share the rest. None has fewer than `least` rows. Returns 0 past the last part, or if there is only
 * one.
 */
int cairn_part(int32_t rows, int64_t row_bytes, int32_t least, int i, int32_t *first, int32_t *count);

/* Units */
uint64_t cairn_rand(struct cairn_test *t);
int cairn_expect(struct cairn_test *t, int ok, const char *what, const char *file, int line);
int cairn_expect_contains(struct cairn_test *t, const char *text, const char *part,
			  const char *file, int line);
void cairn_note(struct cairn_test *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void cairn_skip(struct cairn_test *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void cairn_tmpfile(struct cairn_test *t, char *path, size_t path_len, const char *name, const void *data,
		   size_t bytes);
/* The directory is created at the first call and removed after the test. */
const char *cairn_tmpdir(struct cairn_test *t);
const char *cairn_srcdir(void);				/* the root of the source tree, or of the package */

/*
 * Writes one row of a measure, {"v":1,"op":FAMILY,"case":...,"impl":...,"ok":...,MEMBERS,"gpu":...}.
 * members_fmt gives the JSON members: `"median_ns":%.0f,"cycles":%d`. Rows are written when the measure
 * ends; if any expectation failed, "ok" is false in all of them. A measure that neither writes a row nor
 * skips has failed. cairn_row() names the GPU if there is one; cairn_host_row() is for figures of the
 * processor and names that.
 */
void cairn_row(struct cairn_test *t, const char *case_name, const char *impl, const char *members_fmt, ...)
	__attribute__((format(printf, 4, 5)));
void cairn_host_row(struct cairn_test *t, const char *case_name, const char *impl,
		    const char *members_fmt, ...) __attribute__((format(printf, 4, 5)));

#define EXPECT(t, cond)			cairn_expect(t, !!(cond), #cond, __FILE__, __LINE__)
#define EXPECT_CONTAINS(t, text, part)	cairn_expect_contains(t, text, part, __FILE__, __LINE__)

/*
 * A mutant is a deliberately wrong version of one operation for host memory: usually the reference with
 * altered arguments or results. At least one case of its family must fail on it.
 */
struct cairn_mutant {
	const char *name;	/* family_defect */
	size_t op;		/* offsetof(struct cairn_impl, ...) */
	void *fn;		/* a function of that member's type */
	const char *what;	/* the defect, in words */
};

#endif

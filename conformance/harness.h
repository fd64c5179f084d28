/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harness - how a test describes a family to the runner
 *
 * A family of operations is a table of cases and a setup function that, for one case and one kind of
 * input, declares the buffers of the argument struct and fills the inputs. The harness does the rest:
 * it places every buffer between canaries or guard pages, fills outputs with NaN, asks the reference for
 * exact values and bounds, runs the implementation two to five times, and checks values, bits, canaries and
 * untouched inputs;
 * for `cairn bench` it rotates copies past the L2 and times what it has just verified.
 * A host module's family is a list of plain test functions (units), and may have measures: functions that
 * `cairn bench` runs, which verify, time and write rows themselves.
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
	char name[96];		/* lower case, digits and _; never changes once published */
	unsigned kinds;		/* CAIRN_KIND_BIT()s; 0: only NORMAL */
	int bench;		/* also a row of `cairn bench`, with kind NORMAL */
	int device_only;	/* too large for host implementations */
	/* a call touches only part of its buffers: bench rotates as many copies as `bytes` ask for */
	int sparse;
	int far;		/* has buffers of several GiB, of which little is touched: cairn_in_far() */
	/* a bench row that measures a ceiling of the machine; it always runs, before all others */
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
};

/* The contract allows the output at offset `out` of the arguments to be the input at offset `in`, exactly. */
struct cairn_may_alias {
	size_t out, in;
	/* whether these arguments allow it; NULL: all do */
	int (*if_args)(const void *args);
};

/*
 * Rows, or requests, whose results are bitwise independent of what the other rows of the same call hold and,
 * with keys, of how many keys the requests behind them have.
 * All members are offsets in the arguments; 0: none.
 */
struct cairn_company {
	size_t rows;			/* int32_t: rows of all arrays below */
	/* int32_t number of requests, and their int32_t row pointers; 0: each row is a request */
	size_t requests, indptr;
	size_t keys;			/* the requests' int32_t pointers to keys or pages, from 0 on */
	size_t stride;			/* int64_t: elements between rows of in[0]; 0 there: no gaps */
	size_t in[4], out[4];
};

struct cairn_family {
	const char *stage, *name;

	/* host module */
	const struct cairn_unit *units;
	int num_units;
	/*
	 * rows of `cairn bench` that no table's operation gives; each runs in its own process under a time-
	 * out
	 */
	const struct cairn_unit *measures;
	int num_measures;

	/* operation: op and workspace_op are offsets in struct cairn_impl, fields are offsets in the args */
	size_t op, workspace_op;		/* workspace_op 0: no workspace */
	/* void *workspace, directly followed by size_t workspace_bytes */
	size_t args_size, workspace_field;
	/* outputs that hold times or SM numbers, which two runs need not share */
	size_t timing_fields[4];
	int num_cases;
	/* kind EXACT must be equal to the reference; the bound is not used */
	int exact_is_equal;
	/*
	 * the contract allows errors with a mean other than 0 (bias.c), so that it is not judged; the reason
	 * stands where this is set
	 */
	int errors_may_lean;
	/* the workspace is zeroed before the first call and kept for the second; else it holds junk */
	int zeroed_workspace;
	/* the size of the argument struct before its later members, which a call may leave out; 0: none */
	size_t first_bytes;
	/* the contract refuses a workspace of fewer bytes than the query gives, with -EINVAL */
	int refuses_small_workspace;
	/* the arguments with which the workspace is zeroed; NULL: all */
	int (*zeroed_if)(const void *args);
	void (*describe)(int case_index, struct cairn_case *c);
	void (*setup)(struct cairn_op *op);
	/* the reference; exact[k] is the k-th output in declaration order */
	int (*exact)(const void *args, struct cairn_exact *exact);
	/*
	 * Judges results that are not numbers close to a number, alone or after exact. got: args with the
	 * implementation's outputs and the original inputs. Returns 0, or 1 with a text in why.
	 */
	int (*judge)(const struct cairn_op *op, const void *got, char *why, size_t why_len);
	/*
	 * Further promises of the contract. A case that costs little gets a further call for each, which must
	 * give the bits of the first one.
	 */
	struct cairn_may_alias may_alias[2];
	struct cairn_company company;
	/*
	 * Narrows args to the i-th of a few parts, which together cover every row once: their results do not
	 * depend on how many rows a call has. The pointers may be of a device: only moves them, and changes
	 * scalars. Returns 0 past the last part, or if the case has none. cairn_part() chooses the rows.
	 */
	int (*part)(void *args, int i);
	/*
	 * Changes scalars of args to the i-th other form of the call that gives the same bits. Returns 0 past
	 * the last one. A form that a table lacks is left out (-EOPNOTSUPP).
	 */
	int (*form)(void *args, int i);
	/* the argument sms; 0: none. A number above that of the device's SMs means all of them, as 0 does. */
	size_t sms_field;
	/*
	 * Writes other contents into index arrays that only the device reads, within the bounds of the
	 * scalars and of what the inputs hold; args point to host memory. Returns 0 if these arguments have
	 * none to change. A case that costs little gets a call with them, at the addresses of the call before
	 * it: the results must follow. Not for kinds POISON and EXTREME, whose inputs hold no numbers, or
	 * larger ones, where other lists point.
	 */
	int (*relist)(void *args);
	/* Puts the i-th bad argument into the args of case 0. Returns its name, or NULL past the last one. */
	const char *(*reject)(void *args, int i, int *want);
	/*
	 * Writes JSON members for the bench record, made from the outputs of one run: "\"cycles\":512".
	 * May be NULL.
	 */
	int (*extra)(const struct cairn_op *op, const void *got, char *json, size_t len);
	int timeout_s;				/* time-out of a case; 0: 300 */
	/* rough processor seconds of all cases together; 0: less than one */
	int cost_s;
	/* raises the cost up to which a case gets all calls, where the smallest case is large; 0: 1 */
	int cheap_factor;
	/* the cases mostly wait, for sockets, clocks or other processes */
	int waits;
	/* "case.kind" names that --sanitize always takes, ending with NULL; may be NULL */
	const char *const *sanitized;
};

/*
 * Buffers; to be called in setup only. field is offsetof(struct cairn_x_args, q); the pointer is also stored
 * there. setup fills an input, and an in/out buffer, whose old value the operation reads. An output starts
 * as NaN, or as junk if it holds integers. Messages call a buffer by the last word of the expression `field`;
 * cairn_name() gives another name where field is a variable.
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
 * The dimensions of a buffer, the outermost first, for messages: each output and in/out buffer has them.
 *   cairn_shape(op, FIELD(q), { "row", rows }, { "head", heads }, { "dim", dim });
 * A name is a noun that takes an s. cairn_stride() sets the elements from one index of a dimension to the
 * next; without it (or with 0) the inner dimensions follow each other without a gap.
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
 * For judges of results that are not numbers close to a number: returns whether an element of output `field`
 * is bad, and then writes what is there and what should be, as other messages do:
 *   out[row 3, head 2, dim 17]: got 1, want 2; 96 of 4096 elements bad: all of row 3
 * is_bad tells whether element i is bad, and writes the part after the colon if why is not NULL. Several
 * threads call it.
 */
typedef int (*cairn_bad_fn)(const void *arg, int64_t i, char *why, size_t why_len);
int cairn_judge_each(const struct cairn_op *op, size_t field, cairn_bad_fn is_bad, const void *arg, char *why,
		     size_t why_len);

/*
 * Buffers of several GiB, to test offsets that do not fit 32 bits. The operation may touch only the ranges
 * that setup names with cairn_touch(), before it fills them; all other memory is inaccessible in a host
 * table, and in no memory is it filled, copied or judged. The ranges of a buffer must not overlap. The
 * reference must not walk through such a buffer either.
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
 * For operations that walk through all of a far buffer: every element that setup has not touched is idle. It
 * may be read and written, and counts for nothing. In host memory all idle elements share a few pages, which
 * hold NaN at first; on a device they hold anything. The reference skips what is idle: cairn_is_wanted().
 */
void cairn_idle(struct cairn_op *op, const void *buffer);
/*
 * Declares such a buffer of `rows` rows, which follow each other. Touched are the first two, two in the
 * middle and the last three; of inputs and in/out buffers they are filled as cairn_fill() does, unless scale
 * is 0. cairn_far_row() returns the i-th of these rows, or -1 past the last one.
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
/* Sets pointer `field` to `offset` bytes into the buffer of `same_as`: several inputs in one buffer. */
void cairn_within(struct cairn_op *op, size_t field, size_t same_as, size_t offset);

/* Random numbers of this case, a function of --seed, the family, the case and the kind. */
uint64_t cairn_op_rand(struct cairn_op *op);
int64_t cairn_op_range(struct cairn_op *op, int64_t lo, int64_t hi);	/* in [lo, hi] */
/*
 * Fills a float array as the kind says. NORMAL has standard deviation scale; EXACT has integers from -4 to
 * 4, which f16 and bf16 hold exactly.
 */
void cairn_fill(struct cairn_op *op, void *p, int dtype, int64_t count, double scale);
/*
 * The same, but EXACT has integers from -most to most, or of the largest range that dtype holds exactly (256
 * in bf16, 2048 in f16, 2^24 in f32). Sums of -4 to 4 have few bits, which narrow accumulators hold as well.
 * A sum of n products, in any order, is exact in fp32 with most = cairn_exact_most(n).
 */
void cairn_fill_exact(struct cairn_op *op, void *p, int dtype, int64_t count, double scale, int64_t most);
/* Returns the largest integer whose square, n times, is at most 2^24. */
int64_t cairn_exact_most(int64_t n);
void cairn_fill_nan(void *p, int dtype, int64_t first, int64_t count);

/*
 * For cairn_family.part: the rows of part i of `rows` rows, each of row_bytes bytes of an array that must be
 * aligned to 16 bytes. Part 0 has as few rows as possible, two others share the rest; no part has less than
 * `least` rows. Returns 0 past the last part, or if there is only one.
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
/* created at the first call, removed after the test */
const char *cairn_tmpdir(struct cairn_test *t);
const char *cairn_srcdir(void);				/* the root of the source tree, or of the package */

/*
 * Writes one row of a measure, {"v":1,"op":FAMILY,"case":...,"impl":...,"ok":...,MEMBERS,"gpu":...}.
 * members_fmt gives the JSON members: `"median_ns":%.0f,"cycles":%d`. Rows are written when the measure
 * ends; if any expectation failed, "ok" is false in all of them. A measure that neither writes a row nor
 * skips has failed. cairn_host_row() is for figures of the processor; the other names the GPU, where there
 * is one.
 */
void cairn_row(struct cairn_test *t, const char *case_name, const char *impl, const char *members_fmt, ...)
	__attribute__((format(printf, 4, 5)));
void cairn_host_row(struct cairn_test *t, const char *case_name, const char *impl,
		    const char *members_fmt, ...) __attribute__((format(printf, 4, 5)));

#define EXPECT(t, cond)			cairn_expect(t, !!(cond), #cond, __FILE__, __LINE__)
#define EXPECT_CONTAINS(t, text, part)	cairn_expect_contains(t, text, part, __FILE__, __LINE__)

/*
 * A mutant is a deliberately wrong version of one operation, in host memory: usually the reference with
 * altered arguments or results. At least one case of its family must fail.
 */
struct cairn_mutant {
	const char *name;	/* family_defect */
	size_t op;		/* offsetof(struct cairn_impl, ...) */
	void *fn;		/* of that member's type */
	const char *what;	/* the defect, in words */
};

#endif

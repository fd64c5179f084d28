/* SPDX-License-Identifier: Apache-2.0 */
/*
 * harness - how a test describes a family to the runner
 *
 * A family of operations is a table of cases and a setup function that, for one case and one kind of
 * input, declares the buffers of the argument struct and fills the inputs. The harness does the rest:
 * it places every buffer between canaries, fills outputs with NaN, asks the reference for exact values
 * and bounds, runs the implementation twice, and checks values, bits, canaries and untouched inputs;
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
	CAIRN_KIND_POISON,	/* normal, and NaN in all memory that must not be read */
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
	char name[96];		/* stable for ever: lower case, digits, _ */
	unsigned kinds;		/* CAIRN_KIND_BIT()s; 0 means NORMAL alone */
	int bench;		/* a row of `cairn bench` (kind NORMAL) */
	int device_only;	/* too large for host implementations */
	int sparse;		/* a call touches a part of its memory: bench counts copies by `bytes` */
	/* a bench row that measures what the machine can do at most: run first, always */
	int ceiling;
	double bytes, flops;	/* of one call: memory (or DSMEM) traffic and arithmetic, for bench */
};

/* One operation under test: the argument struct and its buffers, all on the host. */
struct cairn_op {
	/* zeroed struct of family->args_size, `size` set; pointers set by the calls below */
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

struct cairn_family {
	const char *stage, *name;

	/* host module */
	const struct cairn_unit *units;
	int num_units;
	/* rows of `cairn bench` that are no operation of a table: each in a process and under a time-out */
	const struct cairn_unit *measures;
	int num_measures;

	/* operation; offsets are offsetof(struct cairn_impl, ...) and offsetof(args, ...) */
	size_t op, workspace_op;		/* workspace_op 0: none */
	/* the void *workspace; size_t workspace_bytes must follow it */
	size_t args_size, workspace_field;
	/* outputs that hold times or places: not compared between two runs */
	size_t timing_fields[4];
	int num_cases;
	/* kind EXACT is compared for equality, not within the bound */
	int exact_is_equal;
	/* zeroed before the first call, left alone before the second; else junk */
	int zeroed_workspace;
	void (*describe)(int case_index, struct cairn_case *c);
	void (*setup)(struct cairn_op *op);
	/* exact[k]: k-th output in declaration order */
	int (*exact)(const void *args, struct cairn_exact *exact);
	/* Instead of exact or after it, for results that are not numbers near a number: 0, or 1 with a text.
	 * got: args with the implementation's outputs and the original inputs. */
	int (*judge)(const struct cairn_op *op, const void *got, char *why, size_t why_len);
	/* Bad arguments: alters the args of case 0, returns a name (NULL: no more) and the error wanted. */
	const char *(*reject)(void *args, int i, int *want);
	/* JSON members for the bench record from the outputs of one run, e.g. "\"cycles\":512";
	 * may be NULL. */
	int (*extra)(const struct cairn_op *op, const void *got, char *json, size_t len);
	int timeout_s;				/* of a case; 0: 300 */
	/* processor seconds of all cases together, roughly; 0: below one */
	int cost_s;
	/* the cases mostly wait, for sockets, clocks or other processes */
	int waits;
	/* cases with their kinds that --sanitize takes in any case, the last one NULL; may be NULL */
	const char *const *sanitized;
};

/* Buffers, in setup only. field: offsetof(struct cairn_x_args, q). The pointer is also stored in args.
 * in: fill it. out: starts as NaN (integers: a junk value). inout: fill it; an output whose
 * old value is read. */
void *cairn_in(struct cairn_op *op, size_t field, int dtype, int64_t count);
void *cairn_out(struct cairn_op *op, size_t field, int dtype, int64_t count);
void *cairn_inout(struct cairn_op *op, size_t field, int dtype, int64_t count);
/* Pointer `field` is the one of the buffer declared for `same_as`: an output in its input's place. */
void cairn_alias(struct cairn_op *op, size_t field, size_t same_as);
/* The same, so many bytes on: several inputs in one buffer. */
void cairn_within(struct cairn_op *op, size_t field, size_t same_as, size_t offset);

/* Random numbers of this case: a function of --seed, the family, case and kind. */
uint64_t cairn_op_rand(struct cairn_op *op);
int64_t cairn_op_range(struct cairn_op *op, int64_t lo, int64_t hi);	/* lo..hi inclusive */
/* Fills a float array as the kind says. scale: NORMAL's standard deviation; EXACT: integers of -4..4
 * (f16, bf16 exact). */
void cairn_fill(struct cairn_op *op, void *p, int dtype, int64_t count, double scale);
void cairn_fill_nan(void *p, int dtype, int64_t first, int64_t count);

/* Units */
uint64_t cairn_rand(struct cairn_test *t);
int cairn_expect(struct cairn_test *t, int ok, const char *what, const char *file, int line);
int cairn_expect_contains(struct cairn_test *t, const char *text, const char *part,
			  const char *file, int line);
void cairn_note(struct cairn_test *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void cairn_skip(struct cairn_test *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void cairn_tmpfile(struct cairn_test *t, char *path, size_t path_len, const char *name, const void *data,
		   size_t bytes);
const char *cairn_tmpdir(struct cairn_test *t);		/* made on first use, removed afterwards */
const char *cairn_srcdir(void);				/* root of the source tree, or of the package */

/*
 * In a measure: one row, {"v":1,"op":FAMILY,"case":...,"impl":...,"ok":...,MEMBERS,"gpu":...}. members_fmt
 * gives JSON members as `"median_ns":%.0f,"cycles":%d`. Rows are written when the measure is done; all of
 * its rows are ok, or none is. A measure that wrote no row, and did not skip, has failed.
 * cairn_host_row: of the processor alone; else the row names the GPU, where there is one.
 */
void cairn_row(struct cairn_test *t, const char *case_name, const char *impl, const char *members_fmt, ...)
	__attribute__((format(printf, 4, 5)));
void cairn_host_row(struct cairn_test *t, const char *case_name, const char *impl,
		    const char *members_fmt, ...) __attribute__((format(printf, 4, 5)));

#define EXPECT(t, cond)			cairn_expect(t, !!(cond), #cond, __FILE__, __LINE__)
#define EXPECT_CONTAINS(t, text, part)	cairn_expect_contains(t, text, part, __FILE__, __LINE__)

/*
 * Mutants: a deliberately wrong version of one operation, over host memory, usually the reference with
 * its arguments or results bent. Every one must fail a case of its family.
 */
struct cairn_mutant {
	const char *name;	/* family_defect */
	size_t op;		/* offsetof(struct cairn_impl, ...) */
	void *fn;		/* same type as that member */
	const char *what;	/* the defect, in words */
};

#endif

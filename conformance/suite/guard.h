/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard - host memory between two inaccessible ranges, for the buffers of a host table
 *
 * The data ends where the upper range begins, or begins where the lower range ends, as closely as its
 * alignment allows. A canary fills the rest of the accessible pages. The first access to an inaccessible
 * range is recorded, and the range becomes accessible: the operation continues, and the access fails only its
 * own case.
 *
 * A far guard stands for gigabytes of data. The operation may touch only a few ranges, and only the pages of
 * these ranges are accessible. If all other elements are idle, they are accessible too, but share the same
 * few pages.
 *
 * The data can also be held: the first access to a page of it waits until a function returns.
 */
#ifndef CAIRN_GUARD_H
#define CAIRN_GUARD_H

#include <stddef.h>
#include <stdint.h>

#define CAIRN_GUARD_BYTES	((size_t)64 << 10)	/* of each inaccessible range */

/* A range of the data that may be touched, in bytes. */
struct cairn_span {
	size_t at, bytes;
};

struct cairn_guard {
	uint8_t *inner;			/* the accessible pages; far: the pages of the data */
	size_t inner_bytes;
	uint8_t *data;
	size_t bytes, align;
	struct cairn_stray {
		volatile uintptr_t at;	/* the first address accessed; 0: none */
		volatile int wrote;
	} stray[3];			/* below and above the accessible pages; far: between the ranges */
	struct cairn_span *spans;	/* far: ascending, not overlapping; else NULL */
	int num_spans;
	int idle;			/* far: memory outside the spans may be accessed */
	void (*wait)(void);		/* held: called before a page becomes accessible; else NULL */
};

/*
 * Maps memory for `bytes` bytes, placed at the end, and catches SIGSEGV from now on. Closing a zeroed guard
 * is legal. Returns 0 or -ENOMEM. Not thread-safe.
 */
int cairn_guard_open(struct cairn_guard *g, size_t bytes, size_t align);
/* As cairn_guard_open(), but only these spans may be touched. They must ascend and must not overlap. */
int cairn_guard_open_far(struct cairn_guard *g, size_t bytes, size_t align, const struct cairn_span *spans,
			 int num, int idle);
/*
 * Places the data at the end or at the beginning. `shifted` moves it up from the beginning by its alignment,
 * so that its address is aligned to no more than that. Contents are lost. Far data stays at the end.
 */
void cairn_guard_place(struct cairn_guard *g, int at_begin, int shifted);
/* Places data of at most two pages, a multiple of 16 bytes, so that its last 16 bytes begin a page. */
void cairn_guard_place_apart(struct cairn_guard *g);
/*
 * Makes the data inaccessible. An access to a page of it calls wait(), in a signal handler, and then makes
 * the page accessible. The pages of large data become accessible in a dozen steps; the last page is always
 * a step of its own. Far data is not held.
 */
void cairn_guard_hold(struct cairn_guard *g, void (*wait)(void));
/* Makes held data accessible again. */
void cairn_guard_release(struct cairn_guard *g);
/* Fills all accessible memory except the data and idle memory with `byte`. */
void cairn_guard_fill(const struct cairn_guard *g, int byte);
/* Counts the bytes below and above the data that are no longer `byte`. */
void cairn_guard_count(const struct cairn_guard *g, int byte, size_t *below, size_t *above);
void cairn_guard_close(struct cairn_guard *g);

/* Calls fn(arg). Returns 0, or 1 if an access to memory that is neither mapped nor guarded has ended it. */
int cairn_guard_faults(void (*fn)(void *arg), void *arg);

#endif

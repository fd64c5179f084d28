/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard - host memory between two inaccessible ranges, for the buffers of a host table
 *
 * The data either ends at the upper range or begins at the lower one, as nearly as its alignment allows; a
 * canary fills the rest of the accessible pages. The first access to an inaccessible range is recorded, and
 * the range becomes accessible, so that the operation goes on and the access costs its own case only.
 *
 * A far guard is for gigabytes of which a few ranges may be touched: only the pages of these are accessible.
 * If all else is idle, it is accessible too, but is the same few pages again and again.
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
	int idle;			/* far: what is in no span may be accessed */
};

/*
 * Maps memory for `bytes` bytes, placed at the end, and catches SIGSEGV from now on. A zeroed guard may be
 * closed. Returns 0 or -ENOMEM. For one thread.
 */
int cairn_guard_open(struct cairn_guard *g, size_t bytes, size_t align);
/* The same for data of which only these spans, ascending and apart, may be touched. */
int cairn_guard_open_far(struct cairn_guard *g, size_t bytes, size_t align, const struct cairn_span *spans,
			 int num, int idle);
/*
 * Places the data at the end or at the beginning; shifted, as far from the beginning as the alignment, so
 * that its address has no larger one. Contents are lost. Far data stays at the end.
 */
void cairn_guard_place(struct cairn_guard *g, int at_begin, int shifted);
/* Fills all accessible memory but the data, and but what is idle, with `byte`. */
void cairn_guard_fill(const struct cairn_guard *g, int byte);
/* Counts the bytes below and above the data that no longer are `byte`. */
void cairn_guard_count(const struct cairn_guard *g, int byte, size_t *below, size_t *above);
void cairn_guard_close(struct cairn_guard *g);

/* Calls fn(arg). Returns 0, or 1 if it accessed memory that is neither mapped nor guarded; it then ended. */
int cairn_guard_faults(void (*fn)(void *arg), void *arg);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * late - interface between the source files of late_plugin.so
 */
#ifndef CAIRN_LATE_H
#define CAIRN_LATE_H

#include <stddef.h>
#include <stdint.h>

#include "conformance/tables/offer.h"

/* sets the error text of the program, as the checks and operations that it offers do */
#define cairn_error		cairn_offer.error
#define cairn_last_error	cairn_offer.last_error

struct op;
struct event;
struct stream;

/*
 * A work item of a stream: runs a function, or waits until another stream has done `ticket` items. In a
 * graph, an item belongs to a branch, and may wait until branch `waits_branch` has done `ticket` items of it.
 */
struct work {
	struct work *next;
	int (*run)(struct work *w);
	const struct op *op;
	void *dst;
	const void *src;
	size_t bytes;
	int byte;
	struct event *event;
	struct stream *waits_for;
	int branch, waits_branch;	/* waits_branch -1: none */
	uint64_t ticket;
	size_t size;
	_Alignas(16) char data[];	/* the arguments, or the bytes to copy */
};

#define LATE_ALIGN	((size_t)256)

/* A table that has only the block of memory, streams, events and graphs. */
extern const struct cairn_impl late_runtime;

/* Stands at the top of each function of the block: calls of other threads wait until it returns. */
#define LATE_CALL	__attribute__((cleanup(late_end))) const int call_ = late_begin()
int late_begin(void);
void late_end(const int *call);

/* Returns 0, or -EIO with the text of the failure by which the device was lost. */
int late_lost(void);

/* Returns NULL and sets the error if there is no memory. Device memory is accessible during run(). */
struct work *late_new_work(int (*run)(struct work *w), size_t size);
int late_enqueue(void *stream, struct work *w);		/* takes ownership of w */

/* late_memory.c */
int late_reserve(void);			/* reserves the address range, once per process */
int late_add(void **ptr, size_t bytes, int host);
int late_remove(void *ptr, int host);	/* -EINVAL: ptr is not the start of such a block */
void late_open(int open);		/* opens or closes device memory to this process */
/* Returns whether p .. p + bytes is within one block of device memory or (host) of host_alloc; p may be
 * its end. */
int late_holds(const void *p, size_t bytes, int host);
int late_in_arena(const void *p);	/* returns whether p is in the address range */
int late_was_given(const void *p);	/* returns whether p has ever been part of a block */

static inline int late_holds_any(const void *p, size_t bytes)
{
	return late_holds(p, bytes, 0) || late_holds(p, bytes, 1);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * late - what the parts of late_plugin.so share
 */
#ifndef CAIRN_LATE_H
#define CAIRN_LATE_H

#include <stddef.h>
#include <stdint.h>

struct cairn_impl;
struct op;
struct event;
struct stream;

/* What a stream is to do: run, or wait for another one to have done `ticket` works. */
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
	uint64_t ticket;
	size_t size;
	_Alignas(16) char data[];	/* arguments, or what was to be copied */
};

#define LATE_ALIGN	((size_t)256)

/* Memory, streams, events and graphs: that block of a table alone. */
extern const struct cairn_impl late_runtime;

/* 0, or -EIO with the text of what was lost. */
int late_lost(void);

/* NULL: no memory; the error is set. Run with the arguments' device memory open. */
struct work *late_new_work(int (*run)(struct work *w), size_t size);
int late_enqueue(void *stream, struct work *w);		/* takes w */

/* late_memory.c */
int late_reserve(void);			/* addresses: once */
int late_add(void **ptr, size_t bytes, int host);
int late_remove(void *ptr, int host);	/* -EINVAL: not such a block's beginning */
void late_open(int open);		/* device memory, to this process */
/* Whether p .. p + bytes is all in one block of device memory, or (host) of host_alloc; p may be its end. */
int late_holds(const void *p, size_t bytes, int host);
int late_in_arena(const void *p);	/* an address that is, was or will be such memory */
int late_was_given(const void *p);	/* ... is or was */

static inline int late_holds_any(const void *p, size_t bytes)
{
	return late_holds(p, bytes, 0) || late_holds(p, bytes, 1);
}

#endif

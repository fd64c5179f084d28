/* SPDX-License-Identifier: Apache-2.0 */
/*
 * side_memory - device memory of one process's cases, and its copies to and from the host
 *
 * A case has a few small buffers and is called several times. On a GPU that many processes share, each
 * allocation takes the driver's lock, and each copy of ordinary host memory waits for the process's turn. So
 * a process that runs many cases keeps freed blocks for later ones, and its copies go through one block of
 * the table's host_alloc() memory, so that only cairn_side_settle() waits.
 *
 * Until cairn_side_memory_keep() is called, and for host tables, all calls go directly to the table: a
 * sanitizer must see each buffer's true size and lifetime, and a benchmark fills memory with exact sizes.
 *
 * Not thread-safe.
 */
#ifndef CAIRN_SIDE_MEMORY_H
#define CAIRN_SIDE_MEMORY_H

#include "conformance/abi.h"

/* Begins to keep memory of this table; only one table of a process can have its memory kept. */
void cairn_side_memory_keep(const struct cairn_impl *impl);
/* Frees what is kept of this table, if anything; called before it stops. */
void cairn_side_memory_drop(const struct cairn_impl *impl);

int cairn_side_alloc(const struct cairn_impl *impl, void **p, size_t bytes);
/* bytes: as given to cairn_side_alloc() */
void cairn_side_free(const struct cairn_impl *impl, void *p, size_t bytes);

/* Queues a copy to the device; src may change at once. */
int cairn_side_upload(const struct cairn_impl *impl, void *dst, const void *src, size_t bytes, void *stream);
/* Queues a copy to the host; dst is complete after cairn_side_settle(). */
int cairn_side_download(const struct cairn_impl *impl, void *dst, const void *src, size_t bytes,
			void *stream);
/* Waits for the stream and completes the downloads. */
int cairn_side_settle(const struct cairn_impl *impl, void *stream);

#endif

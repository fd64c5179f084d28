// SPDX-License-Identifier: Apache-2.0
/* side_memory - keeps device memory for later cases, and copies through pinned memory (side_memory.h) */
#include "conformance/device/side_memory.h"

#include <errno.h>
#include <string.h>

#define LEAST_BLOCK	((size_t)4096)
#define MOST_BLOCK	((size_t)64 << 20)	/* larger ones are rare, and are freed at once */
#define MOST_KEPT	((size_t)256 << 20)	/* in all: every process of a machine may keep as much */
#define MAX_BLOCKS	64
#define STAGING_BYTES	((size_t)4 << 20)
#define MAX_DOWNLOADS	64

struct download {
	void *dst;
	size_t at, bytes;
};

static struct {
	const struct cairn_impl *impl;		/* the table whose memory is kept; NULL: none */
	struct { void *p; size_t bytes; } blocks[MAX_BLOCKS];
	int num_blocks;
	size_t kept;
	char *staging;				/* NULL: none yet */
	size_t used;				/* bytes of the staging memory that queued copies use */
	struct download downloads[MAX_DOWNLOADS];
	int num_downloads;
} memory;

/* Blocks have few sizes, so that a freed one fits a later request: powers of two. */
static size_t block_bytes(size_t bytes)
{
	size_t block = LEAST_BLOCK;

	if (bytes > MOST_BLOCK)
		return bytes;
	while (block < bytes)
		block *= 2;
	return block;
}

static void free_kept(void)
{
	while (memory.num_blocks)
		memory.impl->mem_free(memory.blocks[--memory.num_blocks].p);
	memory.kept = 0;
}

void cairn_side_memory_keep(const struct cairn_impl *impl)
{
	if (!memory.impl && !(impl->flags & CAIRN_IMPL_HOST_MEM) && impl->host_alloc && impl->host_free)
		memory.impl = impl;
}

void cairn_side_memory_drop(const struct cairn_impl *impl)
{
	if (impl != memory.impl)
		return;
	free_kept();
	if (memory.staging)
		memory.impl->host_free(memory.staging);
	memset(&memory, 0, sizeof(memory));
}

int cairn_side_alloc(const struct cairn_impl *impl, void **p, size_t bytes)
{
	size_t block = block_bytes(bytes);
	int ret;

	if (impl != memory.impl)
		return impl->mem_alloc(p, bytes);
	for (int i = memory.num_blocks - 1; i >= 0; i--) {
		if (memory.blocks[i].bytes != block)
			continue;
		*p = memory.blocks[i].p;
		memory.blocks[i] = memory.blocks[--memory.num_blocks];
		memory.kept -= block;
		return 0;
	}
	ret = impl->mem_alloc(p, block);
	if (ret != -ENOMEM || !memory.num_blocks)
		return ret;
	free_kept();
	return impl->mem_alloc(p, block);
}

void cairn_side_free(const struct cairn_impl *impl, void *p, size_t bytes)
{
	size_t block = block_bytes(bytes);

	if (impl != memory.impl || block > MOST_BLOCK || memory.num_blocks == MAX_BLOCKS ||
	    memory.kept + block > MOST_KEPT) {
		impl->mem_free(p);
		return;
	}
	memory.blocks[memory.num_blocks].p = p;
	memory.blocks[memory.num_blocks++].bytes = block;
	memory.kept += block;
}

/* Returns room in the staging memory, or NULL if a copy must do without. *ret: an error of the table. */
static char *room(const struct cairn_impl *impl, size_t bytes, void *stream, int *ret)
{
	char *at;

	*ret = 0;
	if (impl != memory.impl || bytes > STAGING_BYTES)
		return NULL;
	if (!memory.staging && impl->host_alloc((void **)&memory.staging, STAGING_BYTES)) {
		memory.staging = NULL;
		return NULL;
	}
	if (memory.used + bytes > STAGING_BYTES || memory.num_downloads == MAX_DOWNLOADS)
		*ret = cairn_side_settle(impl, stream);
	if (*ret)
		return NULL;
	at = memory.staging + memory.used;
	memory.used += bytes;
	return at;
}

int cairn_side_upload(const struct cairn_impl *impl, void *dst, const void *src, size_t bytes, void *stream)
{
	int ret;
	char *at = room(impl, bytes, stream, &ret);

	if (ret)
		return ret;
	if (at)
		memcpy(at, src, bytes);
	return impl->mem_copy(dst, at ? at : src, bytes, CAIRN_COPY_TO_DEVICE, stream);
}

int cairn_side_download(const struct cairn_impl *impl, void *dst, const void *src, size_t bytes,
			void *stream)
{
	int ret;
	char *at = room(impl, bytes, stream, &ret);

	if (ret)
		return ret;
	if (at)
		memory.downloads[memory.num_downloads++] = (struct download){
			.dst = dst, .at = (size_t)(at - memory.staging), .bytes = bytes,
		};
	return impl->mem_copy(at ? at : dst, src, bytes, CAIRN_COPY_TO_HOST, stream);
}

int cairn_side_settle(const struct cairn_impl *impl, void *stream)
{
	int ret = impl->stream_sync(stream);

	if (impl != memory.impl)
		return ret;
	for (int i = 0; i < memory.num_downloads && !ret; i++)
		memcpy(memory.downloads[i].dst, memory.staging + memory.downloads[i].at,
		       memory.downloads[i].bytes);
	memory.num_downloads = 0;
	memory.used = 0;
	return ret;
}

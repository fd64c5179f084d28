// SPDX-License-Identifier: Apache-2.0
/* run - the order and the checksums of runs (run.h) */
#include "serving/remote/pull/run.h"

#include <errno.h>
#include <string.h>

#include "primitives/base/error.h"

const char *cairn_run_as_device = "";

const struct cairn_transport_table *cairn_run_transport(const char *name)
{
	const struct cairn_transport_table *t = memchr(name, 0, 16) ? cairn_transport_find(name) : NULL;

	return t && t->features & CAIRN_TRANSPORT_PROCESSES &&
	       (t->features & CAIRN_TRANSPORT_HOST_MEMORY || !strcmp(name, "nvlink")) ? t : NULL;
}

int cairn_run_on_device(const struct cairn_transport_table *t)
{
	return !(t->features & CAIRN_TRANSPORT_HOST_MEMORY) || !strcmp(t->name, cairn_run_as_device);
}

int cairn_run_check(const struct cairn_transport_table *t, const struct cairn_impl *impl)
{
	return cairn_run_on_device(t) && impl->flags & CAIRN_IMPL_HOST_MEM ?
	       cairn_error(EINVAL, "'%s' carries no host memory between processes; tcp does", t->name) : 0;
}

struct cairn_run_shape cairn_run_shape(const struct cairn_model *m, int32_t page_size, int32_t max_rows)
{
	struct cairn_run_shape s = {
		.num_layers = m->config.num_hidden_layers, .sides = cairn_model_is_latent(m) ? 1 : 2,
		.chunk_pages = max_rows / page_size, .run_pages = 1,
		.page_bytes = cairn_model_key_bytes(m) * (size_t)page_size,
	};

	if (s.page_bytes < CAIRN_RUN_BYTES)
		s.run_pages = (int32_t)(CAIRN_RUN_BYTES / s.page_bytes);
	if (s.run_pages > s.chunk_pages)
		s.run_pages = s.chunk_pages;
	return s;
}

size_t cairn_run_slot_bytes(const struct cairn_run_shape *s)
{
	return CAIRN_RUN_HEAD_BYTES + (size_t)s->run_pages * s->page_bytes;
}

static int32_t least(int32_t a, int32_t b)
{
	return a < b ? a : b;
}

int cairn_run_next(const struct cairn_run_shape *s, int32_t first, int32_t end, struct cairn_run *run)
{
	int32_t page = run->page + run->num_pages, chunk, chunk_end;

	if (!run->num_pages) {
		page = first;
		run->layer = run->side = 0;
	} else {
		chunk = run->page / s->chunk_pages * s->chunk_pages;
		chunk_end = least(chunk + s->chunk_pages, end);
		if (page == chunk_end && ++run->side == s->sides) {
			run->side = 0;
			run->layer++;
		}
		if (page == chunk_end && run->layer < s->num_layers)
			page = chunk > first ? chunk : first;
		else if (page == chunk_end)
			run->layer = 0;
	}
	if (page >= end)
		return 0;
	chunk_end = least(page / s->chunk_pages * s->chunk_pages + s->chunk_pages, end);
	run->page = page;
	run->num_pages = least(s->run_pages, chunk_end - page);
	return 1;
}

uint64_t cairn_run_hash(const struct sodium *s, const uint8_t *key, const void *bytes, size_t num)
{
	uint64_t hash = 0;

	s->crypto_shorthash((unsigned char *)&hash, bytes, num, key);
	return hash;
}

uint64_t cairn_run_sum(const struct sodium *s, const uint8_t *key, const struct cairn_run *run)
{
	return cairn_run_hash(s, key, run, offsetof(struct cairn_run, sum));
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_cut - mutants that lose the high bits of the number of a page or a key, or of a page's offset
 *
 * KV_CUT() and KV_KEYS() define the function of a mutant, which calls the reference with other page numbers.
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_KV_CUT_H
#define CAIRN_KV_CUT_H

#include <stdlib.h>

#include "fused/cache/kv_view.h"
#include "primitives/base/args.h"

/* Returns a copy of the page numbers, cut to 16 bits or (page_bytes) to offsets of 32 bits; -1: whole. */
static inline int32_t *kv_cut(const struct cairn_kv_view *kv, uint64_t page_bytes)
{
	int32_t num = kv->batch ? kv->indptr[kv->batch] : 0;
	int32_t *ids = malloc(((size_t)num + 1) * sizeof(*ids));

	for (int32_t i = 0; ids && i < num; i++) {
		uint64_t id = (uint64_t)kv->indices[i];

		ids[i] = (int32_t)(page_bytes == UINT64_MAX ? id :
				   page_bytes ? (uint32_t)(id * page_bytes) / page_bytes : id & 0xffff);
	}
	return ids;
}

/* Returns a copy of the page numbers with which keys from 2^16 on are read where the first keys lie. */
static inline int32_t *kv_cut_keys(const struct cairn_kv_view *kv)
{
	int32_t *ids = kv_cut(kv, UINT64_MAX), pages = 65536 / kv->page_size;

	for (int32_t b = 0; ids && 65536 % kv->page_size == 0 && b < kv->batch; b++)
		for (int32_t i = kv->indptr[b] + pages; i < kv->indptr[b + 1]; i++)
			ids[i] = ids[i - pages];
	return ids;
}

#define KV_CUT(family, defect, page_bytes) \
	KV_OTHER(family, defect, kv_cut(&a->kv, (uint64_t)(page_bytes)))
#define KV_KEYS(family)	KV_OTHER(family, keys_16_bits, kv_cut_keys(&a->kv))
#define KV_OTHER(family, defect, other) \
	static int family##_##defect(const struct cairn_##family##_args *a, void *stream) \
	{ \
		struct cairn_##family##_args b; \
		int ret = cairn_##family##_check(a); \
		if (ret) \
			return ret; \
		cairn_copy_args(&b, a, sizeof(b)); \
		b.kv.indices = other; \
		ret = b.kv.indices ? cairn_##family##_ref(&b, stream) : -ENOMEM; \
		free((void *)b.kv.indices); \
		return ret; \
	}

#define KV_CUT_ROW(family, defect, what) \
	{ #family "_" #defect, offsetof(struct cairn_impl, family), (void *)family##_##defect, what },

#endif

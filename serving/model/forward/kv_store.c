// SPDX-License-Identifier: Apache-2.0
/* kv_store - allocates the device memory behind a pool's pages, and describes it to operations */
#include "serving/model/forward/forward.h"

#include <stdint.h>
#include <string.h>

#include "primitives/base/error.h"

#define ALIGNMENT	256

int cairn_kv_store_create(struct cairn_kv_store *kv, const struct cairn_model *m, int32_t num_pages,
			  int32_t page_size)
{
	return cairn_kv_store_create_layers(kv, m, m->config.num_hidden_layers, num_pages, page_size);
}

int cairn_kv_store_create_layers(struct cairn_kv_store *kv, const struct cairn_model *m, int32_t num_layers,
				 int32_t num_pages, int32_t page_size)
{
	int latent = cairn_model_is_latent(m);
	size_t bytes = (size_t)num_pages * (size_t)page_size * cairn_model_key_bytes(m);
	size_t half = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	size_t layers = (size_t)num_layers;
	void *p;

	if (half > SIZE_MAX / 2 / layers)
		return cairn_error(EINVAL, "kv: %d pages of %d tokens are out of range", num_pages,
				   page_size);
	*kv = (struct cairn_kv_store){
		.layer_bytes = latent ? half : 2 * half, .v_offset = latent ? 0 : half,
		.num_pages = num_pages, .page_size = page_size,
	};
	CAIRN_TRY(CAIRN_TABLE(m->impl, mem_alloc, &p, layers * kv->layer_bytes));
	kv->base = p;
	return 0;
}

struct cairn_kv_view cairn_batch_kv(const struct cairn_batch *b, const struct cairn_kv_store *kv,
				    int32_t layer)
{
	char *k_pages = kv->base + (size_t)layer * kv->layer_bytes;

	return (struct cairn_kv_view){
		.k_pages = k_pages, .v_pages = kv->v_offset ? k_pages + kv->v_offset : NULL,
		.indptr = b->kv_indptr, .indices = b->kv_indices, .last_page_len = b->kv_last_page_len,
		.num_pages = kv->num_pages, .page_size = kv->page_size, .batch = b->batch,
		.max_len = b->max_kv_len,
	};
}

void cairn_kv_store_destroy(struct cairn_kv_store *kv, const struct cairn_model *m)
{
	if (kv->base)
		m->impl->mem_free(kv->base);
	memset(kv, 0, sizeof(*kv));
}

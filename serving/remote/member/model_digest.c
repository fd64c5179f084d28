// SPDX-License-Identifier: Apache-2.0
/*
 * model_digest - a digest by which two processes know that they have the same model (model_digest.h)
 *
 * Two checkpoints that differ in one element have different digests, and so have two forms of one checkpoint.
 * The gaps between weights hold anything and are left out.
 *
 * The digest is the sum of one for each weight of each layer, so that the stages of a pipeline can each
 * compute theirs.
 */
#include "serving/remote/member/model_digest.h"

#include <stdlib.h>

#include "primitives/base/error.h"
#include "serving/base/digest.h"
#include "serving/model/load/model_impl.h"

#define PIECE	((size_t)16 << 20)	/* bytes that are copied from the table's memory at a time */

struct reader {
	const struct cairn_model *m;
	void *stream;
	char *room;			/* PIECE bytes; NULL: the table's memory is host memory */
	uint64_t digest, sum;		/* of the weight that is being read; of those before it */
};

static int read_bytes(struct reader *r, const void *bytes, size_t num)
{
	const char *at = bytes;

	for (size_t n; num; num -= n, at += n) {
		n = num < PIECE ? num : PIECE;
		if (r->room) {
			CAIRN_TRY(CAIRN_TABLE(r->m->impl, mem_copy, r->room, at, n, CAIRN_COPY_TO_HOST,
					      r->stream));
			CAIRN_TRY(CAIRN_TABLE(r->m->impl, stream_sync, r->stream));
		}
		r->digest = cairn_digest(r->digest, r->room ? r->room : at, n);
	}
	return 0;
}

/* Reads a weight of a layer; an 8-bit one has codes, and behind them scales. */
static int read_weight(struct reader *r, int32_t layer, enum cairn_weight w)
{
	const struct cairn_model *m = r->m;
	const char *at = cairn_model_weight(m, layer, w);
	int32_t n, k, num = cairn_weight_fp8(m, w, &n, &k);

	if (!num)
		return read_bytes(r, at, (size_t)cairn_weight_bytes(m, w));
	CAIRN_TRY(read_bytes(r, at, (size_t)num * (size_t)n * (size_t)k));
	return read_bytes(r, cairn_model_scale(m, layer, w),
			  sizeof(float) * (size_t)num * (size_t)cairn_weight_scales(m, n, k));
}

/* Begins the digest of a thing, by a name that no other one has. */
static void begin(struct reader *r, int32_t kind, int32_t layer)
{
	const int32_t name[] = { kind, layer };

	r->sum += r->digest;
	r->digest = cairn_digest(CAIRN_DIGEST_START, name, sizeof(name));
}

static int read_weights(struct reader *r)
{
	const struct cairn_model *m = r->m;
	int32_t first, end;

	for (int w = 0; w < CAIRN_NUM_WEIGHTS; w++) {
		/* if the last stage has the embeddings, too, they are those of the first one */
		if (!m->elements[w] || (w == CAIRN_W_EMBED && m->config.stage))
			continue;
		cairn_weight_layers(m, (enum cairn_weight)w, &first, &end);
		for (int32_t layer = first; layer < end; layer++) {
			/* from the embeddings on, weights belong to no layer */
			begin(r, w, w >= CAIRN_W_EMBED ? 0 : m->config.first_layer + layer);
			CAIRN_TRY(read_weight(r, layer, (enum cairn_weight)w));
		}
	}
	return 0;
}

/* Reads the scales of the cache: those of the keys of all layers, then those of the values. */
static int read_scales(struct reader *r)
{
	const struct cairn_model *m = r->m;
	const int32_t layers = m->config.num_hidden_layers, heads = m->config.num_key_value_heads;

	for (int32_t i = 0; m->kv_scales && i < 2 * layers; i++) {
		begin(r, CAIRN_NUM_WEIGHTS + 1 + i / layers, m->config.first_layer + i % layers);
		CAIRN_TRY(read_bytes(r, m->kv_scales + (size_t)i * (size_t)heads,
				     (size_t)heads * sizeof(*m->kv_scales)));
	}
	return 0;
}

static int read_all(struct reader *r)
{
	const struct cairn_model *m = r->m;
	const int32_t forms[] = { m->dtype, (int32_t)m->weights, (int32_t)m->kv };

	CAIRN_TRY(read_weights(r));
	CAIRN_TRY(read_scales(r));
	if (!m->config.stage) {		/* what all stages have */
		begin(r, CAIRN_NUM_WEIGHTS, 0);
		r->digest = cairn_digest(r->digest, forms, sizeof(forms));
		r->digest = cairn_digest(r->digest, m->dims, sizeof(m->dims));
		if (m->inv_freq)
			CAIRN_TRY(read_bytes(r, m->inv_freq, sizeof(*m->inv_freq) *
					     (size_t)cairn_rope_dim(&m->config) / 2));
	}
	r->sum += r->digest;
	return 0;
}

int cairn_model_digest(const struct cairn_model *m, uint64_t *digest)
{
	struct reader r = { .m = m };
	int ret = 0;

	if (!(m->impl->flags & CAIRN_IMPL_HOST_MEM)) {
		r.room = malloc(PIECE);
		ret = r.room ? CAIRN_TABLE(m->impl, stream_create, &r.stream) :
		      cairn_error(ENOMEM, "model: no memory");
	}
	if (!ret)
		ret = read_all(&r);
	if (r.stream)
		m->impl->stream_destroy(r.stream);
	free(r.room);
	*digest = r.sum ? r.sum : 1;
	return ret;
}

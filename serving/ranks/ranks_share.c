// SPDX-License-Identifier: Apache-2.0
/* ranks_share - the share of one rank of tensor parallelism: its config, and its part of each tensor */
#include "serving/model/load/model_impl.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/model/model_graph.h"

#define COUNT(a)	((int)(sizeof(a) / sizeof((a)[0])))

#define UNIT	64	/* moe supports multiples of this; shares of experts are padded with zeros */
#define WORDS	32	/* 4 bits: a share of so many rows or columns has whole words of codes and scales */

int32_t cairn_model_columns_together(const struct cairn_model *m)
{
	if (m->keeps_mxfp4)
		return CAIRN_MX_GROUP;
	if (m->weights != CAIRN_WEIGHTS_W4)
		return 0;
	return m->config.w4.group > WORDS ? m->config.w4.group : WORDS;
}

/*
 * Returns the first of a rank's columns of an expert, out of `all`; that of rank `ranks` is `all`. In 4 bits
 * a rank has whole groups, and some ranks may have one group more than others.
 */
static int32_t first_column(const struct cairn_model *m, int32_t all, int32_t rank)
{
	const int32_t together = cairn_model_columns_together(m), unit = together ? together : all / m->ranks;

	return (int32_t)((int64_t)rank * (all / unit) / m->ranks) * unit;
}

void cairn_model_expert_columns(const struct cairn_model *m, int32_t *first, int32_t *num)
{
	const int32_t all = m->whole[CAIRN_D_EXPERT_INTER];

	*first = first_column(m, all, m->rank);
	*num = first_column(m, all, m->rank + 1) - *first;
}

/*
 * Divides the sizes of experts; all ranks get the largest share. Rows of zeros in gate and up, and columns in
 * down, add nothing to the sum.
 */
static int share_experts(struct cairn_model_config *c, const char *dir, int32_t ranks, int32_t together)
{
	const struct { const char *key; int32_t *value; int32_t unit; } divided[] = {
		{ c->arch == CAIRN_ARCH_MIXTRAL || c->arch == CAIRN_ARCH_GPT_OSS ? "intermediate_size" :
		  "moe_intermediate_size",
		  &c->experts.intermediate_size, together },
		{ "n_shared_experts", &c->experts.shared_intermediate_size, 0 },
	};

	for (int i = 0; i < COUNT(divided); i++) {
		const int32_t all = *divided[i].value, unit = divided[i].unit;
		int32_t most = all / ranks;

		if (unit && all && (all % unit || all / unit < ranks))
			return cairn_error(EOPNOTSUPP, "%s/config.json: %s: experts of %d columns in groups "
					   "of %d are not divisible among %d ranks", dir, divided[i].key, all,
					   unit, ranks);
		if (!unit && all % ranks)
			return cairn_error(EOPNOTSUPP, "%s/config.json: %s: experts of %d columns are not "
					   "divisible among %d ranks", dir, divided[i].key, all, ranks);
		if (unit)
			most = (all / unit + ranks - 1) / ranks * unit;
		*divided[i].value = (most + UNIT - 1) / UNIT * UNIT;
	}
	return 0;
}

int cairn_model_share_config(struct cairn_model_config *c, const char *dir, int32_t ranks, int32_t together,
			     int32_t *kv_shares)
{
	const int32_t kv_heads = c->num_key_value_heads;
	const struct { const char *key; int32_t *value; int32_t unit; } divided[] = {
		{ "num_attention_heads", &c->num_attention_heads, 1 },
		{ "num_key_value_heads", &c->num_key_value_heads, 1 },
		{ "intermediate_size", &c->intermediate_size, 8 },
	};

	c->shares = ranks;
	if ((kv_heads % ranks && ranks % kv_heads == 0) || c->latent.kv_lora_rank)
		c->num_key_value_heads = ranks;	/* one for each rank, with repetitions; latents have none */
	*kv_shares = kv_heads < ranks ? kv_heads : ranks;
	for (int i = 0; i < COUNT(divided); i++) {
		if (*divided[i].value % (ranks * divided[i].unit))
			return cairn_error(EOPNOTSUPP, "%s/config.json: %s: %d is not divisible among %d "
					   "ranks", dir, divided[i].key, *divided[i].value, ranks);
		*divided[i].value /= ranks;
	}
	return share_experts(c, dir, ranks, together);
}

enum cairn_share cairn_model_share(const struct cairn_model *m, const struct cairn_part *p)
{
	if (m->ranks <= 1)
		return CAIRN_SHARE_WHOLE;
	switch (p->weight) {
	case CAIRN_W_QKV:
	case CAIRN_W_QKV_BIAS:
	case CAIRN_W_Q:
	case CAIRN_W_KV_B:
	case CAIRN_W_GATE_UP:
	case CAIRN_W_GATE_UP_BIAS:
	case CAIRN_W_SINKS:
	case CAIRN_W_EXPERTS_GATE_UP:
	case CAIRN_W_EXPERTS_GATE_UP_BIAS:
	case CAIRN_W_SHARED_GATE_UP:
		return CAIRN_SHARE_ROWS;
	case CAIRN_W_LM_HEAD:
		return cairn_model_head_shares(&m->config) > 1 ? CAIRN_SHARE_ROWS : CAIRN_SHARE_WHOLE;
	case CAIRN_W_O_BIAS:
	case CAIRN_W_DOWN_BIAS:
	case CAIRN_W_EXPERTS_DOWN_BIAS:
		return CAIRN_SHARE_ON_0;
	case CAIRN_W_O:
	case CAIRN_W_DOWN:
	case CAIRN_W_EXPERTS_DOWN:
	case CAIRN_W_SHARED_DOWN:
		return CAIRN_SHARE_COLS;
	default:
		return CAIRN_SHARE_WHOLE;
	}
}

int32_t cairn_model_whole_columns(const struct cairn_model *m, enum cairn_weight w)
{
	if (m->ranks <= 1 || !cairn_weights_are_fp8(m->weights) ||
	    cairn_weights_scale_kind(m->weights) != CAIRN_FP8_SCALE_ROWS)
		return 0;
	switch (w) {
	case CAIRN_W_O:
		return m->whole[CAIRN_D_ATTN];
	case CAIRN_W_DOWN:
		return m->whole[CAIRN_D_INTER];
	case CAIRN_W_EXPERTS_DOWN:
		return m->whole[CAIRN_D_EXPERT_INTER];
	case CAIRN_W_SHARED_DOWN:
		return m->whole[CAIRN_D_SHARED_INTER];
	default:
		return 0;
	}
}

struct cairn_cut cairn_model_cut(const struct cairn_model *m, const struct cairn_part *p)
{
	const enum cairn_share share = cairn_model_share(m, p);
	/* of k and v, several ranks may have the same rows */
	const int32_t shares = p->rows == CAIRN_D_KV ? m->kv_shares : m->ranks;
	struct cairn_cut cut = { .rows = m->whole[p->rows], .cols = m->whole[p->cols] };

	if (share == CAIRN_SHARE_ROWS && p->rows == CAIRN_D_EXPERT_INTER) {
		cairn_model_expert_columns(m, &cut.first_row, &cut.rows);
	} else if (share == CAIRN_SHARE_COLS && p->cols == CAIRN_D_EXPERT_INTER) {
		cairn_model_expert_columns(m, &cut.first_col, &cut.cols);
	} else if (share == CAIRN_SHARE_ROWS) {
		cut.rows /= shares;
		cut.first_row = m->rank * shares / m->ranks * cut.rows;
	} else if (share == CAIRN_SHARE_COLS) {
		cut.cols /= m->ranks;
		cut.first_col = m->rank * cut.cols;
	}
	return cut;
}

void cairn_model_take_rows(struct cairn_stored *s)
{
	const size_t row = s->tensor->num_bytes / (size_t)s->tensor->shape[0];

	s->share = *s->tensor;
	s->share.shape[0] = s->cut.rows;
	s->share.num_bytes = (size_t)s->cut.rows * row;
	s->share.data = (const char *)s->tensor->data + (size_t)s->cut.first_row * row;
	s->tensor = &s->share;
}

int cairn_model_take_columns(struct cairn_stored *s, int32_t padded, void **memory)
{
	const size_t rows = (size_t)s->tensor->shape[0], all = s->tensor->num_bytes / rows;
	const size_t element = all / (size_t)s->tensor->shape[1], row = (size_t)padded * element;
	const char *from = (const char *)s->tensor->data + (size_t)s->cut.first_col * element;
	char *to = calloc(rows, row);

	*memory = to;
	if (!to)
		return cairn_error(ENOMEM, "model: no memory for %s", s->tensor->name);
	for (size_t i = 0; i < rows; i++)
		memcpy(to + i * row, from + i * all, (size_t)s->cut.cols * element);
	s->share = *s->tensor;
	s->share.shape[1] = padded;
	s->share.num_bytes = rows * row;
	s->share.data = to;
	s->tensor = &s->share;
	return 0;
}

int cairn_model_keep_columns(const struct cairn_model *m, const struct cairn_cut *cut, const uint8_t *codes,
			     int32_t cols, uint8_t *to, int32_t n, int32_t k, void *stream)
{
	const size_t all = (size_t)n * (size_t)cols, share = (size_t)n * (size_t)k;
	uint8_t *host = calloc(1, all + share);
	int ret;

	if (!host)
		return cairn_error(ENOMEM, "model: no memory for the codes of a matrix");
	ret = CAIRN_TABLE(m->impl, mem_copy, host, codes, all, CAIRN_COPY_TO_HOST, stream);
	if (!ret)
		ret = CAIRN_TABLE(m->impl, stream_sync, stream);
	for (int64_t i = 0; i < n && !ret; i++)
		memcpy(host + all + i * k, host + i * cols + cut->first_col, (size_t)cut->cols);
	if (!ret)
		ret = CAIRN_TABLE(m->impl, mem_copy, to, host + all, share, CAIRN_COPY_TO_DEVICE, stream);
	m->impl->stream_sync(stream);	/* copies read and write the memory */
	free(host);
	return ret;
}

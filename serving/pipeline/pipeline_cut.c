// SPDX-License-Identifier: Apache-2.0
/* pipeline_cut - cuts a pass into chunks of equal time, and writes their index arrays */
#include "serving/pipeline/pipeline.h"

#define LEAST	1024
#define TILE	128	/* rows of a tile of attention or of a product */

/* Multiplications of a row's products in a layer; with experts, in a layer that has them. */
static int64_t products(const int32_t *d)
{
	const int64_t h = d[CAIRN_D_HIDDEN], lora = d[CAIRN_D_Q_LORA];
	const int64_t mlp = d[CAIRN_D_EXPERTS] ? (int64_t)d[CAIRN_D_PER_TOKEN] * d[CAIRN_D_EXPERT_INTER] +
			    d[CAIRN_D_SHARED_INTER] : d[CAIRN_D_INTER];
	const int64_t q = lora ? lora * (h + d[CAIRN_D_Q]) : h * d[CAIRN_D_Q];
	const int64_t kv = 2 * h * d[CAIRN_D_KV] + h * d[CAIRN_D_LATENT] +
			   (int64_t)d[CAIRN_D_KV_B] * d[CAIRN_D_KV_LORA];

	return q + kv + (int64_t)d[CAIRN_D_ATTN] * h + 3 * mlp * h;
}

int64_t cairn_pipeline_row_keys(const struct cairn_model *m)
{
	/* a key is multiplied with q, and its value with a probability, in each query head */
	const int64_t key = m->whole[CAIRN_D_Q] + m->whole[CAIRN_D_ATTN];

	return (products(m->whole) + key - 1) / key;
}

/* Returns the request that has a row; rows ascend from call to call, and *b is the last answer. */
static int32_t request_of(const struct cairn_pipeline_host *h, int32_t row, int32_t *b)
{
	while (h->qo_indptr[*b + 1] <= row)
		++*b;
	return *b;
}

/* Moves a cut within request b to the nearest beginning of a page that leaves 1 to `most` rows before it. */
static int32_t round_cut(const struct cairn_pipeline_host *h, int32_t first, int32_t cut, int32_t b,
			 int32_t most)
{
	const int32_t begin = h->qo_indptr[b], end = h->qo_indptr[b + 1];
	const int32_t over = h->positions[cut] % h->page_size, next = cut - over + h->page_size;
	const int32_t down = cut - over > begin ? cut - over : begin;
	const int32_t up = next < end ? next : end;

	if (!over || cut == begin)
		return cut;
	return down <= first || (2 * over > h->page_size && up - first <= most) ? up : down;
}

struct cairn_pipeline_sizes cairn_pipeline_sizes(const struct cairn_model *m, int32_t most, int32_t sms)
{
	const int32_t even = sms / m->config.num_attention_heads * TILE;
	const int32_t least = LEAST < most ? LEAST : most;

	return sms ? (struct cairn_pipeline_sizes){ most, least, even > TILE ? even : TILE } :
		     (struct cairn_pipeline_sizes){ most, 1, 1 };
}

/* Returns the end of a chunk of `rows` rows after `first`, when the sizes have been applied. */
static int32_t fit(const struct cairn_pipeline_host *h, const struct cairn_pipeline_sizes *s, int32_t first,
		   int32_t rows)
{
	const int32_t left = h->num_rows - first;

	rows = (rows + s->even / 2) / s->even * s->even;
	rows = rows < s->least ? s->least : rows > s->most ? s->most : rows;
	/* what would be left is too short for a chunk of its own */
	return left <= s->most && left < rows + (s->even + 1) / 2 ? h->num_rows : first + rows;
}

int32_t cairn_pipeline_cut(const struct cairn_pipeline_host *h, int64_t row_keys,
			   const struct cairn_pipeline_sizes *sizes, int32_t *ends)
{
	const int64_t most = sizes->most;
	const int64_t longest = most * (row_keys + 1) + most * (most - 1) / 2;
	int64_t left = 0, time, budget;
	int32_t num = 0, b = 0;

	for (int32_t r = 0; r < h->num_rows; r++)
		left += row_keys + h->positions[r] + 1;
	for (int32_t first = 0, cut; first < h->num_rows; first = cut) {
		/* what is left is shared out equally */
		budget = left / ((left + longest - 1) / longest);
		time = row_keys + h->positions[first] + 1;
		for (cut = first + 1; cut < h->num_rows && cut - first < most; cut++) {
			const int64_t row = row_keys + h->positions[cut] + 1;

			if (time + row / 2 > budget)
				break;
			time += row;
		}
		cut = fit(h, sizes, first, cut - first);
		if (cut < h->num_rows)
			cut = round_cut(h, first, cut, request_of(h, cut, &b), sizes->most);
		for (int32_t r = first; r < cut; r++)
			left -= row_keys + h->positions[r] + 1;
		ends[num++] = cut;
	}
	return num;
}

int32_t cairn_pipeline_chunk(struct cairn_batch *c, const struct cairn_pipeline_host *h,
			     const struct cairn_batch *whole, int32_t first, int32_t end, int32_t *index,
			     const int32_t *device)
{
	const int32_t first_prompt = h->batch - whole->num_prompts;
	int32_t b = 0, last, n;
	int32_t *qo, *kv, *lens;

	request_of(h, first, &b);
	last = b;
	request_of(h, end - 1, &last);
	n = last - b + 1;
	qo = index;
	kv = qo + n + 1;
	lens = kv + n + 1;
	*c = *whole;
	c->logits = NULL;
	c->logit_rows = NULL;
	c->num_logits = 0;
	c->ids += first;
	c->positions += first;
	c->qo_indptr = device;
	c->kv_indptr = device + (kv - index);
	c->kv_last_page_len = device + (lens - index);
	c->kv_indices += h->kv_indptr[b];
	c->num_rows = end - first;
	c->batch = n;
	c->max_qo_len = c->max_kv_len = c->num_prompts = c->prompt_rows = c->prompt_past = 0;
	qo[0] = kv[0] = 0;
	for (int32_t i = 0; i < n; i++) {
		const int32_t from = i ? h->qo_indptr[b + i] : first;
		const int32_t to = i < n - 1 ? h->qo_indptr[b + i + 1] : end;
		const int32_t keys = h->positions[to - 1] + 1;

		qo[i + 1] = to - first;
		/* only the last request may have fewer pages than in the pass, so the list has no gaps */
		kv[i + 1] = kv[i] + (keys + h->page_size - 1) / h->page_size;
		lens[i] = (keys - 1) % h->page_size + 1;
		c->max_qo_len = to - from > c->max_qo_len ? to - from : c->max_qo_len;
		c->max_kv_len = keys > c->max_kv_len ? keys : c->max_kv_len;
		if (b + i < first_prompt)
			continue;
		c->num_prompts++;
		c->prompt_rows += to - from;
		c->prompt_past += h->positions[from];
	}
	return 3 * n + 2;
}

// SPDX-License-Identifier: Apache-2.0
/* engine_naive_test - computes expected answers and beams the simplest way (engine_naive_test.h) */
#include <math.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/engine/engine_naive_test.h"

int naive_open_as(struct cairn_test *t, struct naive *n, const char *dir, enum cairn_kv_form kv)
{
	void *p;

	memset(n, 0, sizeof(*n));
	if (open_table(t, "ref", &n->impl) ||
	    !EXPECT(t, cairn_model_load_as(&n->m, &n->impl, dir, CAIRN_WEIGHTS_PLAIN, kv, NULL, NULL) == 0))
		return -1;
	n->vocab = n->m->config.vocab_size;
	EXPECT(t, n->vocab <= NAIVE_VOCAB);
	if (!EXPECT(t, cairn_kv_store_create(&n->kv, n->m, NAIVE_LEN, 1) == 0) ||
	    !EXPECT(t, cairn_scratch_create(&n->scratch, n->m, NAIVE_LEN, 1) == 0) ||
	    !EXPECT(t, n->impl.stream_create(&n->stream) == 0) ||
	    !EXPECT(t, n->impl.mem_alloc(&p, 2 * NAIVE_LEN * sizeof(int32_t)) == 0))
		return -1;
	n->positions = p;
	n->pages = n->positions + NAIVE_LEN;
	for (int i = 0; i < NAIVE_LEN; i++)
		n->positions[i] = n->pages[i] = i;
	return 0;
}

int naive_open(struct cairn_test *t, struct naive *n, const char *dir)
{
	return naive_open_as(t, n, dir, CAIRN_KV_PLAIN);
}

void naive_close(struct naive *n)
{
	if (n->positions)
		n->impl.mem_free(n->positions);
	if (n->stream)
		n->impl.stream_destroy(n->stream);
	cairn_scratch_destroy(n->scratch);
	if (n->m)
		cairn_kv_store_destroy(&n->kv, n->m);
	cairn_model_free(n->m);
}

int naive_logits(struct cairn_test *t, struct naive *n, const int32_t *tokens, int len, float *logits)
{
	int32_t same = 0;

	while (same < n->num_tokens && same < len - 1 && tokens[same] == n->tokens[same])
		same++;
	int32_t rows = len - same, row = rows - 1, last_page_len = 1;
	int32_t qo_indptr[2] = { 0, rows }, kv_indptr[2] = { 0, len };
	struct cairn_batch b = {
		.logits = logits, .ids = tokens + same, .positions = n->positions + same,
		.qo_indptr = qo_indptr, .kv_indptr = kv_indptr, .kv_indices = n->pages,
		.kv_last_page_len = &last_page_len, .logit_rows = &row, .num_rows = rows, .batch = 1,
		.num_logits = 1, .max_qo_len = rows, .max_kv_len = len,
	};
	int moved;

	memcpy(n->tokens, tokens, (size_t)len * sizeof(*tokens));
	n->num_tokens = len;
	return EXPECT(t, len <= NAIVE_LEN) &&
	       EXPECT(t, cairn_scratch_reserve(n->scratch, &n->kv, &b, n->stream, &moved) == 0) &&
	       EXPECT(t, cairn_forward(n->scratch, &n->kv, &b, n->stream) == 0) ? 0 : -1;
}

static int ends(const struct naive *n, const struct cairn_request *r, int32_t token)
{
	for (int i = 0; !r->ignore_eos && i < n->m->config.num_eos; i++) {
		if (n->m->config.eos_token_ids[i] == token)
			return 1;
	}
	for (int i = 0; i < r->num_stop_ids; i++) {
		if (r->stop_ids[i] == token)
			return 1;
	}
	return 0;
}

void naive_treat(const struct naive *n, const struct cairn_request *r, const int32_t *tokens, int len,
		 float *logits)
{
	const struct cairn_sampling *s = &r->sampling;
	float repetition = s->repetition_penalty != 0 ? s->repetition_penalty : 1;
	int begin = r->num_prompt - r->num_given;

	for (int i = 0; i < s->num_bias; i++)
		logits[s->bias[i].token] += s->bias[i].bias;
	for (int j = 0; j < n->vocab; j++) {
		int in_all = 0, in_answer = 0;

		for (int i = 0; i < len; i++) {
			in_all += tokens[i] == j;
			in_answer += tokens[i] == j && i >= begin;
		}
		if (in_all)
			logits[j] = logits[j] > 0 ? logits[j] / repetition : logits[j] * repetition;
		if (in_answer)
			logits[j] -= s->frequency_penalty * (float)in_answer + s->presence_penalty;
		if (len - begin < s->min_new_tokens && ends(n, r, j))
			logits[j] = -INFINITY;
	}
}

void naive_log_softmax(const struct naive *n, const float *logits, double *logprobs)
{
	double most = -INFINITY, sum = 0;

	for (int j = 0; j < n->vocab; j++)
		most = fmax(most, (double)logits[j]);
	for (int j = 0; j < n->vocab; j++)
		sum += exp((double)logits[j] - most);
	for (int j = 0; j < n->vocab; j++)
		logprobs[j] = (double)logits[j] - most - log(sum);
}

/* The key of each answer; for answer 0 it is the seed itself. Must match key_of() in engine_step.c. */
static uint64_t key_of(uint64_t seed, int index)
{
	uint64_t z = seed + (uint64_t)index * 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return index ? z ^ (z >> 31) : seed;
}

int naive_answer(struct cairn_test *t, struct naive *n, const struct cairn_request *r, int index,
		 int32_t *out)
{
	const struct cairn_sampling *s = &r->sampling;
	uint64_t key = key_of(s->seed, index);
	_Alignas(16) float logits[NAIVE_VOCAB];
	int32_t tokens[NAIVE_LEN], len = r->num_prompt;

	memcpy(tokens, r->prompt, (size_t)len * sizeof(*tokens));
	while (len - r->num_prompt < r->max_new_tokens) {
		uint64_t offset = (uint64_t)(len - r->num_prompt + r->num_given);
		struct cairn_sample_args draw = {
			.size = sizeof(draw), .out = &tokens[len], .logits = logits,
			.temperature = &s->temperature, .top_k = &s->top_k, .top_p = &s->top_p,
			.min_p = &s->min_p, .seed = &key, .offset = &offset, .rows = 1, .vocab = n->vocab,
		};

		if (naive_logits(t, n, tokens, len, logits))
			return 0;
		naive_treat(n, r, tokens, len, logits);
		if (!EXPECT(t, cairn_sample_ref(&draw, NULL) == 0) || ends(n, r, tokens[len]))
			break;
		out[len - r->num_prompt] = tokens[len];
		len++;
	}
	return len - r->num_prompt;
}

void naive_judge(struct cairn_test *t, struct naive *n, const struct cairn_request *r, const struct answer *a,
		 double slack)
{
	_Alignas(16) float logits[NAIVE_VOCAB];
	double logprobs[NAIVE_VOCAB];
	int32_t tokens[NAIVE_LEN], len = r->num_prompt;
	int num = a->num_ids + (a->end_token >= 0);

	memcpy(tokens, r->prompt, (size_t)len * sizeof(*tokens));
	for (int i = 0; i < num; i++, len++) {
		float most = -INFINITY;

		tokens[len] = i < a->num_ids ? a->ids[i] : a->end_token;
		if (naive_logits(t, n, tokens, len, logits))
			return;
		naive_log_softmax(n, logits, logprobs);
		for (int k = 0; i < a->num_ids && k < a->num_top[i]; k++) {
			double want = logprobs[a->top[i][k]];
			int better = 0;

			EXPECT(t, fabs((double)a->top_logprob[i][k] - want) <= slack + logprob_error(want));
			for (int j = 0; j < n->vocab; j++)
				better += logprobs[j] > logprobs[a->top[i][k]] + slack;
			EXPECT(t, better <= k);
		}
		if (i < a->num_ids && r->sampling.num_logprobs)
			EXPECT(t, fabs((double)a->logprob[i] - logprobs[tokens[len]]) <=
				  slack + logprob_error(logprobs[tokens[len]]));
		naive_treat(n, r, tokens, len, logits);
		for (int j = 0; j < n->vocab; j++)
			most = fmaxf(most, logits[j]);
		if (!EXPECT(t, (double)logits[tokens[len]] >= (double)most - slack)) {
			cairn_note(t, "token %d is %d with logit %g, the maximum is %g", i, tokens[len],
				   (double)logits[tokens[len]], (double)most);
			return;
		}
	}
}

/* ---- beams ---- */

struct next {
	double sum;
	int beam;
	int32_t token;
};

static int by_sum(const void *pa, const void *pb)
{
	const struct next *a = pa, *b = pb;

	return (a->sum < b->sum) - (a->sum > b->sum);
}

static void keep(struct naive_beam *best, int *num, int width, const struct naive_beam *b)
{
	int at = *num;

	for (; at && best[at - 1].score < b->score; at--)
		best[at] = best[at - 1];
	best[at] = *b;
	*num += *num < width;
}

/* Computes all continuations of all beams, sorted by sum. */
static int expand(struct cairn_test *t, struct naive *n, const struct cairn_request *r,
		  const struct naive_beam *beams, int num, struct next *all)
{
	_Alignas(16) float logits[NAIVE_VOCAB];
	double logprobs[NAIVE_VOCAB];
	int32_t tokens[NAIVE_LEN];
	int count = 0;

	memcpy(tokens, r->prompt, (size_t)r->num_prompt * sizeof(*tokens));
	for (int b = 0; b < num; b++) {
		int len = r->num_prompt + beams[b].num_tokens;

		memcpy(tokens + r->num_prompt, beams[b].tokens,
		       (size_t)beams[b].num_tokens * sizeof(*tokens));
		if (naive_logits(t, n, tokens, len, logits))
			return 0;
		naive_treat(n, r, tokens, len, logits);
		naive_log_softmax(n, logits, logprobs);
		for (int j = 0; j < n->vocab; j++)
			all[count++] = (struct next){ beams[b].sum + logprobs[j], b, j };
	}
	qsort(all, (size_t)count, sizeof(*all), by_sum);
	return count;
}

int naive_beams(struct cairn_test *t, struct naive *n, const struct cairn_request *r, struct naive_beam *best)
{
	int width = r->beam_width, num = 1, num_best = 0;
	struct naive_beam *beams = calloc((size_t)(2 * width + 1), sizeof(*beams)), *then = beams + width;
	struct next *all = calloc((size_t)(width * NAIVE_VOCAB), sizeof(*all));
	struct naive_beam *kept = calloc((size_t)(width + 1), sizeof(*kept));

	for (int len = 1; len <= r->max_new_tokens && num && num_best < width; len++) {
		int count = expand(t, n, r, beams, num, all), went_on = 0;

		for (int i = 0; i < count && went_on < width; i++) {
			struct naive_beam b = beams[all[i].beam];

			b.sum = all[i].sum;
			b.score = b.sum / pow(len, (double)r->length_penalty);
			b.ended = ends(n, r, all[i].token);
			if (!b.ended) {
				b.tokens[b.num_tokens++] = all[i].token;
				then[went_on++] = b;
			} else if (i < width) {
				keep(kept, &num_best, width, &b);
			}
		}
		num = went_on;
		memcpy(beams, then, (size_t)num * sizeof(*beams));
		for (int i = 0; len == r->max_new_tokens && i < num; i++)
			keep(kept, &num_best, width, &beams[i]);
	}
	memcpy(best, kept, (size_t)num_best * sizeof(*best));
	free(kept);
	free(all);
	free(beams);
	return num_best;
}

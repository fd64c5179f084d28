// SPDX-License-Identifier: Apache-2.0
/* op_cost_test - checks bytes and flops of operations against closed forms and brute-force counts */
#include <math.h>

#include "conformance/harness.h"
#include "serving/graph/op_cost.h"
#include "serving/graph/op_graph_test.h"

static int64_t bytes_of(const struct cairn_op_graph *g, const char *result, const struct cairn_pass_sizes *s)
{
	return cairn_op_cost(g, g->values[cairn_op_graph_find(g, result)].producer, s).bytes;
}

static int64_t flops_of(const struct cairn_op_graph *g, const char *result, const struct cairn_pass_sizes *s)
{
	return cairn_op_cost(g, g->values[cairn_op_graph_find(g, result)].producer, s).flops;
}

#define BYTES(result, want)	EXPECT(t, bytes_of(s.g, result, &z) == (want))
#define FLOPS(result, want)	EXPECT(t, flops_of(s.g, result, &z) == (want))

/* Two requests: 100 prompt tokens after 28 cached ones, and a decoding request with 1000 keys. */
static const int32_t qo_len[] = { 100, 1 }, kv_len[] = { 128, 1000 };

static struct cairn_pass_sizes two_requests(const int32_t *dims)
{
	return (struct cairn_pass_sizes){
		.dims = dims, .qo_len = qo_len, .kv_len = kv_len, .num_requests = 2, .num_tokens = 101,
		.num_logits = 2,
		.element = { [CAIRN_ROLE_ACTIVATION] = 2, [CAIRN_ROLE_WEIGHT] = 2, [CAIRN_ROLE_MATRIX] = 2,
			     [CAIRN_ROLE_CACHE] = 2, [CAIRN_ROLE_LOGITS] = 4, [CAIRN_ROLE_INDEX] = 4 },
	};
}

static void costs_of_llama(struct cairn_test *t)
{
	const int64_t n = 101, h = 4096, i = 14336, qkv = 6144, kv = 1024, vocab = 128256;
	const int64_t pairs = 100 * 28 + 100 * 101 / 2 + 1000, paging = 2 * 4;
	struct cairn_pass_sizes z;
	struct subject s;

	if (open_shape(t, &s, "llama3-8b"))
		return;
	z = two_requests(s.dims);
	BYTES("embedded", n * 4 + 2 * n * h * 2);
	BYTES("layers.0.normed", 2 * (2 * n * h + h));
	BYTES("layers.3.normed", 2 * (4 * n * h + h));
	BYTES("layers.3.qkv", 2 * (n * h + h * qkv + n * qkv));
	FLOPS("layers.3.qkv", 2 * n * h * qkv);
	BYTES("layers.3.qkv_rotated", n * 4 + 2 * 2 * n * (h + kv));
	BYTES("layers.3.kv", paging + 2 * 2 * n * 2 * kv);
	BYTES("layers.3.attn", paging + 2 * (n * h + (128 + 1000) * 2 * kv + n * h));
	FLOPS("layers.3.attn", 4 * pairs * h);
	BYTES("layers.3.o", 2 * (n * h + h * h + n * h));
	BYTES("layers.3.mlp_normed", 2 * (4 * n * h + h));
	BYTES("layers.3.gate_up", 2 * (n * h + 2 * i * h + n * 2 * i));
	FLOPS("layers.3.gate_up", 2 * n * h * 2 * i);
	BYTES("layers.3.mlp", 2 * (n * 2 * i + n * i));
	FLOPS("layers.3.mlp", 0);
	BYTES("layers.3.down", 2 * (n * i + i * h + n * h));
	BYTES("picked_x", 2 * 4 + 2 * 2 * 2 * h);
	BYTES("logits", 2 * (2 * h + vocab * h) + 4 * 2 * vocab);
	FLOPS("logits", 2 * 2 * h * vocab);
	z.element[CAIRN_ROLE_MATRIX] = 1;
	BYTES("layers.3.qkv", 2 * n * h + h * qkv + 2 * n * qkv);
	z.num_logits = 0;
	BYTES("logits", 0);
	FLOPS("logits", 0);
	cairn_op_graph_destroy(s.g);
}

static void costs_of_other_models(struct cairn_test *t)
{
	const int64_t n = 101, h = 2048, heads = 16, latent = 576, rank = 512, inter = 1408, shared = 2816;
	const int64_t pairs = 100 * 28 + 100 * 101 / 2 + 1000, expert = 3 * h * inter;
	struct cairn_pass_sizes z;
	struct subject s;
	double share;

	if (open_shape(t, &s, "dsv2lite"))
		return;
	z = two_requests(s.dims);
	share = 1 - pow(1 - 6.0 / 64, 101);
	BYTES("layers.1.q_rotated", 2 * 4 + n * 4 + 2 * (2 * n * heads * 64 + 2 * n * latent + rank));
	BYTES("layers.1.attn", 2 * 4 + 2 * (n * heads * (192 + 128) + 1128 * latent + heads * 256 * rank));
	FLOPS("layers.1.attn", 2 * pairs * heads * (latent + rank) + 2 * n * heads * 256 * rank);
	FLOPS("layers.1.experts", 2 * n * (h * 64 + 6 * expert + 3 * h * shared));
	EXPECT(t, fabs((double)bytes_of(s.g, "layers.1.experts", &z) -
		       2 * (2.0 * n * h + h + 64 * h + 3 * h * shared + share * 64 * expert)) < 4);
	cairn_op_graph_destroy(s.g);
}

/* Counts the keys that attention reads, and its pairs of token and key, one by one. */
static void windows_are_counted(struct cairn_test *t)
{
	struct subject s;

	if (open_shape(t, &s, "gemma2-9b"))
		return;
	for (int k = 0; k < 400; k++) {
		int32_t kv = 1 + (int32_t)(cairn_rand(t) % 60);
		int32_t qo = (int32_t)(cairn_rand(t) % (uint64_t)(kv + 1));
		int32_t window = (int32_t)(cairn_rand(t) % 70);
		struct cairn_pass_sizes z = two_requests(s.dims);
		int64_t pairs = 0, keys = 0, row = 2 * s.dims[CAIRN_D_Q];

		z.num_requests = 1;
		z.num_tokens = qo;
		z.qo_len = &qo;
		z.kv_len = &kv;
		s.g->ops[s.g->attn[0]].window = window;
		for (int32_t j = 0; j < kv; j++) {
			int read = 0;

			for (int32_t i = kv - qo; i < kv; i++)
				read += j <= i && (!window || j > i - window);
			pairs += read;
			keys += read > 0;
		}
		FLOPS("layers.0.attn", 4 * pairs * s.dims[CAIRN_D_Q]);
		BYTES("layers.0.attn", 4 + qo * row + keys * 2 * s.dims[CAIRN_D_CACHE] + qo * row);
	}
	cairn_op_graph_destroy(s.g);
}

/*
 * Weights and cache of a decode step add up to cairn_model_step_bytes(), plus what that leaves out: writing
 * the appended tokens, and the second read of a norm in layers with experts.
 */
static void steps_are_the_models(struct cairn_test *t)
{
	static const int32_t ones[] = { 1, 1, 1 }, lengths[] = { 40, 1, 7 };
	struct cairn_impl impl;

	if (open_table(t, "cpu", &impl))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(golden_names); i++) {
		struct cairn_pass_sizes z = {
			.qo_len = ones, .kv_len = lengths, .num_requests = 3, .num_tokens = 3,
			.num_logits = 3,
			.element = { [CAIRN_ROLE_WEIGHT] = 2, [CAIRN_ROLE_MATRIX] = 2,
				[CAIRN_ROLE_CACHE] = 2 },
		};
		int64_t bytes = 0, want;
		struct cairn_model *m;
		struct golden golden;

		if (open_golden(t, &golden, golden_names[i]))
			return;
		if (!EXPECT(t, cairn_model_load(&m, &impl, golden.dir, NULL, NULL) == 0))
			return;
		z.dims = m->dims;
		want = cairn_model_step_bytes(m, 3, 48);
		for (int32_t o = 0; o < m->graph->num_ops; o++) {
			const struct cairn_graph_op *op = &m->graph->ops[o];

			bytes += cairn_op_cost(m->graph, o, &z).bytes;
			if (op->kind == CAIRN_OP_MOE)
				want += 2 * m->dims[CAIRN_D_HIDDEN];
			if (op->kind == CAIRN_OP_KV_APPEND || op->kind == CAIRN_OP_MLA_APPEND)
				want += 3 * 2 * m->dims[CAIRN_D_CACHE];
			/* step_bytes ignores windows: subtract the keys outside of them */
			if (op->kind == CAIRN_OP_ATTN && op->window && op->window < 40)
				want -= (int64_t)(40 - op->window) * 2 * m->dims[CAIRN_D_CACHE];
		}
		if (!EXPECT(t, llabs(bytes - want) <= m->graph->num_ops))
			cairn_note(t, "%s: %lld bytes, %lld by step_bytes", golden_names[i], (long long)bytes,
				   (long long)want);
		cairn_model_free(m);
		close_golden(&golden);
	}
}

static const struct cairn_unit units[] = {
	{ "costs_of_llama", costs_of_llama },
	{ "costs_of_other_models", costs_of_other_models },
	{ "windows_are_counted", windows_are_counted },
	{ "steps_are_the_models", steps_are_the_models },
};

const struct cairn_family cairn_op_cost_family = {
	.stage = "serving",
	.name = "op_cost",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};

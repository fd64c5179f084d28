// SPDX-License-Identifier: Apache-2.0
/* costs - times of a model's operations from bytes, flops and rates (costs.h) */
#include "serving/disagg/costs.h"

#include <math.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/disagg/disagg_fault.h"
#include "serving/graph/op_cost.h"
#include "serving/model/model_graph.h"

_Static_assert(CAIRN_NUM_DIMS <= 32, "dims has room for all");

static const struct cairn_pass_sizes bf16 = {
	.element = { [CAIRN_ROLE_ACTIVATION] = 2, [CAIRN_ROLE_WEIGHT] = 2, [CAIRN_ROLE_MATRIX] = 2,
		     [CAIRN_ROLE_CACHE] = 2, [CAIRN_ROLE_LOGITS] = 4, [CAIRN_ROLE_INDEX] = 4 },
};

#define GAP_US	0.8	/* between two kernels of a graph: 0.5 to 1.6 us in traces of passes on an H200 */

/* Bytes of the first layer's attention for one request in decoding. */
static double attn_bytes(const struct cairn_disagg_model *m, int32_t keys)
{
	static const int32_t one = 1;
	struct cairn_pass_sizes z = bf16;

	z.dims = m->dims;
	z.qo_len = &one;
	z.kv_len = &keys;
	z.num_requests = 1;
	z.num_tokens = z.num_logits = 1;
	return (double)cairn_op_cost(m->graph, m->graph->attn[0], &z).bytes;
}

static int check(const struct cairn_model_config *c)
{
	if (c->latent.kv_lora_rank)
		return cairn_error(EOPNOTSUPP, "model: latent attention is not simulated");
	for (int32_t i = 0; i < c->num_hidden_layers; i++)
		if (cairn_layer_window(c, i))
			return cairn_error(EOPNOTSUPP, "model: attention windows are not simulated");
	return 0;
}

int cairn_disagg_model_open(struct cairn_disagg_model *m, const struct cairn_model_config *config)
{
	struct cairn_pass_sizes z = bf16;

	memset(m, 0, sizeof(*m));
	CAIRN_TRY(check(config));
	CAIRN_TRY(cairn_model_graph(&m->graph, config));
	m->config = *config;
	cairn_model_dims(config, m->dims);
	z.dims = m->dims;
	for (int32_t i = 0; i < m->graph->num_values; i++)
		if (m->graph->values[i].kind == CAIRN_VALUE_WEIGHT)
			m->weights += cairn_value_bytes(&m->graph->values[i], &z);
	m->token_bytes = (int64_t)m->dims[CAIRN_D_CACHE] * 2 * config->num_hidden_layers;
	m->query = (int64_t)m->dims[CAIRN_D_Q] * 2;
	m->kv = (int64_t)m->dims[CAIRN_D_CACHE] * 2;
	m->output = m->query + (FAULT(NO_LSE) ? 0 : (int64_t)config->num_attention_heads * 4);
	m->attn_key = attn_bytes(m, 2) - attn_bytes(m, 1);
	m->attn_row = attn_bytes(m, 1) - m->attn_key;
	return 0;
}

void cairn_disagg_model_close(struct cairn_disagg_model *m)
{
	cairn_op_graph_destroy(m->graph);
	m->graph = NULL;
}

double cairn_disagg_share(const struct cairn_disagg_model *m, int32_t b)
{
	int32_t heads = m->config.num_key_value_heads;

	if (FAULT(HEADS_DIVIDE))
		return 1.0 / b;
	if (b <= heads)
		return (double)((heads + b - 1) / b) / heads;
	return 1.0 / heads / (b / heads);
}

int64_t cairn_disagg_weights(const struct cairn_disagg_model *m, int32_t tp)
{
	return FAULT(WEIGHTS_FREE) ? 0 : (m->weights + tp - 1) / tp;
}

int64_t cairn_disagg_room(const struct cairn_disagg_model *m, const struct cairn_disagg_gpu *gpu, int32_t b,
			  double memory_share, int64_t used)
{
	double room = gpu->memory_gb * 1e9 * memory_share - (double)used;

	return room <= 0 ? 0 : (int64_t)(room / (cairn_disagg_share(m, b) * (double)m->token_bytes));
}

static bool is_product(enum cairn_op_kind kind)
{
	return kind == CAIRN_OP_GEMM || kind == CAIRN_OP_LM_HEAD || kind == CAIRN_OP_MOE;
}

/*
 * A product near the balance of bytes and flops is slower than either bound: on an H200, gate and up of
 * Llama-3-8B for 128 rows take 67 us, of which memory would need 55 and arithmetic 39. The root of the sum of
 * squares is within a tenth of the measured times from 64 to 256 rows.
 */
static double op_us(const struct cairn_disagg_gpu *gpu, enum cairn_op_kind kind, struct cairn_op_cost cost,
		    int32_t tp)
{
	const struct cairn_disagg_rate *rate = is_product(kind) ? &gpu->products : &gpu->light;
	double memory = (double)cost.bytes / rate->gbps * 1e-3;
	double compute = is_product(kind) && !FAULT(NO_FLOPS) ? (double)cost.flops / gpu->tflops * 1e-6 : 0;

	return GAP_US + rate->base_us + hypot(memory, compute) / tp;
}

/* Sums the operations of a layer, or with -1 those outside, for rows in decoding; attention is left out. */
static double sum_us(const struct cairn_disagg_model *m, const struct cairn_disagg_gpu *gpu, int32_t tp,
		     int32_t rows, int32_t layer)
{
	struct cairn_pass_sizes z = bf16;
	double us = 0;

	z.dims = m->dims;
	z.qo_len = z.kv_len = &rows;	/* only attention asks how rows are shared out among requests */
	z.num_requests = 1;
	z.num_tokens = z.num_logits = rows;
	for (int32_t i = 0; i < m->graph->num_ops; i++) {
		const struct cairn_graph_op *op = &m->graph->ops[i];

		if (op->layer == layer && op->kind != CAIRN_OP_ATTN)
			us += op_us(gpu, op->kind, cairn_op_cost(m->graph, i, &z), tp);
	}
	return us;
}

double cairn_disagg_slice_us(const struct cairn_disagg_model *m, const struct cairn_disagg_gpu *gpu,
			    int32_t tp, int32_t rows)
{
	int32_t layers = m->config.num_hidden_layers, dense = m->config.experts.dense_layers;
	double us;

	if (gpu->slice.num)
		return cairn_disagg_points_us(&gpu->slice, rows) / tp;
	/* All layers are alike, but for dense ones before those with experts. */
	us = (layers - dense) * sum_us(m, gpu, tp, rows, layers - 1);
	if (dense)
		us += dense * sum_us(m, gpu, tp, rows, 0);
	return us / layers;
}

/*
 * Returns the extra time of a slice whose attention is elsewhere. Q and K, V come from two products instead
 * of one, and four light operations are added: two puts, the wait for the result, and the merge, which also
 * attends to the rows' own keys. The merge reads Q, K, V and the result, and writes as many bytes as Q has.
 */
static double apart_us(const struct cairn_disagg_model *m, const struct cairn_disagg_gpu *gpu, int32_t tp,
		       int32_t rows)
{
	const double merge = rows * (double)(2 * m->query + m->kv + m->output);

	if (gpu->slice.num || FAULT(APART_FREE))
		return 0;
	return 5 * GAP_US + gpu->products.base_us + 4 * gpu->light.base_us +
	       merge / gpu->light.gbps / tp * 1e-3;
}

double cairn_disagg_head_us(const struct cairn_disagg_model *m, const struct cairn_disagg_gpu *gpu,
			    int32_t tp, int32_t rows)
{
	return sum_us(m, gpu, tp, rows, -1);
}

double cairn_disagg_attn_us(const struct cairn_disagg_model *m, const struct cairn_disagg_gpu *gpu,
			    double share, int32_t rows, int64_t keys)
{
	if (gpu->attn.num)
		return cairn_disagg_points_us(&gpu->attn, share * (double)keys);
	return GAP_US + gpu->attention.base_us +
	       share * (rows * m->attn_row + (double)keys * m->attn_key) / gpu->attention.gbps * 1e-3;
}

static int take_ps(double us, const char *what, int64_t *ps)
{
	if (!(us <= CAIRN_DISAGG_MOST_S * 1e6))
		return cairn_error(ERANGE, "%s takes %.3g s; more than %d s are not simulated", what,
				   us * 1e-6, CAIRN_DISAGG_MOST_S);
	*ps = llround(us * CAIRN_PS_PER_US);
	return 0;
}

int cairn_disagg_times(const struct cairn_disagg_system *s, int32_t rows, int64_t keys,
		       struct cairn_lane_times *t)
{
	const struct cairn_disagg_model *m = s->model;
	double share = cairn_disagg_share(m, s->b ? s->b : s->tp), most = share, byte_us;
	int64_t apart = 0;

	memset(t, 0, sizeof(*t));
	CAIRN_TRY(take_ps(cairn_disagg_slice_us(m, s->model_gpu, s->tp, rows), "a slice", &t->slice));
	CAIRN_TRY(take_ps(cairn_disagg_head_us(m, s->model_gpu, s->tp, rows), "the head", &t->head));
	CAIRN_TRY(take_ps(cairn_disagg_attn_us(m, s->attn_gpu, share, rows, keys), "attention", &t->attn));
	if (!s->b)
		return 0;
	CAIRN_TRY(take_ps(apart_us(m, s->model_gpu, s->tp, rows), "the merge", &apart));
	t->slice += apart;
	/* each GPU has its own link; the one with the most bytes decides, on either side */
	most = fmax(share, 1.0 / s->tp);
	byte_us = rows * most / s->link.gbps * 1e-3;
	CAIRN_TRY(take_ps(s->link.base_us + (double)m->query * byte_us, "sending Q", &t->query));
	CAIRN_TRY(take_ps(s->link.base_us + (double)m->output * byte_us, "the result", &t->output));
	CAIRN_TRY(take_ps((double)(m->query + m->kv) * byte_us, "sending Q, K and V", &t->link_to));
	return take_ps((double)m->output * byte_us, "the result", &t->link_back);
}

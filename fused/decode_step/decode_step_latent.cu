// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step_latent - the persistent form for latent attention: one kernel copies rows of the embedding,
 * runs the bodies of cluster_mla and moe in turn, layer by layer, and computes the logits
 *
 * One CTA per SM, 20 warps. Each body has the roles and the shared memory that it has as its own kernel
 * (cluster_mla.cu, moe.cu), and its own registers, reassigned by setmaxnreg:
 *
 *   warps        cluster_mla             moe                 head
 *   0 .. 7       multiply    104         multiply  128       multiply  96    registers of a thread
 *   8 .. 15      multiply    104         load       80       load      96
 *   16 .. 18     load         64         route      64       -         96
 *   19           load keys    64         route      64       -         96
 *
 * A dense layer is a moe that has only a shared expert. Between two bodies a CTA passes two CTA barriers, and
 * the next body takes over shared memory, mbarriers included. Its loaders then start loading weights, while a
 * grid barrier (body.cuh) waits for x, which other CTAs write. The LL words of a body are numbered as if the
 * body were a launch of its own, so that both forms can use one workspace.
 *
 * Registers are scarce, because the compiler keeps every value live across the loop that is not certainly
 * overwritten. Therefore state that lasts from body to body is in shared memory (latent_state), threadIdx is
 * read again, every role builds its own arguments, and every variable in a body has an initial value.
 */
#include "fused/decode_step/decode_step_latent.h"

#include "primitives/base/launch.h"
#include "fused/latent/cluster_mla_body.cuh"
#include "fused/moe/moe_body.cuh"

#define STATE_AT	MOE_SMEM_MAX /* offset in shared memory of the state that lasts from body to body */
#define SMEM_BYTES	(MOE_SMEM_MAX + 64)
#define ATTN_REGS	104
#define MLP_REGS	128
#define BASE_REGS	96		/* at launch, and between bodies */
#define LOAD_REGS	80
#define SMALL_REGS	64

static_assert(THREADS == MOE_THREADS && MLA_SMEM <= STATE_AT, "bodies of one kernel");

struct latent_args {
	struct mla_args mla;
	struct moe_args moe, dense, head;
	const int32_t *ids;
	const void *embed, *lm_head;
	float *logits;
	void *x[2];
	uint32_t *counters;		/* grid barrier: arrivals of CTAs; then CTAs that have exited */
	int64_t layer_stride, kv_stride;
	int32_t num_layers, dense_layers, vocab;
};

#define LATENT static __device__ __forceinline__

/* State that lasts from body to body, in shared memory after that of the bodies */
struct latent_state {
	struct body_state body;
	uint32_t epoch, calls;		/* numbers of cluster_mla's and moe's LL words before this launch */
	int32_t layer;
};

LATENT struct latent_state *latent_state(void)
{
	return (struct latent_state *)(mla_mem + STATE_AT);
}

LATENT struct body_link latent_link(const struct latent_args &p)
{
	const struct body_link link = { p.counters, &latent_state()->body };

	return link;
}

/* Reads threadIdx.x again, so that the compiler does not keep it in a register from body to body. */
LATENT int latent_thread(void)
{
	int tid;

	asm volatile("mov.u32 %0, %%tid.x;" : "=r"(tid));
	return tid;
}

LATENT const void *behind(const void *p, int64_t bytes)
{
	return (const char *)p + bytes;
}

/* Copies the rows of the embedding: x of the first layer. */
LATENT void embed(const struct latent_args &p)
{
	const int vecs = p.mla.a.hidden / 8;

	for (int i = (int)(blockIdx.x * THREADS + threadIdx.x); i < p.mla.a.kv.batch * vecs;
	     i += gridDim.x * THREADS)
		((uint4 *)p.x[0])[i] =
			__ldg((const uint4 *)p.embed + (int64_t)p.ids[i / vecs] * vecs + i % vecs);
}

/* Returns the arguments of cluster_mla in `layer`. */
LATENT struct mla_args attention_args(const struct latent_args &p, int layer)
{
	const int64_t at = layer * p.layer_stride;
	struct mla_args g = p.mla;

	g.team = 1;			/* as planned; a constant here removes a third of the code */
	g.a.x = p.x[0];
	g.a.out = p.x[1];
	g.a.kv.k_pages = (char *)g.a.kv.k_pages + layer * p.kv_stride;
	g.a.norm_weight = behind(g.a.norm_weight, at);
	g.a.w_q_a = behind(g.a.w_q_a, at);
	g.a.q_norm = behind(g.a.q_norm, at);
	g.a.w_q = behind(g.a.w_q, at);
	g.a.w_kv_a = behind(g.a.w_kv_a, at);
	g.a.kv_norm = behind(g.a.kv_norm, at);
	g.a.w_kv_b = behind(g.a.w_kv_b, at);
	g.a.w_o = behind(g.a.w_o, at);
	return g;
}

LATENT struct mla_ctx attention_ctx(const struct mla_args &g)
{
	struct mla_ctx c = {};

	c.words = (uint64_t *)g.a.workspace;
	c.lane = latent_thread() % 32;
	c.warp = latent_thread() / 32;
	return c;
}

template <int dtype>
LATENT void run_attention(const struct latent_args &p)
{
	const struct body_link link = latent_link(p);
	const struct mla_args g = attention_args(p, latent_state()->layer);
	const int jobs = g.a.kv.batch * g.groups * g.parts;

	if (latent_thread() < WORKERS) {
		ptx_setmaxnreg_inc<ATTN_REGS>();
		struct mla_ctx c = attention_ctx(g);

		run_worker<dtype, 0, 1, 0>(c, g, jobs, blockIdx.x, gridDim.x, link);
		if (latent_thread() == 0)
			body_end(link);
		ptx_setmaxnreg_dec<BASE_REGS>();
	} else {
		ptx_setmaxnreg_dec<SMALL_REGS>();
		struct mla_ctx c = attention_ctx(g);

		if (c.warp < WARPS + FEEDERS) {
			run_feeder<0, 1>(c, g, jobs, blockIdx.x, gridDim.x);
		} else {
			body_grid_wait(link);	/* this warp has no other work yet */
			await_ready();
			c.epoch = link.state->number;
			run_loader<dtype, 0>(c, g, jobs, blockIdx.x, gridDim.x);
		}
		__syncwarp();
		ptx_setmaxnreg_inc<BASE_REGS>();
	}
}

/*
 * Returns the arguments of moe, or of a dense MLP, in the current layer. Every role builds its own, because
 * registers are scarce.
 */
LATENT struct moe_args mlp_args(const struct latent_args &p)
{
	const int layer = latent_state()->layer;
	const int64_t at = (layer < p.dense_layers ? layer : layer - p.dense_layers) * p.layer_stride;
	struct moe_args g = p.moe;

	if (layer < p.dense_layers) {
		g.a.num_experts = 0;
		g.a.shared_intermediate = p.dense.a.shared_intermediate;
		g.a.w_shared_gate_up = p.dense.a.w_shared_gate_up;
		g.a.w_shared_down = p.dense.a.w_shared_down;
		g.units = p.dense.units;
	}
	g.a.w_router = behind(g.a.w_router, at);
	g.a.w_gate_up = behind(g.a.w_gate_up, at);
	g.a.w_down = behind(g.a.w_down, at);
	g.a.w_shared_gate_up = behind(g.a.w_shared_gate_up, at);
	g.a.w_shared_down = behind(g.a.w_shared_down, at);
	g.a.norm_weight = behind(g.a.norm_weight, layer * p.layer_stride);
	g.a.x = p.x[1];
	g.a.out = p.x[0];
	g.a.experts = NULL;
	return g;
}

template <int dtype>
LATENT void run_mlp(const struct latent_args &p)
{
	const struct body_link link = latent_link(p);

	if (latent_thread() >= 2 * MOE_WORKERS) {
		ptx_setmaxnreg_dec<SMALL_REGS>();
		if (latent_thread() / 32 == MOE_THREADS / 32 - 1)
			body_grid_wait(link);
		moe_routing<1>(mlp_args(p), link);
		ptx_setmaxnreg_inc<BASE_REGS>();
	} else if (latent_thread() >= MOE_WORKERS) {
		ptx_setmaxnreg_dec<LOAD_REGS>();
		moe_loader(mlp_args(p));
		ptx_setmaxnreg_inc<BASE_REGS>();
	} else {
		ptx_setmaxnreg_inc<MLP_REGS>();
		const struct moe_args g = mlp_args(p);

		moe_worker<dtype, 1>(g, look_ahead(g), link);
		moe_sync();
		if (latent_thread() == 0)
			body_end(link);
		ptx_setmaxnreg_dec<BASE_REGS>();
	}
}

template <int dtype>
LATENT void run_head(const struct latent_args &p)
{
	const struct body_link link = latent_link(p);

	if (latent_thread() >= 2 * MOE_WORKERS) {
		if (latent_thread() / 32 == MOE_THREADS / 32 - 1)
			body_grid_wait(link);
	} else if (latent_thread() >= MOE_WORKERS) {
		head_loader(p.head, p.lm_head, p.vocab);
	} else {
		head_worker<dtype, 1>(p.head, p.logits, p.vocab, link);
	}
}

/* Sets up cluster_mla's shared memory, except the part that depends on x. */
LATENT void prepare_attention(const struct latent_args &p, int layer)
{
	const struct mla_args g = attention_args(p, layer);

	mla_init_rings(latent_thread(), THREADS / 32);
	prologue<0>(attention_ctx(g), g);
}

LATENT void next_body(const struct latent_args &p, int to_mlp)
{
	struct latent_state *s = latent_state();
	const int layer = s->layer + !to_mlp;

	__syncthreads();
	if (to_mlp) {
		body_end_mbarriers(ptx_smem(mla_small()->full), MLA_MBARS, latent_thread(), THREADS / 32);
		moe_init(latent_thread(), THREADS / 32);
	} else {
		body_end_mbarriers(ptx_smem(moe_small()->mbar), MOE_MBARS, latent_thread(), THREADS / 32);
		if (layer < p.num_layers)
			prepare_attention(p, layer);
		else
			moe_init(latent_thread(), THREADS / 32);	/* for the head */
	}
	if (latent_thread() == THREADS - 1) {
		s->body.parity ^= 1;
		s->body.all += gridDim.x;
		s->body.number = (to_mlp ? s->calls : s->epoch) + 1 + layer;
		s->layer = layer;
	}
	__syncthreads();
}

template <int dtype>
static __global__ void __launch_bounds__(THREADS, 1)
latent_kernel(const __grid_constant__ struct latent_args p)
{
	int again;

	ptx_griddepcontrol_wait();
	if (latent_thread() == 0) {
		struct latent_state *s = latent_state();

		ptx_mbarrier_init(ptx_smem(&s->body.mbar), 1);
		s->epoch = __ldcg((const uint32_t *)p.mla.a.workspace);
		s->calls = __ldcg(p.moe.calls + blockIdx.x);
		s->layer = 0;
		s->body.number = s->epoch + 1;
		s->body.parity = 0;
		s->body.all = gridDim.x;
	}
	embed(p);
	prepare_attention(p, 0);
	__syncthreads();
	if (latent_thread() == 0)
		body_end(latent_link(p));
	asm volatile("mov.u32 %0, 0;" : "=r"(again));
	/*
	 * A loop with two entries. Compilers do not transform such loops; loop invariants that they hoist
	 * would need registers.
	 */
	if (again)
		goto mlp;
attention:
	run_attention<dtype>(p);
	next_body(p, 1);
mlp:
	run_mlp<dtype>(p);
	next_body(p, 0);
	if (latent_state()->layer < p.num_layers)
		goto attention;
	ptx_griddepcontrol_launch_dependents();
	run_head<dtype>(p);
	__syncthreads();
	if (latent_thread() == 0) {
		p.moe.calls[blockIdx.x] = latent_state()->calls + p.num_layers;
		/* the last CTA to exit: all other CTAs are past their last grid barrier */
		if (ptx_atom_acq_rel_gpu_add_u32(p.counters + 1, 1) + 1 == gridDim.x) {
			p.counters[0] = p.counters[1] = 0;
			*(uint32_t *)p.mla.a.workspace = latent_state()->epoch + p.num_layers;
		}
	}
}

/* The head as its own kernel, in the GRAPH form */
template <int dtype>
static __global__ void __launch_bounds__(THREADS, 1)
head_kernel(const __grid_constant__ struct moe_args g, const void *w, float *logits, int vocab)
{
	const struct body_link alone = {};

	moe_init(threadIdx.x, THREADS / 32);
	ptx_griddepcontrol_launch_dependents();
	__syncthreads();
	if (threadIdx.x >= 2 * MOE_WORKERS) {
		ptx_setmaxnreg_dec<SMALL_REGS>();
	} else if (threadIdx.x >= MOE_WORKERS) {
		ptx_setmaxnreg_dec<LOAD_REGS>();
		head_loader(g, w, vocab);
	} else {
		ptx_setmaxnreg_inc<MLP_REGS>();
		head_worker<dtype, 0>(g, logits, vocab, alone);
	}
}

/* ---- launch ---- */

static void fill_launch(struct cairn_launch *l, int ctas, int32_t sms, void *stream)
{
	l->grid[0] = (unsigned int)ctas;
	l->block[0] = THREADS;
	l->smem = SMEM_BYTES;
	l->pdl = !sms;
	l->stream = stream;
}

static int plan_head(struct moe_args *g, const struct cairn_decode_step_args *args,
		     const struct cairn_moe_args *dense, const void *x, int ctas)
{
	struct cairn_moe_args m = *dense;

	m.x = x;
	m.norm_weight = args->final_norm;
	return moe_plan(g, &m, ctas);
}

int decode_step_head(const struct cairn_decode_step_args *args, const struct cairn_moe_args *dense,
		     const void *x, void *stream)
{
	struct cairn_launch l = {};
	struct moe_args g = {};
	const void *w = args->lm_head;
	float *logits = args->logits;
	int vocab = args->vocab, ctas = cairn_sms_of(args->sms), bytes;
	void *params[] = { &g, &w, &logits, &vocab };

	if (ctas < 0)
		return ctas;
	bytes = plan_head(&g, args, dense, x, ctas);
	if (bytes < 0)
		return bytes;
	fill_launch(&l, ctas, args->sms, stream);
	return cairn_launch(args->dtype == CAIRN_F16 ? (const void *)head_kernel<CAIRN_F16> :
			    (const void *)head_kernel<CAIRN_BF16>, &l, params);
}

int decode_step_latent(const struct cairn_decode_step_args *args, const struct latent_step *step,
		       void *stream)
{
	struct cairn_launch l = {};
	struct latent_args p = {};
	void *params[] = { &p };
	const void *kernel;
	int ctas = cluster_mla_plan(&p.mla, &step->mla, 1), bytes;

	if (ctas < 0)
		return ctas;
	bytes = moe_plan(&p.dense, &step->dense, ctas);
	if (bytes >= 0)
		bytes = moe_plan(&p.moe, step->moe.num_experts ? &step->moe : &step->dense, ctas);
	if (bytes >= 0)
		bytes = plan_head(&p.head, args, &step->dense, step->x[0], ctas);
	if (bytes < 0)
		return bytes;
	p.ids = args->ids;
	p.embed = args->embed;
	p.lm_head = args->lm_head;
	p.logits = args->logits;
	p.x[0] = step->x[0];
	p.x[1] = step->x[1];
	p.counters = step->counters;
	p.layer_stride = args->layer_stride_bytes;
	p.kv_stride = args->kv_stride_bytes;
	p.num_layers = args->num_layers;
	p.dense_layers = args->num_experts ? args->dense_layers : args->num_layers;
	p.vocab = args->vocab;
	fill_launch(&l, ctas, args->sms, stream);
	kernel = args->dtype == CAIRN_F16 ? (const void *)latent_kernel<CAIRN_F16> :
		 (const void *)latent_kernel<CAIRN_BF16>;
	CAIRN_TRY(cairn_check_resident(kernel, &l, "decode_step"));
	return cairn_launch(kernel, &l, params);
}

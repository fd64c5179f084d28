// SPDX-License-Identifier: Apache-2.0
/*
 * mutants_gemm - wrong versions of gemm, stream and dsmem
 */
#include <math.h>

#include "conformance/harness.h"

/* ---- gemm: one loop, bent at one place ---- */

enum defect { TRANSPOSED, NO_BIAS, SHIFTED_BIAS, K_TAIL, BF16_SUMS, ROWS_LESS_1, TWICE_ROUNDED, TF32,
	      COLUMN_TAIL };

static double tf32(double x)
{
	float f = (float)x;
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	bits &= ~0x1fffu;
	memcpy(&f, &bits, sizeof(f));
	return f;
}

static double through_bf16(double x)
{
	return cairn_bf16_to_float(cairn_double_to_bf16(x));
}

static int bent_gemm(const struct cairn_gemm_args *g, enum defect d)
{
	int64_t m = g->m, n = g->n, k = g->k;
	int64_t end_k = d == K_TAIL && k > 64 ? k / 64 * 64 : k,
		end_m = d == ROWS_LESS_1 && m > 1 ? m - 1 : m;
	int64_t end_n = d == COLUMN_TAIL && n > 8 ? n / 8 * 8 : n;

	CAIRN_TRY(cairn_gemm_check(g));
	for (int64_t i = 0; i < end_m; i++)
		for (int64_t j = 0; j < end_n; j++) {
			double sum = 0;

			for (int64_t l = 0; l < end_k; l++) {
				double a = cairn_load(g->a, g->dtype, i * k + l);
				double b = cairn_load(g->b, g->dtype,
						      d == TRANSPOSED ? l * n + j : j * k + l);

				if (d == TF32 && g->dtype == CAIRN_F32)
					sum += tf32(a) * tf32(b);
				else if (d == BF16_SUMS)
					sum = through_bf16(sum + a * b);
				else
					sum += a * b;
			}
			if (g->bias && d != NO_BIAS)
				sum += cairn_load(g->bias, g->dtype, d == SHIFTED_BIAS ? (j + 1) % n : j);
			cairn_store(g->out, g->out_dtype, i * n + j,
				    d == TWICE_ROUNDED ? through_bf16(sum) : sum);
		}
	return 0;
}

#define BENT(name, defect) \
static int name(const struct cairn_gemm_args *g, void *stream) { (void)stream; return bent_gemm(g, defect); }
BENT(transposed, TRANSPOSED)
BENT(no_bias, NO_BIAS)
BENT(shifted_bias, SHIFTED_BIAS)
BENT(k_tail, K_TAIL)
BENT(bf16_sums, BF16_SUMS)
BENT(rows_less_1, ROWS_LESS_1)
BENT(twice_rounded, TWICE_ROUNDED)
BENT(tf32_inputs, TF32)
BENT(column_tail, COLUMN_TAIL)

static int past_the_end(const struct cairn_gemm_args *g, void *stream)
{
	CAIRN_TRY(cairn_gemm_ref(g, stream));
	cairn_store(g->out, g->out_dtype, (int64_t)g->m * g->n, 0);
	return 0;
}

/* What the first call left is taken for the second's: its output is not written. */
static int stale_output(const struct cairn_gemm_args *g, void *stream)
{
	static int calls;

	return calls++ & 1 ? 0 : cairn_gemm_ref(g, stream);
}

static int nan_for_zero(const struct cairn_gemm_args *g, void *stream)
{
	CAIRN_TRY(cairn_gemm_ref(g, stream));
	for (int64_t e = 0; e < (int64_t)g->m * g->n; e++)
		if (cairn_load(g->out, g->out_dtype, e) == 0)
			cairn_store(g->out, g->out_dtype, e, NAN);
	return 0;
}

/* ---- stream ---- */

static int last_block_skipped(const struct cairn_stream_args *a, void *stream)
{
	CAIRN_TRY(cairn_stream_ref(a, stream));
	if (a->op == CAIRN_STREAM_READ && a->bytes % CAIRN_STREAM_BLOCK)
		a->sum[a->bytes / CAIRN_STREAM_BLOCK] = 0;
	return 0;
}

static int sums_of_32_bits(const struct cairn_stream_args *a, void *stream)
{
	CAIRN_TRY(cairn_stream_ref(a, stream));
	for (int64_t b = 0; a->op == CAIRN_STREAM_READ && b < cairn_stream_num_blocks(a->bytes); b++)
		a->sum[b] &= 0xffffffffu;
	return 0;
}

static int copies_whole_blocks(const struct cairn_stream_args *a, void *stream)
{
	struct cairn_stream_args b = *a;

	if (b.op == CAIRN_STREAM_COPY && b.bytes > CAIRN_STREAM_BLOCK)
		b.bytes -= b.bytes % CAIRN_STREAM_BLOCK;
	return cairn_stream_ref(&b, stream);
}

static int seed_ignored(const struct cairn_stream_args *a, void *stream)
{
	struct cairn_stream_args b = *a;

	b.seed = 0;
	return cairn_stream_ref(&b, stream);
}

/* ---- dsmem: the reference's sums, then those of one test as a wrong schedule would leave them ---- */

static uint64_t words(const struct cairn_dsmem_args *a, int c)
{
	uint64_t sum = 0;

	for (int i = 0; i < a->bytes / 8; i++)
		sum += cairn_dsmem_word(a->seed, c, i);
	return sum;
}

static int one_peer_only(const struct cairn_dsmem_args *a, void *stream)
{
	int n = a->cluster_size;

	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	for (int c = 0; a->test == CAIRN_DSMEM_LOAD && c < n * a->num_clusters; c++)
		a->sum[c] = (uint64_t)a->rounds * words(a, c / n * n + (c + 1) % n);
	return 0;
}

/* Right for powers of two, where exclusive or is a permutation of the ranks. */
static int peers_by_xor(const struct cairn_dsmem_args *a, void *stream)
{
	int n = a->cluster_size;

	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	for (int c = 0; a->test == CAIRN_DSMEM_LOAD && n > 1 && c < n * a->num_clusters; c++) {
		a->sum[c] = 0;
		for (int t = 0; t < a->rounds; t++) {
			int peer = (c % n) ^ (1 + t % (n - 1));

			if (peer < n)
				a->sum[c] += words(a, c / n * n + peer);
		}
	}
	return 0;
}

static int read_before_barrier(const struct cairn_dsmem_args *a, void *stream)
{
	int n = a->cluster_size;

	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	for (int c = 0; a->test == CAIRN_DSMEM_BARRIER && c < n * a->num_clusters; c++) {
		a->sum[c] = 0;
		for (int t = 2; t < a->rounds; t++)
			for (int s = 0; s < n; s++)
				if (cairn_dsmem_peer(s, n, t) == (uint32_t)(c % n))
					a->sum[c] += cairn_dsmem_word(a->seed, c / n * n + s, t - 2);
	}
	return 0;
}

static int receivers_slot(const struct cairn_dsmem_args *a, void *stream)
{
	int n = a->cluster_size, slot = a->bytes / n / 8, bulk = a->test == CAIRN_DSMEM_BULK;

	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	for (int c = 0; bulk && n > 1 && a->rounds >= n - 1 && c < n * a->num_clusters; c++) {
		int r = c % n;

		a->sum[c] = 0;
		for (int s = 0; s < n; s++)
			for (int i = 0; s != r && i < slot; i++)
				a->sum[c] += cairn_dsmem_word(a->seed, c - r + s, r * slot + i) *
					     cairn_dsmem_weight(r * slot + i);
	}
	return 0;
}

static int multicast_to_self(const struct cairn_dsmem_args *a, void *stream)
{
	int n = a->cluster_size, slot = a->bytes / n / 8;

	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	for (int c = 0; a->test == CAIRN_DSMEM_MULTICAST && c < n * a->num_clusters; c++) {
		const uint64_t *src =
			(const uint64_t *)((const char *)a->src +
					   cairn_dsmem_src_offset(a->src_bytes, a->bytes, c / n));

		a->sum[c] = 0;
		for (int i = c % n * slot; i < (c % n + 1) * slot; i++)
			a->sum[c] += src[i] * cairn_dsmem_weight(i);
	}
	return 0;
}

static int last_cluster_missing(const struct cairn_dsmem_args *a, void *stream)
{
	CAIRN_TRY(cairn_dsmem_ref(a, stream));
	for (int c = (a->num_clusters - 1) * a->cluster_size; c < a->num_clusters * a->cluster_size; c++)
		a->smid[c] = -1;
	return 0;
}

#define GEMM(name, fn, what)	{ "gemm_" name, offsetof(struct cairn_impl, gemm), (void *)fn, what }
#define STREAM(name, fn, what)	{ "stream_" name, offsetof(struct cairn_impl, stream), (void *)fn, what }
#define DSMEM(name, fn, what)	{ "dsmem_" name, offsetof(struct cairn_impl, dsmem), (void *)fn, what }

const struct cairn_mutant cairn_gemm_mutants[] = {
	GEMM("transposed", transposed, "b is read as [k, n]"),
	GEMM("bias_ignored", no_bias, "bias is not added"),
	GEMM("bias_shifted", shifted_bias, "bias comes from the next column"),
	GEMM("k_tail", k_tail, "k is cut to a multiple of 64"),
	GEMM("column_tail", column_tail, "the columns past a multiple of 8 are not written"),
	GEMM("last_row", rows_less_1, "the last row is not written"),
	GEMM("bf16_sums", bf16_sums, "sums are kept in bf16"),
	GEMM("rounded_twice", twice_rounded, "every result passes through bf16"),
	GEMM("tf32", tf32_inputs, "f32 inputs are cut to TF32"),
	GEMM("past_the_end", past_the_end, "one element is written past the end of out"),
	GEMM("stale_output", stale_output, "every second call writes nothing"),
	GEMM("nan_for_zero", nan_for_zero, "zeros come out as NaN"),
	STREAM("last_block", last_block_skipped, "the short last block is not read"),
	STREAM("sums_of_32_bits", sums_of_32_bits, "sums lose their upper half"),
	STREAM("whole_blocks", copies_whole_blocks, "a copy ends at the last whole block"),
	STREAM("seed_ignored", seed_ignored, "the pattern does not depend on the seed"),
	DSMEM("one_peer", one_peer_only, "all rounds read the next rank"),
	DSMEM("peers_by_xor", peers_by_xor,
	      "peers are rank xor t: ranks are missed where the size is no power of 2"),
	DSMEM("read_before_barrier", read_before_barrier, "what is read is what lay there two rounds before"),
	DSMEM("receivers_slot", receivers_slot, "bulk copies land in the receiver's slot, not the sender's"),
	DSMEM("multicast_to_self", multicast_to_self, "the multicast mask holds the sender alone"),
	DSMEM("last_cluster", last_cluster_missing, "the last cluster does not run"),
	{ 0 }
};

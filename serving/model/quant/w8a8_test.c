// SPDX-License-Identifier: Apache-2.0
/*
 * w8a8_test - norms and activations that give their output in 8 bits: a pass has the bits that it has if the
 *             products quantise their inputs, as with a table from before these outputs
 */
#include "conformance/harness.h"
#include "primitives/base/args.h"
#include "serving/model/forward/forward_test.h"

/* The table under test; calls of quant_fp8w, and of operations that gave codes. */
static struct {
	struct cairn_impl impl;
	int quants, codes;
} under;

static int counted_quant(const struct cairn_quant_fp8w_args *args, void *stream)
{
	under.quants++;
	return under.impl.quant_fp8w(args, stream);
}

static int counted_rmsnorm(const struct cairn_rmsnorm_args *args, void *stream)
{
	under.codes += args->q != NULL;
	return under.impl.rmsnorm(args, stream);
}

static int counted_silu_mul(const struct cairn_silu_mul_args *args, void *stream)
{
	under.codes += args->q != NULL;
	return under.impl.silu_mul(args, stream);
}

/* The operations of a plug-in that was built before q. */
static int old_rmsnorm(const struct cairn_rmsnorm_args *args, void *stream)
{
	struct cairn_rmsnorm_args known = *args;

	CAIRN_TRY(cairn_check_args(args, CAIRN_RMSNORM_FIRST_BYTES, "rmsnorm"));
	known.size = CAIRN_RMSNORM_FIRST_BYTES;
	return under.impl.rmsnorm(&known, stream);
}

static int old_silu_mul(const struct cairn_silu_mul_args *args, void *stream)
{
	struct cairn_silu_mul_args known = *args;

	CAIRN_TRY(cairn_check_args(args, CAIRN_SILU_MUL_FIRST_BYTES, "silu_mul"));
	known.size = CAIRN_SILU_MUL_FIRST_BYTES;
	return under.impl.silu_mul(&known, stream);
}

/* Runs a prompt in two passes. Returns its logits, which the caller frees, and the number of layers. */
static float *run(struct cairn_test *t, const char *table, const char *name, int f16,
		  enum cairn_weights weights, int old, size_t *bytes, int *layers)
{
	struct fixture f;
	float *logits = NULL;
	char dir[PATH_MAX];

	if (open_checkpoint(t, &f, table, name, f16))
		goto out;
	under.impl = f.impl;
	under.quants = under.codes = 0;
	f.impl.quant_fp8w = counted_quant;
	f.impl.rmsnorm = old ? old_rmsnorm : counted_rmsnorm;
	f.impl.silu_mul = old ? old_silu_mul : counted_silu_mul;
	snprintf(dir, sizeof(dir), "%s", f.g.dir);
	if ((f16 && altered_checkpoint(t, f.g.dir, "\"bfloat16\"", "\"float16\"", dir)) ||
	    load_fixture(t, &f, dir, f16, weights))
		goto out;
	under.quants = 0;	/* without those of the weights */
	*layers = f.m->config.num_hidden_layers;
	*bytes = sizeof(float) * (size_t)(f.g.num_tokens * f.vocab);
	if (EXPECT(t, run_pass(&f, 0, 13) == 0) &&
	    EXPECT(t, run_pass(&f, 13, f.g.num_tokens - 13) == 0)) {
		logits = f.logits;
		f.logits = NULL;
	}
out:
	close_fixture(&f);
	return logits;
}

/*
 * fused: the products of a layer whose inputs a norm or an activation gives; kept: those whose inputs the
 * pass still quantises. -1: not counted.
 */
static void same_bits(struct cairn_test *t, const char *table, const char *name, int f16,
		      enum cairn_weights weights, int fused, int kept)
{
	size_t bytes = 0, old_bytes = 0;
	int layers = 0;
	float *logits = run(t, table, name, f16, weights, 0, &bytes, &layers), *old;

	EXPECT(t, !logits || under.codes > 0);
	EXPECT(t, !logits || fused < 0 || (under.codes == 2 * layers * fused &&
					   under.quants == 2 * layers * kept));
	old = logits ? run(t, table, name, f16, weights, 1, &old_bytes, &layers) : NULL;
	EXPECT(t, !old || fused < 0 || under.quants == 2 * layers * (fused + kept));
	if (old && EXPECT(t, bytes == old_bytes))
		EXPECT(t, !memcmp(logits, old, bytes));
	free(logits);
	free(old);
}

static void on_table(struct cairn_test *t, const char *table)
{
	same_bits(t, table, "llama3_tiny", 0, CAIRN_WEIGHTS_W8A8, 3, 1);
	same_bits(t, table, "mistral_tiny", 1, CAIRN_WEIGHTS_W8A8_BLOCKS, 3, 1);
	same_bits(t, table, "qwen2_tiny", 0, CAIRN_WEIGHTS_W8A8, 3, 1);		/* with biases */
	same_bits(t, table, "gemma2_tiny", 0, CAIRN_WEIGHTS_W8A8, -1, -1);	/* with gelu */
	same_bits(t, table, "deepseek_q_tiny", 0, CAIRN_WEIGHTS_W8A8, -1, -1);
}

static void same_bits_cpu(struct cairn_test *t)
{
	on_table(t, "cpu");
}

static void same_bits_late(struct cairn_test *t)
{
	on_table(t, "late");
}

static void same_bits_cuda(struct cairn_test *t)
{
	on_table(t, "cuda");
}

static const struct cairn_unit units[] = {
	{ "same_bits_cpu", same_bits_cpu },
	{ "same_bits_late", same_bits_late },
	{ "same_bits_cuda", same_bits_cuda },
};

const struct cairn_family cairn_w8a8_family = {
	.stage = "serving",
	.name = "w8a8",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};

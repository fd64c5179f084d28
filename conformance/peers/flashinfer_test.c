// SPDX-License-Identifier: Apache-2.0
/* flashinfer_test - the table's errors, and what its modules have */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/tables/tables.h"

#ifdef CONFIG_CUDA
#include "conformance/peers/fi_module.h"

#define FI(op)	cairn_impl_flashinfer.op

static void bad_arguments(struct cairn_test *t)
{
	struct cairn_attn_dense_args a = { .size = sizeof(a) };
	struct cairn_attn_paged_args p = { .size = sizeof(p) };
	struct cairn_rmsnorm_args n = { .size = sizeof(n) };
	struct cairn_silu_mul_args m = { .size = sizeof(m) };
	struct cairn_rope_args r = { .size = sizeof(r) };
	struct cairn_sample_args s = { .size = sizeof(s) };
	struct cairn_mla_decode_args l = { .size = sizeof(l) };
	size_t bytes;

	EXPECT(t, FI(attn_dense)(&a, NULL) == -EINVAL);
	EXPECT(t, FI(attn_paged)(&p, NULL) == -EINVAL);
	EXPECT(t, FI(attn_paged_workspace)(&p, &bytes) == -EINVAL);
	EXPECT(t, FI(rmsnorm)(&n, NULL) == -EINVAL);
	EXPECT(t, FI(silu_mul)(&m, NULL) == -EINVAL);
	EXPECT(t, FI(rope)(&r, NULL) == -EINVAL);
	EXPECT(t, FI(sample)(&s, NULL) == -EINVAL);
	EXPECT(t, FI(sample_workspace)(&s, &bytes) == -EINVAL);
	EXPECT(t, FI(mla_decode)(&l, NULL) == -EINVAL);
	EXPECT(t, FI(mla_decode_workspace)(&l, &bytes) == -EINVAL);
}

/* Expects that a call is not supported, and that the text names the member. */
static void unsupported(struct cairn_test *t, int ret, const char *member)
{
	EXPECT(t, ret == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), member);
}

/* Memory that no call reads: each is refused before. */
static char memory[256] __attribute__((aligned(256)));

static void unsupported_norms(struct cairn_test *t)
{
	struct cairn_rmsnorm_args a = { .size = sizeof(a), .out = memory, .x = memory, .weight = memory,
					.rows = 1, .dim = 64, .dtype = CAIRN_F32, .eps = 1e-5f };

	unsupported(t, FI(rmsnorm)(&a, NULL), "rmsnorm: FlashInfer: dtype: f32");
	a.dtype = CAIRN_BF16;
	a.weight_offset = 1;
	unsupported(t, FI(rmsnorm)(&a, NULL), "rmsnorm: FlashInfer: weight_offset:");
	a.weight_offset = 0;
	a.residual = memory + 128;
	a.out = memory + 64;
	unsupported(t, FI(rmsnorm)(&a, NULL), "rmsnorm: FlashInfer: out:");
	a.residual = NULL;
	a.q = (uint8_t *)memory;
	a.q_scale = (float *)memory;
	unsupported(t, FI(rmsnorm)(&a, NULL), "rmsnorm: FlashInfer: q:");
	a.rows = 0;
	EXPECT(t, FI(rmsnorm)(&a, NULL) == 0);
}

static void unsupported_rows(struct cairn_test *t)
{
	struct cairn_silu_mul_args m = { .size = sizeof(m), .out = memory, .x = memory + 128, .rows = 1,
					 .dim = 16, .dtype = CAIRN_F32 };
	struct cairn_rope_args r = { .size = sizeof(r), .q = memory, .inv_freq = (float *)memory,
				     .positions = (int32_t *)memory, .nnz = 1, .num_qo_heads = 1,
				     .head_dim = 16, .rotary_dim = 16, .dtype = CAIRN_F32, .scale = 2 };

	unsupported(t, FI(silu_mul)(&m, NULL), "silu_mul: FlashInfer: dtype: f32");
	m.dtype = CAIRN_F16;
	m.activation = 1;
	unsupported(t, FI(silu_mul)(&m, NULL), "silu_mul: FlashInfer: activation:");
	unsupported(t, FI(rope)(&r, NULL), "rope: FlashInfer: dtype: f32");
	r.dtype = CAIRN_BF16;
	unsupported(t, FI(rope)(&r, NULL), "rope: FlashInfer: k:");
	r.k = memory + 128;
	r.num_kv_heads = 1;
	unsupported(t, FI(rope)(&r, NULL), "rope: FlashInfer: scale:");
	r.scale = 1;
	unsupported(t, FI(rope)(&r, NULL), "rope: FlashInfer: head_dim: 16");
}

static void unsupported_decoding(struct cairn_test *t)
{
	struct cairn_attn_paged_args a = {
		.size = sizeof(a), .out = memory, .q = memory, .qo_indptr = (int32_t *)memory,
		.workspace = memory,
		.kv = { .k_pages = memory, .v_pages = memory, .indptr = (int32_t *)memory,
			.indices = (int32_t *)memory, .last_page_len = (int32_t *)memory, .batch = 2,
			.num_pages = 2, .page_size = 16, .max_len = 16 },
		.nnz_qo = 1, .max_qo_len = 1, .num_qo_heads = 28, .num_kv_heads = 4, .head_dim = 128,
		.dtype = CAIRN_F16, .sm_scale = 1,
	};

	unsupported(t, FI(attn_paged)(&a, NULL), "attn_paged: FlashInfer: nnz_qo:");
	a.nnz_qo = 2;
	unsupported(t, FI(attn_paged)(&a, NULL), "attn_paged: FlashInfer: num_qo_heads: no module has 7");
	a.window = 5;
	unsupported(t, FI(attn_paged)(&a, NULL), "attn_paged: FlashInfer: window");
	a.lse = (float *)memory;
	unsupported(t, FI(attn_paged)(&a, NULL), "attn_paged: FlashInfer: lse:");
	a.kv_fp8 = 1;
	unsupported(t, FI(attn_paged)(&a, NULL), "attn_paged: FlashInfer: kv_fp8:");
	a.nnz_qo = a.max_qo_len = 2;
	a.kv_fp8 = 0;
	unsupported(t, FI(attn_paged)(&a, NULL), "attn_paged: FlashInfer: dtype: f16");
	a.dtype = CAIRN_BF16;
	a.lse = NULL;
	a.window = 0;
	unsupported(t, FI(attn_paged)(&a, NULL), "attn_paged: FlashInfer: max_qo_len: 2");
}

static void unsupported_latents(struct cairn_test *t)
{
	struct cairn_mla_decode_args a = {
		.size = sizeof(a), .out = memory, .q_latent = memory, .q_rope = memory,
		.qo_indptr = (int32_t *)memory, .slots = (int32_t *)memory, .workspace = memory,
		.workspace_bytes = 1 << 30,
		.kv = { .k_pages = memory, .indptr = (int32_t *)memory, .indices = (int32_t *)memory,
			.last_page_len = (int32_t *)memory, .batch = 1, .num_pages = 1, .page_size = 64,
			.max_len = 64 },
		.nnz_qo = 1, .max_qo_len = 1, .num_heads = 16, .kv_lora_rank = 512, .rope_dim = 64,
		.dtype = CAIRN_F16, .sm_scale = 1,
	};

	unsupported(t, FI(mla_decode)(&a, NULL), "mla_decode: FlashInfer: dtype: f16");
	a.dtype = CAIRN_BF16;
	a.kv_fp8 = 1;
	unsupported(t, FI(mla_decode)(&a, NULL), "mla_decode: FlashInfer: kv_fp8:");
	a.kv_fp8 = 0;
	a.num_slots = 1;
	unsupported(t, FI(mla_decode)(&a, NULL), "mla_decode: FlashInfer: slots:");
	a.num_slots = 0;
	a.q_rope_stride = (int64_t)1 << 30;
	unsupported(t, FI(mla_decode)(&a, NULL), "mla_decode: FlashInfer: q_latent_stride, q_rope_stride:");
	a.nnz_qo = 0;
	EXPECT(t, FI(mla_decode)(&a, NULL) == 0);
}

static void missing_module(struct cairn_test *t)
{
	const char *given = getenv("CAIRN_FLASHINFER"), *const function = "plan";
	char *keep = given ? strdup(given) : NULL;
	tvm_function *f;

	setenv("CAIRN_FLASHINFER", "/nowhere", 1);
	EXPECT(t, cairn_fi_load("attn_dense", "128_128_bf16", &function, 1, &f) == -EOPNOTSUPP);
	EXPECT(t, strstr(cairn_last_error(), "attn_dense: FlashInfer (") != NULL);
	EXPECT(t, strstr(cairn_last_error(), "(/nowhere/tvm_ffi/lib/libtvm_ffi.so)") != NULL);
	EXPECT(t, strstr(cairn_last_error(), "is not on this machine: tools/peers.sh flashinfer") != NULL);
	if (keep)
		setenv("CAIRN_FLASHINFER", keep, 1);
	else
		unsetenv("CAIRN_FLASHINFER");
	free(keep);
}

/* Loads modules without a device: each that is there has its functions, and no others. */
static void modules_without_a_device(struct cairn_test *t)
{
	static const struct { const char *module, *functions[5]; } all[] = {
		{ "128_128_bf16", { "plan", "ragged_run", "paged_run" } },
		{ "decode_128_bf16", { "plan", "run" } }, { "decode_128_f16", { "plan", "run" } },
		{ "tensor_128_bf16", { "plan", "paged_run" } }, { "activation", { "silu_and_mul" } },
		{ "mla_512_64_bf16", { "plan", "run" } },
		{ "norm", { "rmsnorm", "fused_add_rmsnorm" } },
		{ "rope", { "apply_rope_pos_ids_cos_sin_cache" } },
		{ "sampling", { "top_k_mask_logits", "softmax", "top_p_sampling_from_probs",
				"sampling_from_probs", "sampling_from_logits" } },
	};
	const char *const wrong = "no_such_function";
	int loaded = 0;

	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		tvm_function *f[5] = { NULL }, *none;
		int n = 0;

		while (n < 5 && all[i].functions[n])
			n++;
		if (cairn_fi_load("flashinfer", all[i].module, all[i].functions, n, f)) {
			EXPECT_CONTAINS(t, cairn_last_error(), "is not on this machine");
			continue;
		}
		for (int k = 0; k < n; k++)
			EXPECT(t, f[k] != NULL);
		EXPECT(t, cairn_fi_load("flashinfer", all[i].module, &wrong, 1, &none) == -EOPNOTSUPP);
		EXPECT_CONTAINS(t, cairn_last_error(), "lacks the function no_such_function");
		loaded++;
	}
	if (!loaded)
		cairn_skip(t, "%s", cairn_last_error());
}

/* Among all operations of all tables, only these four are judged by rules of their own. */
static void own_rules(struct cairn_test *t)
{
	const size_t sample = offsetof(struct cairn_impl, sample);
	const size_t norm = offsetof(struct cairn_impl, rmsnorm), w4 = offsetof(struct cairn_impl, gemm_w4);

	EXPECT(t, cairn_impl_has_own_rules(&cairn_impl_flashinfer, sample));
	EXPECT(t, cairn_impl_has_own_rules(&cairn_impl_flashinfer, norm));
	EXPECT(t, cairn_impl_has_own_rules(&cairn_impl_flashinfer, offsetof(struct cairn_impl, mla_decode)));
	EXPECT(t, !cairn_impl_has_own_rules(&cairn_impl_cuda, offsetof(struct cairn_impl, mla_decode)));
	EXPECT(t, !cairn_impl_has_own_rules(&cairn_impl_flashinfer, offsetof(struct cairn_impl, rope)));
	EXPECT(t, cairn_impl_has_own_rules(&cairn_impl_unfused, w4));
	EXPECT(t, !cairn_impl_has_own_rules(&cairn_impl_cuda, w4));
	EXPECT(t, !cairn_impl_has_own_rules(&cairn_impl_cuda, sample));
	EXPECT(t, !cairn_impl_has_own_rules(&cairn_impl_peers, norm));
	EXPECT(t, !cairn_impl_has_own_rules(&cairn_impl_cpu, norm));
}

static const struct cairn_unit units[] = {
	{ "bad_arguments", bad_arguments }, { "unsupported_norms", unsupported_norms },
	{ "unsupported_rows", unsupported_rows }, { "unsupported_decoding", unsupported_decoding },
	{ "unsupported_latents", unsupported_latents },
	{ "missing_module", missing_module }, { "modules_without_a_device", modules_without_a_device },
	{ "own_rules", own_rules },
};
#else
static void needs_cuda(struct cairn_test *t)
{
	cairn_skip(t, "this build has no CUDA");
}

static const struct cairn_unit units[] = { { "needs_cuda", needs_cuda } };
#endif

const struct cairn_family cairn_flashinfer_family = {
	.stage = "conformance", .name = "flashinfer", .units = units, .num_units = ARRAY_SIZE(units),
};

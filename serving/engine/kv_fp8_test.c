// SPDX-License-Identifier: Apache-2.0
/*
 * kv_fp8_test - models whose keys and values are kept in 8 bits
 *
 * On the host the logits must be bitwise equal to those of a 16-bit cache whose kv_append rounds keys and
 * values to e4m3 and back: an e4m3 code times a power of two is exact in 16 bits, so the two caches hold the
 * same values.
 *
 * On all tables they are compared with those of a 16-bit cache without this rounding. An element of K or V
 * changes by at most 2^-4 of itself, so the limit of the root mean square difference is 2^-3 of the logits'
 * own, one half for keys and one for values. The golden checkpoints come close to the limit, because their
 * random weights make softmax sharper than trained weights do. engine_kv_test.c tests that a request gets the
 * same answer in a batch as alone.
 */
#include <math.h>

#include "conformance/harness.h"
#include "primitives/base/fp8.h"
#include "serving/model/forward/forward_test.h"

/* Like open_fixture(), but with this form of cache and without a reference. */
static int open_kv(struct cairn_test *t, struct fixture *f, const char *table, const char *dir,
		   const struct golden *g, enum cairn_kv_form kv)
{
	memset(f, 0, sizeof(*f));
	f->table = table;
	f->g = *g;
	f->kv_form = kv;
	return open_table(t, table, &f->impl) || load_fixture(t, f, dir, 0, CAIRN_WEIGHTS_PLAIN) ? -1 : 0;
}

static void close_kv(struct fixture *f)
{
	f->g.st = NULL;		/* belongs to the caller */
	close_fixture(f);
}

/* Runs the prompt in passes of these sizes. */
static void run_all(struct cairn_test *t, struct fixture *f, const int *sizes, int count)
{
	for (int at = 0, k = 0, n; at < f->g.num_tokens; at += n, k++) {
		n = sizes[k < count ? k : count - 1];
		n = n < f->g.num_tokens - at ? n : f->g.num_tokens - at;
		if (!EXPECT(t, run_pass(f, at, n) == 0))
			return;
	}
}

static void compare(struct cairn_test *t, const struct fixture *plain, const struct fixture *fp8)
{
	double square = 0, moved = 0, most = 0;
	int n = plain->g.num_tokens * plain->vocab;

	for (int i = 0; i < n; i++) {
		double d = fabs((double)plain->logits[i] - (double)fp8->logits[i]);

		square += (double)plain->logits[i] * (double)plain->logits[i] / n;
		moved += d * d / n;
		most = d <= most ? most : d;
	}
	cairn_note(t, "%s: differences from 16-bit KV: root mean square %.4f, largest %.3f, of logits of "
		   "%.3f", fp8->table, sqrt(moved), most, sqrt(square));
	EXPECT(t, moved > 0 && sqrt(moved) <= 0x1p-3 * sqrt(square));
}

/* The cache to which append_rounded() writes, and its scales. */
static struct {
	const struct fixture *f;
	const float *scales;		/* [2, layers, heads]; NULL: 1 */
} rounded;

/* Does kv_append for a 16-bit cache on the host, rounding values to e4m3 and back. */
static int append_rounded(const struct cairn_kv_append_args *a, void *stream)
{
	const struct cairn_model_config *c = &rounded.f->m->config;
	int64_t row = (int64_t)a->num_kv_heads * a->head_dim;
	int64_t offset = (const char *)a->kv.k_pages - rounded.f->kv.base;
	int64_t layer = offset / (int64_t)rounded.f->kv.layer_bytes;
	struct cairn_kv_append_args to = *a;
	char *x = calloc((size_t)(2 * a->nnz_qo * row + 16), 2);
	int ret;

	if (!x)
		return cairn_error(ENOMEM, "no memory");
	for (int64_t i = 0; i < 2 * a->nnz_qo * row; i++) {
		int64_t of_v = i / (a->nnz_qo * row), r = i / row % a->nnz_qo, e = i % row;
		int64_t at = (of_v * c->num_hidden_layers + layer) * a->num_kv_heads + e / a->head_dim;
		float scale = rounded.scales ? rounded.scales[at] : 1;
		float v = (float)cairn_load(of_v ? a->v : a->k, a->dtype,
					    r * (of_v ? a->v_stride : a->k_stride) + e);

		v = cairn_e4m3_to_float(cairn_float_to_e4m3(v / scale)) * scale;
		cairn_store(x, a->dtype, i, (double)v);
	}
	to.k = x;
	to.v = x + a->nnz_qo * row * 2;
	to.k_stride = to.v_stride = 0;
	ret = cairn_kv_append_cpu(&to, stream);
	free(x);
	return ret;
}

/* Expects bitwise the logits of a 16-bit cache of rounded keys and values, on a host table. */
static void judge_bits(struct cairn_test *t, const struct fixture *fp8, const char *dir, const float *scales)
{
	static const int whole[] = { 1 << 20 };
	struct fixture f;

	if (!strcmp(fp8->table, "cuda") || open_kv(t, &f, fp8->table, dir, &fp8->g, CAIRN_KV_PLAIN))
		return;
	f.impl.kv_append = append_rounded;
	f.impl.qkv_append = NULL;	/* so that passes of few rows call it, too */
	rounded.f = &f;
	rounded.scales = scales;
	run_all(t, &f, whole, 1);
	EXPECT(t, !memcmp(f.logits, fp8->logits, sizeof(float) * (size_t)(f.g.num_tokens * f.vocab)));
	close_kv(&f);
}

static void logits(struct cairn_test *t, const char *table, const char *name)
{
	static const int whole[] = { 1 << 20 }, chunks[] = { 7, 16, 33, 1, 23 };
	struct fixture plain = { 0 }, fp8 = { 0 };
	struct golden g;
	float *first;
	size_t bytes;

	if (open_golden(t, &g, name))
		return;
	if (open_kv(t, &plain, table, g.dir, &g, CAIRN_KV_PLAIN) ||
	    open_kv(t, &fp8, table, g.dir, &g, CAIRN_KV_FP8))
		goto out;
	EXPECT(t, fp8.m->kv_scales == NULL && fp8.kv.layer_bytes * 2 == plain.kv.layer_bytes);
	EXPECT(t, (cairn_model_step_bytes(plain.m, 1, 100) - cairn_model_step_bytes(plain.m, 1, 0)) ==
		  2 * (cairn_model_step_bytes(fp8.m, 1, 100) - cairn_model_step_bytes(fp8.m, 1, 0)));
	run_all(t, &plain, whole, 1);
	run_all(t, &fp8, whole, 1);
	compare(t, &plain, &fp8);
	judge_bits(t, &fp8, g.dir, NULL);
	bytes = sizeof(*first) * (size_t)(g.num_tokens * fp8.vocab);
	first = malloc(bytes);
	if (EXPECT(t, first)) {
		memcpy(first, fp8.logits, bytes);
		run_all(t, &fp8, chunks, (int)ARRAY_SIZE(chunks));
		compare(t, &plain, &fp8);
		/* on the host, the bits of a row depend only on its own request */
		EXPECT(t, !strcmp(table, "cuda") || !memcmp(first, fp8.logits, bytes));
	}
	free(first);
out:
	close_kv(&plain);
	close_kv(&fp8);
	close_golden(&g);
}

/* A tensor of scales that is added to a checkpoint. */
struct extra {
	const char *name, *dtype, *shape;
	float values[8];
	int num, bytes;			/* bytes of an element */
};

/* Copies a golden checkpoint to the test's directory and appends more tensors. */
static int with_extras(struct cairn_test *t, const struct golden *g, const struct extra *extras, int num,
		       char *dir)
{
	struct cairn_safetensors *st;
	char path[PATH_MAX + 32], *json = malloc(1 << 20), *data;
	size_t at = 0, begin = 0, pad;
	float values[ARRAY_SIZE(extras->values)];
	uint64_t header;

	snprintf(dir, PATH_MAX, "%s", cairn_tmpdir(t));
	if (!EXPECT(t, json) || altered_config(t, g->dir, "", "") ||
	    !EXPECT(t, cairn_safetensors_open(g->dir, &st) == 0))
		return -1;
	data = calloc(1, cairn_safetensors_bytes(st) + 4096);
	for (size_t i = 0; i < cairn_safetensors_count(st); i++) {
		const struct cairn_tensor *x = cairn_safetensors_at(st, i);

		at += (size_t)sprintf(json + at, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? ',' : '{',
				      x->name, cairn_st_dtype_name(x->dtype));
		for (int k = 0; k < x->rank; k++)
			at += (size_t)sprintf(json + at, "%s%lld", k ? "," : "", (long long)x->shape[k]);
		at += (size_t)sprintf(json + at, "],\"data_offsets\":[%zu,%zu]}", begin,
				      begin + x->num_bytes);
		memcpy(data + begin, x->data, x->num_bytes);
		begin += x->num_bytes;
	}
	for (int i = 0; i < num; i++) {
		size_t bytes = (size_t)(extras[i].num * extras[i].bytes);

		at += (size_t)sprintf(json + at, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],"
				      "\"data_offsets\":[%zu,%zu]}", extras[i].name, extras[i].dtype,
				      extras[i].shape, begin, begin + bytes);
		for (int k = 0; k < extras[i].num; k++)
			cairn_store(values, extras[i].bytes == 4 ? CAIRN_F32 : CAIRN_BF16, k,
				    (double)extras[i].values[k]);
		memcpy(data + begin, values, bytes);	/* not aligned, as tensors of a file may be */
		begin += bytes;
	}
	json[at++] = '}';
	pad = (8 - at % 8) % 8;
	memset(json + at, ' ', pad);
	header = at + pad;
	memmove(json + 8, json, header);
	memcpy(json, &header, 8);
	json = realloc(json, 8 + header + begin);
	memcpy(json + 8 + header, data, begin);
	cairn_tmpfile(t, path, sizeof(path), "model.safetensors", json, 8 + header + begin);
	cairn_safetensors_close(st);
	free(json);
	free(data);
	return 0;
}

/* Scales from a checkpoint: under each of the names, as one number or one per head. */
static void scales(struct cairn_test *t, const char *table)
{
	static const int whole[] = { 1 << 20 };
	static const struct extra extras[] = {
		{ "model.layers.0.self_attn.attn.k_scale", "F32", "2", { 0.03125f, 0.25f }, 2, 4 },
		{ "model.layers.0.self_attn.attn.v_scale", "BF16", "1", { 0.0625f }, 1, 2 },
		{ "model.layers.1.self_attn.k_proj.k_scale", "F32", "", { 0.125f }, 1, 4 },
		{ "model.layers.1.self_attn.v_proj.v_scale", "F32", "2,1,1", { 2, 0.015625f }, 2, 4 },
	};
	static const float want[] = { 0.03125f, 0.25f, 0.125f, 0.125f, 0.0625f, 0.0625f, 2, 0.015625f };
	struct fixture plain = { 0 }, fp8 = { 0 };
	struct golden g;
	char dir[PATH_MAX];

	if (open_golden(t, &g, "llama3_tiny"))
		return;
	if (with_extras(t, &g, extras, (int)ARRAY_SIZE(extras), dir) ||
	    open_kv(t, &plain, table, dir, &g, CAIRN_KV_PLAIN) ||
	    open_kv(t, &fp8, table, dir, &g, CAIRN_KV_FP8))
		goto out;
	EXPECT(t, plain.m->kv_scales == NULL && cairn_model_kv_scale(plain.m, 0, 0) == NULL);
	if (!EXPECT(t, fp8.m->kv_scales && fp8.m->config.num_hidden_layers == 2 &&
		       fp8.m->config.num_key_value_heads == 2))
		goto out;
	if (strcmp(table, "cuda"))
		for (int layer = 0; layer < 2; layer++)
			for (int of_v = 0; of_v < 2; of_v++)
				EXPECT(t, !memcmp(cairn_model_kv_scale(fp8.m, layer, of_v),
						  want + of_v * 4 + layer * 2, 2 * sizeof(*want)));
	run_all(t, &plain, whole, 1);
	run_all(t, &fp8, whole, 1);
	compare(t, &plain, &fp8);
	judge_bits(t, &fp8, dir, want);
out:
	close_kv(&plain);
	close_kv(&fp8);
	close_golden(&g);
}

static void refuses_kv(struct cairn_test *t, const struct cairn_impl *impl, const char *dir, int want,
		       const char *text)
{
	struct cairn_model *m = NULL;

	EXPECT(t, cairn_model_load_as(&m, impl, dir, CAIRN_WEIGHTS_PLAIN, CAIRN_KV_FP8, NULL, NULL) == want);
	EXPECT_CONTAINS(t, cairn_last_error(), text);
	EXPECT(t, m == NULL);
}

static void bad_scales(struct cairn_test *t)
{
	static const struct {
		struct extra extra;
		const char *text;
	} rows[] = {
		{ { "model.layers.0.self_attn.k_scale", "F32", "1", { 0 }, 1, 4 },
		  "model.layers.0.self_attn.k_scale: element 0 is 0, must be finite and > 0" },
		{ { "model.layers.1.self_attn.v_scale", "F32", "2", { 1, NAN }, 2, 4 },
		  "model.layers.1.self_attn.v_scale: element 1 is" },
		{ { "model.layers.0.self_attn.attn.v_scale", "F32", "2", { 1, INFINITY }, 2, 4 },
		  "v_scale: element 1 is inf" },
		{ { "model.layers.0.self_attn.v_scale", "F32", "3", { 1, 1, 1 }, 3, 4 },
		  "has 3 elements, must have 1 or 2 (num_key_value_heads)" },
		{ { "model.layers.0.self_attn.v_scale", "I32", "1", { 1 }, 1, 4 },
		  "v_scale: dtype I32 is not supported" },
	};
	struct cairn_model *m;
	struct cairn_impl impl;
	struct golden g;
	char dir[PATH_MAX];

	if (open_table(t, "cpu", &impl) || open_golden(t, &g, "llama3_tiny"))
		return;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (with_extras(t, &g, &rows[i].extra, 1, dir))
			break;
		refuses_kv(t, &impl, dir, -EINVAL, rows[i].text);
		/* a 16-bit cache does not read them */
		if (EXPECT(t, cairn_model_load(&m, &impl, dir, NULL, NULL) == 0))
			cairn_model_free(m);
	}
	close_golden(&g);
}

static int append_16_bits_only(const struct cairn_kv_append_args *a, void *stream)
{
	return a->kv_fp8 ? cairn_error(EOPNOTSUPP, "kv_append: kv_fp8: not here") :
	       cairn_kv_append_cpu(a, stream);
}

static int attn_16_bits_only(const struct cairn_attn_paged_args *a, void *stream)
{
	return a->kv_fp8 ? cairn_error(EOPNOTSUPP, "attn_paged: kv_fp8: not here") :
	       cairn_attn_paged_cpu(a, stream);
}

static void refused(struct cairn_test *t)
{
	struct cairn_decoder *d = NULL;
	struct cairn_impl impl, other;
	struct cairn_model *m;
	struct golden g;

	if (open_table(t, "cpu", &impl))
		return;
	if (!open_golden(t, &g, "deepseek_tiny")) {
		refuses_kv(t, &impl, g.dir, -EOPNOTSUPP,
			   "kv_lora_rank: latent attention has no 8-bit KV cache");
		close_golden(&g);
	}
	if (open_golden(t, &g, "mistral_tiny"))
		return;
	other = impl;
	other.kv_append = append_16_bits_only;
	refuses_kv(t, &other, g.dir, -EOPNOTSUPP, "the table cannot run layers.0.kv_append: cpu: kv_append: "
		   "kv_append: kv_fp8");
	other = impl;
	other.attn_paged = attn_16_bits_only;
	refuses_kv(t, &other, g.dir, -EOPNOTSUPP, "attn_paged: kv_fp8: not here");
	if (EXPECT(t, cairn_model_load_as(&m, &impl, g.dir, CAIRN_WEIGHTS_PLAIN, CAIRN_KV_FP8, NULL,
					  NULL) == 0)) {
		EXPECT(t, cairn_decoder_create(&d, m, CAIRN_DECODE_GRAPH) == -EOPNOTSUPP);
		EXPECT_CONTAINS(t, cairn_last_error(), "8-bit KV cache");
		cairn_decoder_destroy(d);
		cairn_model_free(m);
	}
	close_golden(&g);
}

#define EACH(what, table) \
	what(llama3, "llama3_tiny", table) \
	what(mistral, "mistral_tiny", table) \
	what(qwen3, "qwen3_tiny", table) \
	what(gemma2, "gemma2_tiny", table) \
	what(mixtral, "mixtral_tiny", table) \
	what(gpt_oss, "gpt_oss_tiny", table)
#define DEFINE(unit, name, table) \
	static void logits_##unit##_##table(struct cairn_test *t) { logits(t, #table, name); }
#define LIST(unit, name, table) { "logits_" #unit "_" #table, logits_##unit##_##table },
EACH(DEFINE, ref)
EACH(DEFINE, cpu)
EACH(DEFINE, cuda)
#define SCALES(table) \
	static void scales_##table(struct cairn_test *t) { scales(t, #table); }
SCALES(ref)
SCALES(cpu)
SCALES(cuda)

static const struct cairn_unit units[] = {
	EACH(LIST, ref)
	EACH(LIST, cpu)
	EACH(LIST, cuda)
	{ "scales_ref", scales_ref }, { "scales_cpu", scales_cpu }, { "scales_cuda", scales_cuda },
	{ "bad_scales", bad_scales }, { "refused", refused },
};

const struct cairn_family cairn_kv_fp8_family = {
	.stage = "serving",
	.name = "kv_fp8",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 20,
};

// SPDX-License-Identifier: Apache-2.0
/*
 * attn_variant_text_test - attn_variant with texts that are compiled at run time
 *
 * The cases text_* use the text of the file $CAIRN_ATTN_VARIANT with the scalars of $CAIRN_ATTN_P, both of
 * which `cairn attn-variant` sets; without them, they use example.c. The other cases use texts of this file,
 * which together have all hooks.
 */
#include <stdlib.h>

#include "conformance/harness.h"
#include "fused/attention/variant/text/attn_variant_create.h"
#include "fused/attention/variant/attn_variant_inputs.h"
#include "fused/attention/variant/attn_variant_known.h"

__asm__(".pushsection .rodata\n"
	"attn_variant_example: .incbin \"fused/attention/variant/example.c\"\n"
	".byte 0\n"
	".popsection\n");
extern const char attn_variant_example[];

static const char rotated[] =
	"void query(const struct attn_x *x, real *a, real *b, int pair)\n"
	"{ attn_rotate(a, b, (float)x->q_pos * x->t[1][pair]); }\n"
	"void key(const struct attn_x *x, real *a, real *b, int pair)\n"
	"{ attn_rotate(a, b, (float)x->k_pos * x->t[1][pair]); }\n"
	"void range(const struct attn_x *x, int *lo, int *hi)\n"
	"{ *lo = x->q_pos - (int)x->p[1]; if (*hi > x->kv_len - 1) *hi = x->kv_len - 1; }\n"
	"real sink(const struct attn_x *x) { return 4 * x->t[2][x->kv_head] - 2; }\n"
	"real output(const struct attn_x *x, real o, int c) { return o * x->t[3][c] + 1; }\n";
static const char weighed[] =
	"int keep(const struct attn_x *x) { return (x->k_pos + x->head + x->row) % 3 != 0; }\n"
	"real logit(const struct attn_x *x, real s) { return s + x->p[3] * x->t[0][x->k_pos % 64]; }\n"
	"real weight(const struct attn_x *x, real s) { return x->p[2] * attn_sigmoid(s); }\n";
static const char capped[] =
	"real head_slope(const struct attn_x *x) { return x->t[1][x->head] / 64; }\n"
	"real logit(const struct attn_x *x, real s) { return s + x->p[2] * x->t[0][x->k_pos % 64]; }\n"
	"real logit_cap(const struct attn_x *x) { return x->p[1] * x->t[2][x->kv_head] / 4; }\n";
/* only a bias for the distance, of keys that are all far from the row's own */
static const char leaning[] =
	"real head_slope(const struct attn_x *x) { return (2 * x->t[1][x->head] - 1) / 8; }\n"
	"int keep(const struct attn_x *x) { return (x->k_pos + x->head) % 5 != 0; }\n"
	"void range(const struct attn_x *x, int *lo, int *hi)\n"
	"{ if (*hi > x->q_pos - 40) *hi = x->q_pos - 40; }\n"
	"real sink(const struct attn_x *x) { return 4 * x->t[2][x->kv_head] - 8; }\n";
static const char by_request[] =
	"static real slope(const struct attn_x *x)\n"
	"{ return x->request % 2 ? x->p[3] : x->t[0][x->row % 64]; }\n"
	"real logit(const struct attn_x *x, real s)\n"
	"{ return s * (1 + slope(x)) + (real)0.01 * (x->kv_len - x->qo_len - x->k_pos); }\n";

/* reads an illegal address if it is called for a key that does not exist */
static const char existing[] =
	"static real check(const struct attn_x *x, real s)\n"
	"{ int past = x->k_pos - x->kv_len;\n"
	"  return past < 0 ? s : s + *(const volatile float *)(4 * (unsigned long long)past); }\n"
	"int keep(const struct attn_x *x) { return check(x, 1) > 0; }\n"
	"real logit(const struct attn_x *x, real s) { return check(x, s); }\n";

static const struct {
	const char *name, *text;
} texts[] = {
	{ "text", attn_variant_example }, { "rotated", rotated }, { "weighed", weighed },
	{ "by_request", by_request }, { "capped", capped },
	{ "existing", existing }, { "leaning", leaning },
};
#define NUM_TEXTS	((int)ARRAY_SIZE(texts))

#define LENS(...)	(const int[]){ __VA_ARGS__ }
#define N(name_, batch_, qo_, kv_, hq_, hkv_, dim_) \
	.name = name_, .batch = batch_, .qo = qo_, .kv = kv_, .hq = hq_, .hkv = hkv_, .dim = dim_
#define MIXED		.qo_lens = LENS(1, 70, 0, 17, 3, 130), .kv_lens = LENS(300, 70, 33, 0, 54, 129)

static const struct shape shapes[] = {
	{ N("mixed_h8_2_d128_bf16", 6, 1, 1, 8, 2, 128), .flags = CAUSAL | LSE | PAGED_PADDED, MIXED },
	{ N("mixed_h3_3_d64_f16", 6, 1, 1, 3, 3, 64), .flags = CAUSAL | LSE | F16, MIXED },
	{ N("full_h6_2_d64_bf16", 2, 70, 150, 6, 2, 64), .flags = LSE, .layout = ROW_GAPS },
	{ N("full_h4_1_d128_f16_interleaved", 2, 40, 257, 4, 1, 128), .flags = LSE | F16 | INTERLEAVED,
		.layout = HEADS_FIRST, .q_gap = 8 },
	{ N("rows_past_keys_h4_4_d128_bf16", 2, 200, 90, 4, 4, 128), .flags = CAUSAL | LSE | INTERLEAVED },
	{ N("decode_h32_8_d128_bf16", 5, 1, 700, 32, 8, 128), .flags = CAUSAL | LSE },
	{ N("slices_h4_2_d128_bf16", 3, 1, 1, 4, 2, 128), .flags = CAUSAL | LSE,
		.qo_lens = LENS(1, 2, 3), .kv_lens = LENS(2100, 0, 90) },
	{ N("slices_h2_2_d64_f16", 1, 5, 1700, 2, 2, 64), .flags = LSE | F16 | INTERLEAVED },
};
#define NUM_SHAPES	((int)ARRAY_SIZE(shapes))

/* for the text of the caller alone, on a GPU */
static const struct shape bench[] = {
	{ N("h16_d128_b16_s1024_causal_bf16", 16, 1024, 1024, 16, 16, 128),
		.flags = CAUSAL | BENCH | DEVICE },
	{ N("h32_d64_b4_s4096_causal_bf16", 4, 4096, 4096, 32, 32, 64), .flags = CAUSAL | BENCH | DEVICE },
};
#define NUM_BENCH	((int)ARRAY_SIZE(bench))

static const struct shape *shape_of(int i)
{
	return i < NUM_TEXTS * NUM_SHAPES ? &shapes[i % NUM_SHAPES] : &bench[i - NUM_TEXTS * NUM_SHAPES];
}

static int text_of(int i)
{
	return i < NUM_TEXTS * NUM_SHAPES ? i / NUM_SHAPES : 0;
}

static void describe(int i, struct cairn_case *c)
{
	snprintf(c->name, sizeof(c->name), "%s_%s", texts[text_of(i)].name, shape_of(i)->name);
	describe_shape(shape_of(i), c);
}

/* Creates the variant of the caller's file. */
static int create_file(const char *path, int32_t *variant)
{
	static char data[8 << 20];
	FILE *f = fopen(path, "rb");
	size_t n;

	if (!f)
		return cairn_error(EINVAL, "%s: %s", path, strerror(errno));
	n = fread(data, 1, sizeof(data), f);
	fclose(f);
	return cairn_attn_variant_create(data, n, path, variant);
}

/* Returns the variant of a text, which is made at the first call, or -1. */
static int32_t variant_of(int text)
{
	static int32_t known[NUM_TEXTS];
	const char *file = text ? NULL : getenv("CAIRN_ATTN_VARIANT");
	int ret = 0;

	if (!known[text] && file)
		ret = create_file(file, &known[text]);
	else if (!known[text])
		ret = cairn_attn_variant_create(texts[text].text, strlen(texts[text].text), texts[text].name,
						&known[text]);
	if (ret) {
		fprintf(stderr, "# %s\n", cairn_last_error());
		known[text] = -1;	/* its calls will be refused, so its cases fail */
	}
	return known[text];
}

static void setup(struct cairn_op *op)
{
	struct cairn_attn_variant_args *a = op->args;
	struct shape s = *shape_of(op->case_index);
	float p[8] = { 20, 40, 0.25f, 0.5f, 1, 1, 1, 1 };
	const char *given = text_of(op->case_index) ? NULL : getenv("CAIRN_ATTN_P");
	int32_t variant = variant_of(text_of(op->case_index));

	for (int i = 0; given && i < 8; i++) {
		p[i] = strtof(given, (char **)(uintptr_t)&given);
		given += *given == ',';
	}
	s.flags |= TEXT;
	s.p = p;
	if (attn_variant_weighs(variant))
		s.flags &= ~(unsigned)LSE;
	declare_case(op, &s);
	a->variant = variant;
}

const struct cairn_family cairn_attn_variant_text_family = {
	.stage = "fused", .name = "attn_variant_text",
	.op = offsetof(struct cairn_impl, attn_variant),
	.workspace_op = offsetof(struct cairn_impl, attn_variant_workspace),
	.args_size = sizeof(struct cairn_attn_variant_args),
	.sms_field = FIELD(sms),
	.workspace_field = FIELD(workspace),
	.num_cases = NUM_TEXTS * NUM_SHAPES + NUM_BENCH,
	.describe = describe,
	.setup = setup,
	.relist = relist,
	.exact = exact,
	.cost_s = 5,
};

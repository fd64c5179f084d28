// SPDX-License-Identifier: Apache-2.0
/*
 * dropin_test - calls in every form of FlashInfer's, answered by our CPU kernels, against attention computed
 * here from FlashInfer's description of the tensors
 */
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#include "conformance/dropin/dropin_calls.h"
#include "conformance/harness.h"
#include "conformance/tables/tables.h"

enum { PAGED = 1, DENSE, BSR };

static int answered;			/* by which operation */
static int answered_sms;
static int64_t answered_keys;		/* nnz_kv */
static char raised[600];
static int64_t planned[8];

static int spy_paged(const struct cairn_attn_paged_args *a, void *stream)
{
	int64_t keys = 0;

	for (int32_t i = 0; i < a->kv.batch; i++)
		keys += cairn_kv_len(&a->kv, i);
	if (a->nnz_kv && a->nnz_kv < keys)
		return cairn_error(EINVAL, "attn_paged: nnz_kv: fewer than there are");
	answered = PAGED;
	answered_keys = a->nnz_kv;
	return cairn_attn_paged_cpu(a, stream);
}

static int spy_dense(const struct cairn_attn_dense_args *a, void *stream)
{
	answered = DENSE;
	return cairn_attn_dense_cpu(a, stream);
}

static int spy_bsr(const struct cairn_attn_bsr_args *a, void *stream)
{
	answered = BSR;
	answered_sms = a->sms;
	return cairn_attn_bsr_valid(a) ? -EINVAL : cairn_attn_bsr_cpu(a, stream);
}

static void *stream(int32_t device_type, int32_t device_id)
{
	(void)device_type;
	(void)device_id;
	return NULL;
}

static void raise_text(const char *kind, const char *message)
{
	snprintf(raised, sizeof(raised), "%s: %s", kind, message);
}

static int array(const int64_t *values, int32_t count, struct tvm_any *out)
{
	(void)out;
	memcpy(planned, values, (size_t)count * sizeof(*values));
	return 0;
}

static const struct cairn_impl table = {
	.size = sizeof(table), .abi_version = CAIRN_ABI_VERSION, .flags = CAIRN_IMPL_HOST_MEM,
	.attn_paged = spy_paged, .attn_dense = spy_dense, .attn_bsr = spy_bsr,
};
static const struct dropin_host host = { stream, raise_text, array };
static const struct dropin dropin = { &table, &dropin_arrays_host, &host };

static const struct shape shapes[] = {
	{ .form = PAGED2, .mask = MASK_CAUSAL, .window_left = -1, .op = PAGED },
	{ .form = PAGED3, .mask = MASK_CAUSAL, .window_left = 3, .softcap = 2, .dtype = CAIRN_BF16,
	  .op = PAGED },
	{ .form = PAGED2, .fp8 = 1, .window_left = -1, .op = PAGED },
	{ .form = PAGED2, .mask = MASK_CAUSAL, .window_left = -1, .graph = 1, .op = PAGED },
	{ .form = PAGED2, .hnd = 1, .mask = MASK_CAUSAL, .window_left = -1, .op = BSR },
	{ .form = PAGED3, .apart = 1, .window_left = 4, .op = BSR },
	{ .form = PAGED2, .apart = 1, .hnd = 1, .mask = MASK_CUSTOM, .window_left = -1, .op = BSR },
	{ .form = PAGED2, .mask = MASK_CUSTOM, .window_left = -1, .graph = 1, .op = BSR },
	{ .form = RAGGED2, .mask = MASK_CAUSAL, .softcap = 3, .window_left = -1, .op = DENSE },
	{ .form = RAGGED3, .hnd = 1, .window_left = 2, .dtype = CAIRN_BF16, .op = DENSE },
	{ .form = RAGGED2, .mask = MASK_CUSTOM, .window_left = -1, .op = BSR },
	{ .form = RAGGED2, .fp8 = 1, .mask = MASK_CAUSAL, .window_left = -1, .op = BSR },
	{ .form = RAGGED3, .mask = MASK_CAUSAL, .window_left = -1, .graph = 1, .op = DENSE },
	{ .form = DECODE, .window_left = -1, .op = PAGED },
	{ .form = DECODE, .apart = 1, .hnd = 1, .window_left = 5, .softcap = 2, .fp8 = 1, .op = BSR },
	{ .form = DECODE, .window_left = -1, .graph = 1, .op = PAGED },
	{ .form = SINGLE2, .mask = MASK_CAUSAL, .window_left = -1, .op = DENSE },
	{ .form = SINGLE2, .mask = MASK_CUSTOM, .window_left = -1, .op = BSR },
	{ .form = SINGLE3, .hnd = 1, .mask = MASK_CAUSAL, .window_left = 6, .softcap = 4, .op = DENSE },
	{ .form = SINGLE_DECODE, .hnd = 1, .window_left = -1, .op = DENSE },
	{ .form = SINGLE_DECODE, .fp8 = 1, .window_left = 7, .op = BSR },
};

static struct world *new_world(const struct shape *s)
{
	static struct world w;

	memset(&w, 0, sizeof(w));
	w.s = s;
	return &w;
}

static enum dropin_function function_of(const struct world *w)
{
	switch (w->s->form) {
	case PAGED2:
	case PAGED3:
		return DROPIN_PAGED_RUN;
	case RAGGED2:
	case RAGGED3:
		return DROPIN_RAGGED_RUN;
	default:
		return DROPIN_RUN;
	}
}

/* Packs the masks of all requests by the module's own function, each from a byte on. */
static int pack_masks(struct world *w)
{
	uint8_t bools[ROWS * MAX_KEYS];
	int32_t in[BATCH + 1] = { 0 };
	struct tvm_any result;

	for (int b = 0; b < batch_of(w); b++) {
		int first = rows_of(w)[b], rows = rows_of(w)[b + 1] - first;
		int keys = key_offsets[b + 1] - key_offsets[b];

		for (int i = 0; i < rows; i++)
			memcpy(bools + in[b] + i * keys, w->mask + (first + i) * MAX_KEYS, (size_t)keys);
		in[b + 1] = in[b] + rows * keys;
		w->packed_indptr[b + 1] = w->packed_indptr[b] + (rows * keys + 7) / 8;
	}
	w->used = w->num_args = 0;
	add_list(w, bools, DL_BOOL, 8, in[batch_of(w)]);
	if (!is_single(w)) {
		add_list(w, in, DL_INT, 32, BATCH + 1);
		add_list(w, w->packed_indptr, DL_INT, 32, BATCH + 1);
	}
	add(w, (struct tvm_any){ .type = TVM_TEXT, .p = "little" });
	add_list(w, w->packed, DL_UINT, 8, sizeof(w->packed));
	return dropin_call(&dropin, is_single(w) ? DROPIN_PACKBITS : DROPIN_SEGMENT_PACKBITS, w->args,
			   w->num_args, &result);
}

/* Plans and runs. */
static int run(struct world *w)
{
	struct tvm_any result;

	if (w->s->mask == MASK_CUSTOM && pack_masks(w))
		return -1;
	w->used = w->num_args = 0;
	if (!is_single(w)) {
		make_plan(w);
		if (dropin_call(&dropin, DROPIN_PLAN, w->args, w->num_args, &result))
			return -1;
		w->plan.size = 4;
		for (int i = 0; i < 4; i++)
			w->values[i] = (struct tvm_any){ .type = TVM_INT, .i = planned[i] };
	}
	w->used = w->num_args = 0;
	if (is_single(w))
		make_single(w);
	else
		make_batch(w);
	answered = 0;
	return dropin_call(&dropin, function_of(w), w->args, w->num_args, &result);
}

/* Values are below 2 in magnitude: a rounding of P and one of the result are at most 2^-6 in bf16. */
static void runs(struct cairn_test *t)
{
	struct world *w = new_world(NULL);

	for (size_t s = 0; s < ARRAY_SIZE(shapes); s++) {
		struct shape shape = shapes[s];
		double bound, worst = 0;

		memset(w, 0xff, sizeof(*w));
		memset(w->packed_indptr, 0, sizeof(w->packed_indptr));
		shape.dtype = shape.dtype == CAIRN_BF16 ? CAIRN_BF16 : CAIRN_F16;
		bound = shape.dtype == CAIRN_BF16 ? 0x1p-6 : 0x1p-9;
		w->s = &shape;
		fill(w, (uint32_t)s);
		if (!EXPECT(t, run(w) == 0))
			cairn_note(t, "shape %zu: %s", s, raised);
		for (int b = 0; b < batch_of(w); b++)
			for (int i = 0; i < rows_of(w)[b + 1] - rows_of(w)[b]; i++)
				for (int h = 0; h < HEADS; h++) {
					double e = error_of(w, b, i, h);

					worst = e <= worst ? worst : e;
				}
		if (!EXPECT(t, worst <= bound) || !EXPECT(t, answered == shape.op))
			cairn_note(t, "shape %zu: error %g, operation %d", s, worst, answered);
		/* a plan that is not for a graph has the lengths */
		if (shape.op == PAGED && !EXPECT(t, !answered_keys == !!shape.graph))
			cairn_note(t, "shape %zu: nnz_kv %lld", s, (long long)answered_keys);
	}
}

static void plans(struct cairn_test *t)
{
	struct shape shape = { .form = PAGED2, .window_left = -1, .dtype = CAIRN_F16, .graph = 1 };
	struct world *w = new_world(&shape);

	EXPECT(t, run(w) == 0);
	EXPECT(t, planned[1] == 6 && planned[2] == 4 * PAGE && planned[3] == 1);
	w->values[0].i++;
	w->used = w->num_args = 0;
	make_batch(w);
	EXPECT(t, dropin_call(&dropin, DROPIN_PAGED_RUN, w->args, w->num_args, &w->values[7]) == -1);
	EXPECT_CONTAINS(t, raised, "batch_prefill paged fa2: plan_info: is not a plan of Cairn");
}

/* What is refused, by a change of one argument of a run of batch_prefill paged fa2. */
static void refusals(struct cairn_test *t)
{
	static const struct {
		int at, code, bits, rows;	/* place of a tensor and its dtype or rows, or of a number */
		double number;
		const char *text;
	} changes[] = {
		{ .at = 3, .code = DL_E4M3, .bits = 8, .text = "not supported: batch_prefill paged fa2: q" },
		{ .at = 10, .code = DL_FLOAT, .bits = 32, .text = "o: its dtype differs" },
		{ .at = 4, .code = DL_UINT, .bits = 8, .text = "v: its dtype differs" },
		{ .at = 7, .code = DL_INT, .bits = 64, .text = "kv_indptr: must be a contiguous array" },
		{ .at = 3, .rows = 11, .text = "o: its rows or heads differ from those of q" },
		{ .at = 6, .rows = 3, .text = "kv_indptr: its length contradicts another array" },
		{ .at = 9, .rows = 2, .text = "kv_indptr: its length contradicts another array" },
		{ .at = 11, .rows = 2, .text = "lse: must be contiguous f32 [rows, heads]" },
		{ .at = 12, .number = MASK_ITEMS, .text = "mask_mode: multi-item scoring" },
		{ .at = 12, .number = MASK_CUSTOM, .text = "custom_mask: is missing" },
		{ .at = 25, .number = -1, .text = "attn_paged: sm_scale" },
	};
	struct shape shape = { .form = PAGED2, .window_left = -1, .dtype = CAIRN_F16 };
	struct world *w = new_world(&shape);

	EXPECT(t, run(w) == 0);
	for (size_t i = 0; i < ARRAY_SIZE(changes); i++) {
		w->used = w->num_args = 0;
		make_batch(w);
		if (changes[i].rows) {
			struct dl_tensor *x = w->args[changes[i].at].p;

			x->shape[0] = changes[i].rows;
		} else if (changes[i].bits) {
			struct dl_tensor *x = w->args[changes[i].at].p;

			x->code = (uint8_t)changes[i].code;
			x->bits = (uint8_t)changes[i].bits;
		} else {
			w->args[changes[i].at].type = TVM_FLOAT;
			w->args[changes[i].at].f = changes[i].number;
		}
		raised[0] = 0;
		EXPECT(t, dropin_call(&dropin, DROPIN_PAGED_RUN, w->args, w->num_args, &w->values[7]) == -1);
		EXPECT_CONTAINS(t, raised, changes[i].text);
	}
	EXPECT(t, dropin_call(&dropin, DROPIN_PAGED_RUN, w->args, w->num_args - 1, &w->values[7]) == -1);
	EXPECT_CONTAINS(t, raised, "another version of FlashInfer");
}

static void small_workspace(struct cairn_test *t)
{
	struct shape shape = { .form = RAGGED2, .fp8 = 1, .window_left = -1, .dtype = CAIRN_F16 };
	struct world *w = new_world(&shape);

	EXPECT(t, run(w) == 0);
	w->dims[0][0] = 100;
	EXPECT(t, dropin_call(&dropin, DROPIN_RAGGED_RUN, w->args, w->num_args, &w->values[7]) == -1);
	EXPECT_CONTAINS(t, raised, "workspace: 100 bytes are left, 256 more are needed");
}

/* As on a device with 132 SMs. */
static int bytes_of_sms(const struct cairn_attn_bsr_args *a, size_t *bytes)
{
	*bytes = 10000 * (size_t)(a->sms && a->sms < 132 ? a->sms : 132);
	return 0;
}

static void fewer_sms_in_a_small_workspace(struct cairn_test *t)
{
	static const struct {
		int bytes, sms;
	} sizes[] = { { 132 * 10000 + 1024, 0 }, { 1000 * 1000, 99 }, { 10496, 1 }, { 10000, -1 } };
	struct shape shape = { .form = RAGGED2, .fp8 = 1, .window_left = -1, .dtype = CAIRN_F16 };
	struct cairn_impl limited = table;
	struct dropin d = { &limited, &dropin_arrays_host, &host };
	struct world *w = new_world(&shape);

	limited.attn_bsr_workspace = bytes_of_sms;
	EXPECT(t, run(w) == 0);
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		int ret;

		answered_sms = -1;
		w->dims[0][0] = sizes[i].bytes;
		ret = dropin_call(&d, DROPIN_RAGGED_RUN, w->args, w->num_args, &w->values[7]);
		EXPECT(t, answered_sms == sizes[i].sms && ret == (sizes[i].sms < 0 ? -1 : 0));
	}
	EXPECT_CONTAINS(t, raised, "workspace: 9744 bytes are left, 10240 more are needed");
}

/* A workspace is needed only if the number of keys is known. */
static int bytes_of_keys(const struct cairn_attn_paged_args *a, size_t *bytes)
{
	*bytes = a->nnz_kv ? 10000 : 0;
	return 0;
}

static void keys_unknown_in_a_small_workspace(struct cairn_test *t)
{
	struct shape shape = { .form = PAGED2, .mask = MASK_CAUSAL, .window_left = -1, .dtype = CAIRN_F16 };
	struct cairn_impl limited = table;
	struct dropin d = { &limited, &dropin_arrays_host, &host };
	struct world *w = new_world(&shape);

	limited.attn_paged_workspace = bytes_of_keys;
	EXPECT(t, run(w) == 0);
	for (int bytes = 20000; bytes; bytes = bytes > 5000 ? 5000 : 0) {
		answered_keys = -1;
		w->dims[0][0] = bytes;
		EXPECT(t, dropin_call(&d, DROPIN_PAGED_RUN, w->args, w->num_args, &w->values[7]) == 0);
		EXPECT(t, bytes > 10000 ? answered_keys > 0 : answered_keys == 0);
	}
}

static void decodes_one_row_each(struct cairn_test *t)
{
	struct shape shape = { .form = DECODE, .window_left = -1, .dtype = CAIRN_F16 };
	struct world *w = new_world(&shape);

	EXPECT(t, run(w) == 0);
	for (int at = 3; at <= 9; at += 6)	/* q, o */
		((struct dl_tensor *)w->args[at].p)->shape[0] = 2;
	((struct dl_tensor *)w->args[10].p)->shape[0] = 2;
	EXPECT(t, dropin_call(&dropin, DROPIN_RUN, w->args, w->num_args, &w->values[7]) == -1);
	EXPECT_CONTAINS(t, raised, "batch_decode: q: must have one row for each request");
}

static void packs_high_bit_first(struct cairn_test *t)
{
	static const uint8_t bools[] = { 1, 0, 0, 1, 1, 0, 0, 0, 0, 1 };
	struct world *w = new_world(NULL);
	struct tvm_any order = { .type = TVM_SMALL_TEXT, .zero = 3 };

	memcpy(&order.i, "big", 3);
	add_list(w, bools, DL_BOOL, 8, 10);
	add(w, order);
	add_list(w, w->packed, DL_UINT, 8, 2);
	EXPECT(t, dropin_call(&dropin, DROPIN_PACKBITS, w->args, w->num_args, &w->values[7]) == 0);
	EXPECT(t, w->packed[0] == 0x98 && w->packed[1] == 0x40);
}

/* The library beside the program has the names that FlashInfer looks for; it loads without TVM's library. */
static void exports(struct cairn_test *t)
{
#ifdef CONFIG_CUDA
	static const char *const names[] = {
		"plan", "run", "ragged_run", "paged_run", "packbits", "segment_packbits"
	};
	char path[1024], name[64];
	int64_t (*calls)(int32_t) = NULL;
	void *lib;

	path[readlink("/proc/self/exe", path, sizeof(path) - 16)] = 0;
	strcpy(strrchr(path, '/'), "/dropin.so");
	lib = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
	if (!EXPECT(t, lib != NULL)) {
		cairn_note(t, "%s", dlerror());
		return;
	}
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		snprintf(name, sizeof(name), "__tvm_ffi_%s", names[i]);
		EXPECT(t, dlsym(lib, name) != NULL);
	}
	*(void **)&calls = dlsym(lib, "cairn_dropin_calls");
	EXPECT(t, calls && calls(DROPIN_RUN) == 0 && calls(-1) == 0);
	EXPECT(t, !dlsym(lib, "cairn_attn_paged"));
	dlclose(lib);
#else
	cairn_skip(t, "this build has no CUDA");
#endif
}

static const struct cairn_unit units[] = {
	{ "runs", runs }, { "plans", plans }, { "refusals", refusals },
	{ "small_workspace", small_workspace },
	{ "fewer_sms_in_a_small_workspace", fewer_sms_in_a_small_workspace },
	{ "keys_unknown_in_a_small_workspace", keys_unknown_in_a_small_workspace },
	{ "decodes_one_row_each", decodes_one_row_each },
	{ "packs_high_bit_first", packs_high_bit_first }, { "exports", exports },
};

const struct cairn_family cairn_dropin_family = {
	.stage = "conformance", .name = "dropin", .units = units, .num_units = ARRAY_SIZE(units),
};

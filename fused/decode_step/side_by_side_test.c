// SPDX-License-Identifier: Apache-2.0
/*
 * side_by_side_test - runs two calls at the same time on one device, each with half of its SMs
 *
 * Each call has a stream and a workspace of its own. First it runs alone; then rounds of several calls run on
 * both streams, and every output of every round must have the bits of the call that ran alone. If the CTAs of
 * both calls are not all resident, the calls wait for each other until the suite's time-out ends the test.
 */
#include <stdlib.h>
#include <string.h>

#include "conformance/suite/op_case.h"
#include "conformance/tables/tables.h"
#include "fused/cluster_attn/cluster_attn.h"
#include "fused/decode_step/decode_step.h"
#include "primitives/gemm/gemm.h"

extern const struct cairn_family cairn_cluster_attn_family, cairn_decode_step_family, cairn_gemm_family;

enum { ROUNDS = 50, CALLS = 8 };

#define SMS(op)	&cairn_##op##_family, offsetof(struct cairn_##op##_args, sms)

/* A call: its case, its copy on the device, and its outputs when it ran alone */
struct half {
	const struct cairn_family *family;
	size_t sms;			/* offset in the arguments */
	const char *name;
	struct cairn_op op;
	struct cairn_side side;
	uint8_t *alone[CAIRN_MAX_BUFS], *now[CAIRN_MAX_BUFS];	/* NULL for inputs */
	void *stream;
	int has_op, has_side;
};

static int case_of(const struct cairn_family *f, const char *name)
{
	for (int i = 0; i < f->num_cases; i++) {
		struct cairn_case c = { .kinds = 0 };

		f->describe(i, &c);
		if (!strcmp(c.name, name))
			return i;
	}
	return -1;
}

/* Opens the case with `sms` SMs. */
static int open_half(struct half *h, const struct cairn_impl *impl, int32_t sms, uint64_t seed)
{
	CAIRN_TRY(cairn_op_open(&h->op, h->family, case_of(h->family, h->name), CAIRN_KIND_NORMAL, seed));
	h->has_op = 1;
	memcpy((char *)h->op.args + h->sms, &sms, sizeof(sms));
	CAIRN_TRY(impl->stream_create(&h->stream));
	CAIRN_TRY(cairn_side_open(&h->side, h->family, &h->op, impl, h->stream));
	h->has_side = 1;
	for (int i = 0; i < h->op.num_bufs; i++) {
		if (h->op.bufs[i].role == CAIRN_ROLE_IN)
			continue;
		h->alone[i] = malloc(h->op.bufs[i].bytes + 1);
		h->now[i] = malloc(h->op.bufs[i].bytes + 1);
		if (!h->alone[i] || !h->now[i])
			return cairn_error(ENOMEM, "no memory");
	}
	return impl->stream_sync(h->stream);
}

static void close_half(struct half *h, const struct cairn_impl *impl)
{
	for (int i = 0; h->has_op && i < h->op.num_bufs; i++) {
		free(h->alone[i]);
		free(h->now[i]);
	}
	if (h->has_side)
		cairn_side_close(&h->side, &h->op);
	if (h->stream)
		impl->stream_destroy(h->stream);
	if (h->has_op)
		cairn_op_close(&h->op);
}

/* Overwrites the outputs, so that a call that writes nothing is detected. */
static int spoil(struct half *h, const struct cairn_impl *impl)
{
	for (int i = 0; i < h->op.num_bufs; i++)
		if (h->op.bufs[i].role == CAIRN_ROLE_OUT)
			CAIRN_TRY(impl->mem_set(h->side.base[i] + CAIRN_CANARY, 0x5a, h->op.bufs[i].bytes,
						h->stream));
	return 0;
}

static int fetch(struct half *h, const struct cairn_impl *impl, uint8_t **images)
{
	for (int i = 0; i < h->op.num_bufs; i++)
		if (images[i])
			CAIRN_TRY(impl->mem_copy(images[i], h->side.base[i] + CAIRN_CANARY,
						 h->op.bufs[i].bytes, CAIRN_COPY_TO_HOST, h->stream));
	return impl->stream_sync(h->stream);
}

static int same(const struct half *h)
{
	for (int i = 0; i < h->op.num_bufs; i++)
		if (h->now[i] && memcmp(h->now[i], h->alone[i], h->op.bufs[i].bytes))
			return 0;
	return 1;
}

static int run_rounds(struct cairn_test *t, struct half h[2], const struct cairn_impl *impl)
{
	for (int i = 0; i < 2; i++) {
		CAIRN_TRY(cairn_side_call(&h[i].side, h[i].family));
		CAIRN_TRY(fetch(&h[i], impl, h[i].alone));
	}
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < 2; i++) {
			CAIRN_TRY(spoil(&h[i], impl));
			CAIRN_TRY(impl->stream_sync(h[i].stream));
		}
		for (int call = 0; call < CALLS; call++)
			for (int i = 0; i < 2; i++)
				CAIRN_TRY(cairn_side_call(&h[i].side, h[i].family));
		for (int i = 0; i < 2; i++) {
			CAIRN_TRY(fetch(&h[i], impl, h[i].now));
			if (!EXPECT(t, same(&h[i]))) {
				cairn_note(t, "%s %s, round %d: differs from the call alone",
					   h[i].family->name, h[i].name, round);
				return 0;
			}
		}
	}
	return 0;
}

/* Opens table cuda; skips the test without it. */
static int open_cuda(struct cairn_test *t, struct cairn_impl *impl, struct cairn_device_info *info)
{
	if (cairn_impl_open("cuda", impl) || cairn_impl_start(impl, 0)) {
		cairn_skip(t, "%s", cairn_last_error());
		return -1;
	}
	memset(info, 0, sizeof(*info));
	info->size = sizeof(*info);
	return EXPECT(t, impl->device_info(info) == 0) && EXPECT(t, info->num_sms >= 2) ? 0 : -1;
}

static void both(struct cairn_test *t, struct half first, struct half second)
{
	struct half h[2] = { first, second };
	struct cairn_device_info info;
	struct cairn_impl impl;
	int ret = 0;

	if (open_cuda(t, &impl, &info))
		return;
	for (int i = 0; i < 2 && !ret; i++)
		ret = open_half(&h[i], &impl, info.num_sms / 2, cairn_rand(t));
	if (!ret)
		ret = run_rounds(t, h, &impl);
	if (!EXPECT(t, ret == 0))
		cairn_note(t, "%s", cairn_impl_error(&impl));
	for (int i = 0; i < 2; i++)
		close_half(&h[i], &impl);
}

static struct half step(const char *name)
{
	return (struct half){ SMS(decode_step), .name = name };
}

static void small_steps(struct cairn_test *t)
{
	both(t, step("vocab_4000_three_layers"), step("sms_24_batch_2"));
}

static void steps_of_two_ways(struct cairn_test *t)
{
	both(t, step("sms_7_batch_8"), step("sms_64_graph"));
}

static void latent_steps(struct cairn_test *t)
{
	both(t, step("sms_64_dsv2lite_like_persistent"), step("sms_24_dsv2lite_like_graph"));
}

/* Runs calls that are long enough to overlap in every round. */
static void layers(struct cairn_test *t)
{
	both(t, step("layer_llama32_1b_b1_kv1024_persistent"), step("layer_llama32_1b_b8_kv777_persistent"));
}

static void step_and_gemm(struct cairn_test *t)
{
	both(t, step("layer_llama32_1b_b8_kv777_graph"),
	     (struct half){ SMS(gemm), .name = "m32_n9000_k520_bf16" });
}

/* Two clusters of four CTAs need 8 SMs, but sms is 7. The error must name sms and the 8. */
static void too_few(struct cairn_test *t)
{
	struct half h = { SMS(cluster_attn), .name = "all_in_one" };
	struct cairn_device_info info;
	struct cairn_impl impl;
	int ret;

	if (open_cuda(t, &impl, &info))
		return;
	ret = open_half(&h, &impl, 7, cairn_rand(t));
	EXPECT(t, ret == -EOPNOTSUPP);
	if (ret)
		EXPECT(t, strstr(cairn_impl_error(&impl), "sms") &&
		       strstr(cairn_impl_error(&impl), "at least 8"));
	close_half(&h, &impl);
	h = (struct half){ SMS(cluster_attn), .name = "all_in_one" };
	ret = open_half(&h, &impl, 8, cairn_rand(t));
	if (!ret)
		ret = cairn_side_call(&h.side, h.family);
	if (!ret)
		ret = impl.stream_sync(h.stream);
	if (!EXPECT(t, ret == 0))
		cairn_note(t, "%s", cairn_impl_error(&impl));
	close_half(&h, &impl);
}

static const struct cairn_unit units[] = {
	{ "small_steps", small_steps },
	{ "steps_of_two_ways", steps_of_two_ways },
	{ "latent_steps", latent_steps },
	{ "layers", layers },
	{ "step_and_gemm", step_and_gemm },
	{ "too_few", too_few },
};

const struct cairn_family cairn_side_by_side_family = {
	.stage = "fused", .name = "side_by_side", .units = units, .num_units = ARRAY_SIZE(units),
	.timeout_s = 120,
};

// SPDX-License-Identifier: Apache-2.0
/*
 * decode_step_forms_test - checks on a device that all forms of decode_step give the same bits, for the cases
 * of its family. Models with experts but no latent attention may lack a persistent form; only the two other
 * forms are compared.
 */
#include <stdlib.h>
#include <string.h>

#include "conformance/suite/op_case.h"
#include "conformance/tables/tables.h"
#include "fused/decode_step/decode_step.h"

extern const struct cairn_family cairn_decode_step_family;

/* Runs one call in the given form. images: receives the contents of the outputs; NULL for inputs. */
static int run_form(const struct cairn_impl *impl, void *stream, const struct cairn_op *op, int form,
		    uint8_t **images)
{
	struct cairn_side side;
	int ret;

	((struct cairn_decode_step_args *)op->args)->form = form;
	ret = cairn_side_open(&side, &cairn_decode_step_family, op, impl, stream);
	if (!ret)
		ret = cairn_side_call(&side, &cairn_decode_step_family);
	for (int i = 0; i < op->num_bufs && !ret; i++)
		if (images[i])
			ret = impl->mem_copy(images[i], side.base[i] + CAIRN_CANARY, op->bufs[i].bytes,
					     CAIRN_COPY_TO_HOST, stream);
	if (!ret)
		ret = impl->stream_sync(stream);
	cairn_side_close(&side, op);
	return ret;
}

static int may_lack_persistent(const struct cairn_op *op)
{
	const struct cairn_decode_step_args *a = op->args;

	return a->num_experts && !a->kv_lora_rank;
}

/* Returns the first byte that differs between two images that do differ, and the number of such bytes. */
static size_t first_other(const uint8_t *a, const uint8_t *b)
{
	size_t i = 0;

	while (a[i] == b[i])
		i++;
	return i;
}

static size_t num_others(const uint8_t *a, const uint8_t *b, size_t bytes)
{
	size_t n = 0;

	for (size_t i = 0; i < bytes; i++)
		n += a[i] != b[i];
	return n;
}

static void compare_forms(struct cairn_test *t, const struct cairn_impl *impl, void *stream, int index)
{
	static const int forms[] = {
		CAIRN_DECODE_STEP_GRAPH, CAIRN_DECODE_STEP_PERSISTENT, CAIRN_DECODE_STEP_AUTO,
	};
	uint8_t **images[3];
	int ret[3];
	struct cairn_case c = { .kinds = 0 };
	struct cairn_op op;

	cairn_decode_step_family.describe(index, &c);
	if (!EXPECT(t, cairn_op_open(&op, &cairn_decode_step_family, index, CAIRN_KIND_NORMAL,
				     cairn_rand(t)) == 0))
		return;
	for (int k = 0; k < 3; k++) {
		images[k] = calloc((size_t)op.num_bufs, sizeof(**images));
		for (int i = 0; i < op.num_bufs; i++)
			images[k][i] = op.bufs[i].role == CAIRN_ROLE_IN ? NULL : malloc(op.bufs[i].bytes + 1);
		ret[k] = run_form(impl, stream, &op, forms[k], images[k]);
		if (ret[k] == -EOPNOTSUPP && forms[k] == CAIRN_DECODE_STEP_PERSISTENT &&
		    may_lack_persistent(&op))
			continue;
		if (!EXPECT(t, ret[k] == 0))
			cairn_note(t, "%s: %s", c.name, cairn_impl_error(impl));
	}
	for (int k = 1; k < 3; k++)
		for (int i = 0; i < op.num_bufs && !ret[k]; i++)
			if (images[k][i] && !EXPECT(t, !memcmp(images[0][i], images[k][i], op.bufs[i].bytes)))
				cairn_note(t, "%s: form %d, buffer %d, bytes from %zu on, %zu of %zu", c.name,
					   forms[k], i, first_other(images[0][i], images[k][i]),
					   num_others(images[0][i], images[k][i], op.bufs[i].bytes),
					   op.bufs[i].bytes);
	for (int k = 0; k < 3; k++) {
		for (int i = 0; i < op.num_bufs; i++)
			free(images[k][i]);
		free(images[k]);
	}
	cairn_op_close(&op);
}

static void forms_of(struct cairn_test *t, int device_only, int step)
{
	struct cairn_impl impl;
	void *stream;

	if (cairn_impl_open("cuda", &impl) || cairn_impl_start(&impl, 0)) {
		cairn_skip(t, "%s", cairn_last_error());
		return;
	}
	if (!impl.decode_step) {
		cairn_skip(t, "decode_step is not in table cuda");
		return;
	}
	if (!EXPECT(t, impl.stream_create(&stream) == 0))
		return;
	for (int i = 0; i < cairn_decode_step_family.num_cases; i += step) {
		struct cairn_case c = { .kinds = 0 };

		cairn_decode_step_family.describe(i, &c);
		if (c.device_only == device_only)
			compare_forms(t, &impl, stream, i);
	}
	impl.stream_destroy(stream);
}

static void small_models(struct cairn_test *t)
{
	forms_of(t, 0, 1);
}

static void published_layers(struct cairn_test *t)
{
	forms_of(t, 1, 3);
}

static const struct cairn_unit units[] = {
	{ "small_models", small_models },
	{ "published_layers", published_layers },
};

const struct cairn_family cairn_decode_step_forms_family = {
	.stage = "fused", .name = "decode_step_forms", .units = units, .num_units = ARRAY_SIZE(units),
};

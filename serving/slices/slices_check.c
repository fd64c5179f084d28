// SPDX-License-Identifier: Apache-2.0
/* slices_check - follows the program of slices step by step and checks what each one finds (slices.h) */
#include "serving/slices/slices.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"

enum { Q = 1, KV = 2, BOTH = Q | KV, MERGED = 4 };

struct walk {
	const struct cairn_slices *s;
	const struct cairn_op_graph *g;
	uint8_t *has;		/* [num_values]: columns that exist now */
	uint8_t *ran;		/* [num_ops]: parts that ran; sends and merges count in it, too */
};

static int parts_of(enum cairn_step_part part)
{
	return part == CAIRN_PART_Q ? Q : part == CAIRN_PART_KV ? KV : BOTH;
}

static int lacks(const struct walk *w, int32_t slice, const char *who, int32_t value)
{
	return cairn_error(EINVAL, "slices: slice %d: %s needs value '%s', which does not exist there", slice,
			   who, w->g->values[value].name);
}

static int is_remote(const struct walk *w, int32_t op)
{
	for (int32_t i = 0; i + 1 < w->s->num_slices; i++)
		if (op == w->s->seams[i].attn || op == w->s->seams[i].append)
			return 1;
	return 0;
}

static int check_op(struct walk *w, int32_t slice, const struct cairn_slice_step *step)
{
	const struct cairn_graph_op *op = &w->g->ops[step->op];
	int parts = parts_of(step->part);

	if (is_remote(w, step->op))
		return cairn_error(EINVAL, "slices: slice %d runs '%s', which belongs to the attention "
				   "worker", slice, op->name);
	if (step->part != CAIRN_PART_ALL && ((op->kind != CAIRN_OP_GEMM && op->kind != CAIRN_OP_ROPE) ||
					     w->g->values[op->out[0]].shape.width != CAIRN_D_QKV))
		return cairn_error(EINVAL, "slices: slice %d: '%s' cannot run in parts", slice, op->name);
	if (w->ran[step->op] & parts)
		return cairn_error(EINVAL, "slices: slice %d: '%s' runs twice", slice, op->name);
	w->ran[step->op] |= (uint8_t)parts;
	for (int32_t i = 0; i < op->num_in; i++) {
		/* A rotation works column by column; a product reads whole rows for any column. */
		int need = op->kind == CAIRN_OP_ROPE && i == 0 ? parts : BOTH;

		if (w->g->values[op->in[i]].producer >= 0 && (w->has[op->in[i]] & need) != need)
			return lacks(w, slice, op->name, op->in[i]);
	}
	if (op->forwards)
		w->has[op->in[0]] &= (uint8_t)~parts;
	for (int32_t i = 0; i < op->num_out; i++) {
		if (op->overwrites[i])
			w->has[op->in[op->overwrites[i] - 1]] &= (uint8_t)~parts;
		w->has[op->out[i]] |= (uint8_t)parts;
	}
	return 0;
}

/* Checks a message of attention operator `slice`, and that its messages have their order. */
static int check_send(struct walk *w, int32_t slice, const struct cairn_slice_step *step)
{
	int q = step->kind == CAIRN_STEP_SEND_Q;
	const struct cairn_seam *seam;
	int32_t value;
	int need;

	if (slice + 1 >= w->s->num_slices || step->op != w->s->seams[slice].attn ||
	    w->ran[step->op] != (q ? 0 : Q))
		return cairn_error(EINVAL, "slices: slice %d sends %s of '%s' out of turn", slice,
				   q ? "q" : "k and v", w->g->ops[step->op].name);
	seam = &w->s->seams[slice];
	value = q ? seam->q : seam->kv;
	need = seam->q != seam->kv ? BOTH : q ? Q : KV;
	w->ran[step->op] |= q ? Q : KV;
	if (w->g->values[value].producer >= 0 && (w->has[value] & need) != need)
		return lacks(w, slice, q ? "send_q" : "send_kv", value);
	return 0;
}

static int check_merge(struct walk *w, int32_t slice, const struct cairn_slice_step *step)
{
	const struct cairn_graph_op *attn = &w->g->ops[step->op];

	if (slice < 1 || step->op != w->s->seams[slice - 1].attn || w->ran[step->op] != BOTH)
		return cairn_error(EINVAL, "slices: slice %d merges '%s' out of turn", slice, attn->name);
	w->ran[step->op] |= MERGED;
	w->ran[w->s->seams[slice - 1].append] |= BOTH;
	for (int32_t i = 0; i < attn->num_out; i++)
		w->has[attn->out[i]] = BOTH;
	return 0;
}

/* Keeps what the cut at the end of the slice saves; nothing else lasts. */
static int check_cut(struct walk *w, int32_t slice)
{
	const struct cairn_slice *s = &w->s->slices[slice];
	const int32_t *saves = w->s->saves + s->first_save;

	for (int32_t i = 0; i < s->num_saves; i++)
		if (w->has[saves[i]] != BOTH)
			return lacks(w, slice, "its cut", saves[i]);
	memset(w->has, 0, (size_t)w->g->num_values);
	for (int32_t i = 0; i < s->num_saves; i++)
		w->has[saves[i]] = BOTH;
	return 0;
}

static int check_slice(struct walk *w, int32_t slice)
{
	const struct cairn_slice *s = &w->s->slices[slice];

	for (int32_t i = 0; i < s->num_steps; i++) {
		const struct cairn_slice_step *step = &w->s->steps[s->first_step + i];

		switch (step->kind) {
		case CAIRN_STEP_OP:
			CAIRN_TRY(check_op(w, slice, step));
			break;
		case CAIRN_STEP_SEND_Q:
		case CAIRN_STEP_SEND_KV:
			CAIRN_TRY(check_send(w, slice, step));
			break;
		case CAIRN_STEP_MERGE:
			CAIRN_TRY(check_merge(w, slice, step));
			break;
		}
	}
	return slice + 1 < w->s->num_slices ? check_cut(w, slice) : 0;
}

int cairn_slices_check(const struct cairn_slices *s, const struct cairn_op_graph *g)
{
	struct walk w = { .s = s, .g = g };
	int ret = 0;

	w.has = calloc((size_t)g->num_values + (size_t)g->num_ops, 1);
	if (!w.has)
		return cairn_error(ENOMEM, "slices: no memory");
	w.ran = w.has + g->num_values;
	for (int32_t i = 0; i < s->num_slices && !ret; i++)
		ret = check_slice(&w, i);
	for (int32_t o = 0; o < g->num_ops && !ret; o++)
		if ((w.ran[o] & BOTH) != BOTH)
			ret = cairn_error(EINVAL, "slices: '%s' does not run", g->ops[o].name);
	free(w.has);
	return ret;
}

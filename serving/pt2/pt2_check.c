// SPDX-License-Identifier: Apache-2.0
/* pt2_check - follows the slices of a program step by step, without the code that made them (pt2_slices.h) */
#include "serving/pt2/pt2_slices.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"

struct walk {
	const struct cairn_pt2_slices *s;
	const struct cairn_pt2 *p;
	uint8_t *has;		/* [num_values]: exists in this slice */
	uint8_t *far;		/* [num_values]: exists at the attention worker */
	uint8_t *told;		/* [num_outputs]: has been computed */
};

static int lacks(const struct walk *w, int32_t slice, const char *who, int32_t value)
{
	return cairn_error(EINVAL, "%s: slice %d: %s needs value %s, which does not exist there", w->p->path,
			   slice, CAIRN_QUOTED(who), CAIRN_QUOTED(w->p->values[value].name));
}

static int exists(const struct walk *w, const uint8_t *has, int32_t value)
{
	return w->p->values[value].kind != CAIRN_PT2_RESULT || has[value];
}

static int run(const struct walk *w, uint8_t *has, int32_t slice, int32_t node)
{
	const struct cairn_pt2_node *n = &w->p->nodes[node];

	for (int32_t i = 0; i < n->num_in; i++)
		if (!exists(w, has, w->p->ids[n->first_in + i]))
			return lacks(w, slice, n->name, w->p->ids[n->first_in + i]);
	for (int32_t i = 0; i < n->num_out; i++)
		has[w->p->ids[n->first_out + i]] = 1;
	return 0;
}

static int out_of_turn(const struct walk *w, int32_t slice, const char *what, int32_t node)
{
	return cairn_error(EINVAL, "%s: slice %d: %s %s out of turn", w->p->path, slice, what,
			   CAIRN_QUOTED(w->p->nodes[node].name));
}

static int send(const struct walk *w, int32_t slice, int32_t value)
{
	if (!exists(w, w->has, value))
		return lacks(w, slice, "a message", value);
	w->far[value] = 1;
	return 0;
}

/* The attention worker has what it was sent for this seam, and what each slice can compute. */
static int attend(const struct walk *w, int32_t slice, const struct cairn_pt2_seam *seam)
{
	for (int32_t i = 0; i < seam->num_ops; i++)
		CAIRN_TRY(run(w, w->far, slice, w->s->far[seam->first_op + i]));
	return run(w, w->far, slice, seam->attn);
}

/* sent: the messages of the slice so far, 1 for q and 2 for k and v. */
static int check_step(const struct walk *w, int32_t slice, const struct cairn_slice_step *step, int *sent)
{
	const struct cairn_pt2_seam *seam = &w->s->seams[slice];
	const struct cairn_pt2_node *n = &w->p->nodes[step->op];
	int has_seam = slice + 1 < w->s->num_slices && step->op == seam->attn;

	switch (step->kind) {
	case CAIRN_STEP_OP:
		return n->op->role == CAIRN_PT2_ATTENDS ? out_of_turn(w, slice, "runs", step->op) :
		       run(w, w->has, slice, step->op);
	case CAIRN_STEP_SEND_Q:
		if (!has_seam || (*sent)++)
			return out_of_turn(w, slice, "sends q of", step->op);
		return send(w, slice, seam->q);
	case CAIRN_STEP_SEND_KV:
		if (!has_seam || (*sent)++ != 1)
			return out_of_turn(w, slice, "sends k and v of", step->op);
		CAIRN_TRY(send(w, slice, seam->k));
		return send(w, slice, seam->v);
	case CAIRN_STEP_MERGE:
		if (slice < 1 || step->op != seam[-1].attn)
			return out_of_turn(w, slice, "merges", step->op);
		for (int32_t i = 0; i < n->num_out; i++)
			w->has[w->p->ids[n->first_out + i]] = 1;
		return 0;
	}
	return out_of_turn(w, slice, "has a step without a kind for", step->op);
}

/* Keeps what the cut saves. */
static int check_cut(const struct walk *w, int32_t slice)
{
	const struct cairn_slice *s = &w->s->slices[slice];
	const int32_t *saves = w->s->saves + s->first_save;

	for (int32_t i = 0; i < s->num_saves; i++)
		if (!exists(w, w->has, saves[i]))
			return lacks(w, slice, "its cut", saves[i]);
	memset(w->has, 0, (size_t)w->p->num_values);
	for (int32_t i = 0; i < s->num_saves; i++)
		w->has[saves[i]] = 1;
	return 0;
}

static int check_slice(const struct walk *w, int32_t slice)
{
	const struct cairn_slice *s = &w->s->slices[slice];
	int sent = 0;

	memset(w->far, 0, (size_t)w->p->num_values);
	for (int32_t i = 0; i < s->num_steps; i++)
		CAIRN_TRY(check_step(w, slice, &w->s->steps[s->first_step + i], &sent));
	for (int32_t i = 0; i < w->p->num_outputs; i++)
		w->told[i] |= w->has[w->p->outputs[i]];
	if (slice + 1 == w->s->num_slices)
		return 0;
	if (sent != 2)
		return out_of_turn(w, slice, "ends without the messages of", w->s->seams[slice].attn);
	CAIRN_TRY(attend(w, slice, &w->s->seams[slice]));
	return check_cut(w, slice);
}

int cairn_pt2_slices_check(const struct cairn_pt2_slices *s, const struct cairn_pt2 *p)
{
	struct walk w = { .s = s, .p = p };
	int ret = 0;

	w.has = calloc(2 * (size_t)p->num_values + (size_t)p->num_outputs + 1, 1);
	if (!w.has)
		return cairn_error(ENOMEM, "pt2: no memory");
	w.far = w.has + p->num_values;
	w.told = w.far + p->num_values;
	for (int32_t i = 0; i < s->num_slices && !ret; i++)
		ret = check_slice(&w, i);
	for (int32_t i = 0; i < p->num_outputs && !ret; i++)
		if (!w.told[i])
			ret = cairn_error(EINVAL, "%s: output %s is not computed", p->path,
					  CAIRN_QUOTED(p->values[p->outputs[i]].name));
	free(w.has);
	return ret;
}

// SPDX-License-Identifier: Apache-2.0
/* pt2_facts - what attention operators read, and what depends on no parameter (pt2_slices.h) */
#include "serving/pt2/pt2_slices_impl.h"

#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"

void pt2_facts_free(struct pt2_facts *f)
{
	free(f->bytes);
	free(f->is_free);
	free(f->attn);
	free(f->first_reader);
	*f = (struct pt2_facts){ 0 };
}

int32_t pt2_source(const struct pt2_facts *f, int32_t value)
{
	int32_t producer = f->p->values[value].producer;

	return producer < 0 || f->is_free[producer] ? -1 : producer;
}

static int find_bytes(struct pt2_facts *f)
{
	for (int32_t v = 0; v < f->p->num_values; v++) {
		int64_t size[CAIRN_PT2_RANK], num;

		CAIRN_TRY(cairn_pt2_shape(f->p, v, f->symbols, size, &num));
		f->bytes[v] = num * cairn_pt2_dtype_bytes(f->p->values[v].dtype);
	}
	return 0;
}

/* first_reader has one more element than there are values. */
static void find_readers(struct pt2_facts *f)
{
	const struct cairn_pt2 *p = f->p;

	for (int pass = 0; pass < 2; pass++) {
		for (int32_t n = p->num_nodes - 1; n >= 0; n--)
			for (int32_t i = 0; i < p->nodes[n].num_in; i++) {
				int32_t v = p->ids[p->nodes[n].first_in + i];

				if (pass)
					f->readers[--f->first_reader[v]] = n;
				else
					f->first_reader[v]++;
			}
		for (int32_t v = 0; v < p->num_values && !pass; v++)
			f->first_reader[v + 1] += f->first_reader[v];
	}
}

static void find_free(struct pt2_facts *f)
{
	const struct cairn_pt2 *p = f->p;

	for (int32_t n = 0; n < p->num_nodes; n++) {
		const struct cairn_pt2_node *node = &p->nodes[n];

		if (node->op->role == CAIRN_PT2_ATTENDS) {
			f->attn[f->num_attn++] = n;
			continue;
		}
		f->is_free[n] = 1;
		for (int32_t i = 0; i < node->num_in; i++) {
			int32_t v = p->ids[node->first_in + i];

			f->is_free[n] &= p->values[v].kind != CAIRN_PT2_WEIGHT && pt2_source(f, v) < 0;
		}
	}
}

int pt2_facts_create(struct pt2_facts *f, const struct cairn_pt2 *p, const int64_t *symbols)
{
	const size_t nodes = (size_t)p->num_nodes, values = (size_t)p->num_values;
	int ret;

	*f = (struct pt2_facts){ .p = p, .symbols = symbols };
	f->bytes = calloc(values + 1, sizeof(*f->bytes));
	f->is_free = calloc(nodes + 1, 2);
	f->attn = calloc(nodes + 1, sizeof(*f->attn));
	f->first_reader = calloc(values + 2 + (size_t)p->num_ids, sizeof(*f->first_reader));
	if (!f->bytes || !f->is_free || !f->attn || !f->first_reader) {
		pt2_facts_free(f);
		return cairn_error(ENOMEM, "pt2: no memory");
	}
	f->is_far = f->is_free + nodes;
	f->readers = f->first_reader + values + 2;
	ret = find_bytes(f);
	if (ret) {
		pt2_facts_free(f);
		return ret;
	}
	find_readers(f);
	find_free(f);
	return 0;
}

/* ---- seams ---- */

/* Returns the tensor of an argument, or -1. */
static int32_t tensor_arg(const struct cairn_pt2 *p, const struct cairn_pt2_node *n, const char *name)
{
	const json_t *tensor = json_object_get(cairn_pt2_arg(n, name), "as_tensor");
	const char *value = json_string_value(json_object_get(tensor, "name"));

	return value ? cairn_pt2_find(p, value) : -1;
}

/*
 * Walks back from an input of attention through nodes that only rearrange it, as long as nothing else reads
 * their results. Returns the value on the way with the fewest bytes; of equal ones, the closest to attention.
 */
static int32_t find_sent(const struct pt2_facts *f, int32_t value)
{
	int32_t best = value;

	for (;;) {
		int32_t node = pt2_source(f, value);

		if (node < 0 || f->p->nodes[node].op->role != CAIRN_PT2_ARRANGES ||
		    f->first_reader[value + 1] - f->first_reader[value] != 1 ||
		    f->p->values[value].is_output)
			return best;
		value = f->p->ids[f->p->nodes[node].first_in];
		if (f->bytes[value] < f->bytes[best] && pt2_source(f, value) >= 0)
			best = value;
	}
}

/* Marks the nodes between a sent value and the attention operator. */
static int mark_far(struct cairn_pt2_slices *s, struct pt2_facts *f, int32_t index, int32_t sent,
		    int32_t value)
{
	int32_t first = s->num_far;

	while (value != sent) {
		int32_t node = f->p->values[value].producer;

		f->is_far[node] = 1;
		CAIRN_TRY(pt2_add_far(s, index, node));
		value = f->p->ids[f->p->nodes[node].first_in];
	}
	/* the worker runs them in the order of the program */
	for (int32_t last = s->num_far - 1; first < last; first++, last--) {
		int32_t node = s->far[first];

		s->far[first] = s->far[last];
		s->far[last] = node;
	}
	return 0;
}

/* Appends the free nodes behind a value that the worker reads. */
static int need_free(struct cairn_pt2_slices *s, const struct pt2_facts *f, int32_t index, int32_t value,
		     uint8_t *needed)
{
	const struct cairn_pt2 *p = f->p;
	int ret = 0;

	if (p->values[value].producer < 0)
		return 0;
	memset(needed, 0, (size_t)p->num_nodes);
	needed[p->values[value].producer] = 1;
	for (int32_t n = p->num_nodes - 1; n >= 0; n--)
		for (int32_t i = 0; needed[n] && i < p->nodes[n].num_in; i++) {
			int32_t producer = p->values[p->ids[p->nodes[n].first_in + i]].producer;

			if (producer >= 0)
				needed[producer] = 1;
		}
	for (int32_t n = 0; n < p->num_nodes && !ret; n++)
		if (needed[n])
			ret = pt2_add_far(s, index, n);
	return ret;
}

static int find_mask(struct cairn_pt2_slices *s, const struct pt2_facts *f, int32_t index,
		     const struct cairn_pt2_node *attn)
{
	int32_t mask = tensor_arg(f->p, attn, "attn_mask");
	uint8_t *needed;
	int ret;

	if (mask < 0)
		return 0;
	if (pt2_source(f, mask) >= 0 || f->p->values[mask].kind == CAIRN_PT2_WEIGHT)
		return cairn_error(EINVAL, "%s: node %s: its mask %s depends on parameters", f->p->path,
				   CAIRN_QUOTED(attn->name), CAIRN_QUOTED(f->p->values[mask].name));
	needed = malloc((size_t)f->p->num_nodes);
	if (!needed)
		return cairn_error(ENOMEM, "pt2: no memory");
	ret = need_free(s, f, index, mask, needed);
	free(needed);
	return ret;
}

int pt2_seam_find(struct cairn_pt2_slices *s, struct pt2_facts *f, int32_t index)
{
	static const char *const names[] = { "query", "key", "value" };
	const struct cairn_pt2_node *attn = &f->p->nodes[f->attn[index]];
	struct cairn_pt2_seam *seam = &s->seams[index];
	int32_t *const sent[] = { &seam->q, &seam->k, &seam->v };

	*seam = (struct cairn_pt2_seam){ .attn = f->attn[index], .first_op = s->num_far };
	CAIRN_TRY(find_mask(s, f, index, attn));
	for (int i = 0; i < 3; i++) {
		int32_t value = tensor_arg(f->p, attn, names[i]);

		if (value < 0 || pt2_source(f, value) < 0)
			return cairn_error(EINVAL, "%s: node %s: its %s is no tensor that depends on "
					   "parameters", f->p->path, CAIRN_QUOTED(attn->name), names[i]);
		*sent[i] = find_sent(f, value);
		CAIRN_TRY(mark_far(s, f, index, *sent[i], value));
	}
	return 0;
}

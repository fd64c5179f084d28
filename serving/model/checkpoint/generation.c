// SPDX-License-Identifier: Apache-2.0
/* generation - reads the sampling defaults of generation_config.json */
#include "serving/model/checkpoint/generation.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"

#define MAX_BYTES	(1 << 20)

#define AT(member)	offsetof(struct cairn_generation, member)

static const struct key {
	const char *name;
	size_t at;
	double lo, hi;
	int open;	/* lo itself is excluded */
} keys[] = {
	{ "temperature", AT(temperature), 0, 2, 0 },
	{ "top_k", AT(top_k), -1, INT32_MAX, 0 },
	{ "top_p", AT(top_p), 0, 1, 1 },
	{ "min_p", AT(min_p), 0, 1, 0 },
	{ "repetition_penalty", AT(repetition_penalty), 0, 10, 1 },
};

const char *const cairn_generation_names[] = { "auto", "none", NULL };

static int take(const json_t *root, const char *file, const struct key *k, struct cairn_generation *g)
{
	const json_t *value = json_object_get(root, k->name);
	double d = json_number_value(value);
	size_t n = strlen(g->set);

	if (!value || json_is_null(value))
		return 0;
	if (!json_is_number(value) || !(d >= k->lo && d <= k->hi) || (k->open && d == k->lo))
		return cairn_error(EINVAL, "%s: %s: must be a number %s %g and at most %g", file, k->name,
				   k->open ? "above" : "of at least", k->lo, k->hi);
	if (k->at == AT(top_k) && d != trunc(d))
		return cairn_error(EINVAL, "%s: top_k: must be an integer, is %g", file, d);
	if (k->at == AT(top_k))
		g->top_k = d < 0 ? 0 : (int64_t)d;
	else
		*(double *)((char *)g + k->at) = d;
	snprintf(g->set + n, sizeof(g->set) - n, "%s%s %g", n ? ", " : "", k->name, d);
	return 0;
}

int cairn_generation_load(const char *dir, struct cairn_generation *generation)
{
	struct cairn_generation g = *generation;
	char file[4096];
	json_t *root;
	int ret = 0;

	if (snprintf(file, sizeof(file), "%s/generation_config.json", dir) >= (int)sizeof(file))
		return cairn_error(EINVAL, "%.64s...: the path is too long", dir);
	g.set[0] = 0;
	if (access(file, F_OK)) {
		*generation = g;
		return 0;
	}
	CAIRN_TRY(cairn_json_read(file, MAX_BYTES, false, &root));
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]) && !ret; i++)
		ret = take(root, file, &keys[i], &g);
	json_decref(root);
	if (!ret)
		*generation = g;
	return ret;
}

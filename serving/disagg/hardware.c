// SPDX-License-Identifier: Apache-2.0
/* hardware - reads the file of prices (hardware.h) */
#include "serving/disagg/hardware.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"

enum { MOST_BYTES = 1 << 20 };
#define LEAST_NUMBER	1e-3	/* of rates and prices, so that no quotient of them overflows */
#define MOST_NUMBER	1e9
#define MOST_US		1e6

/* The path in a string, which is relative to the folder of the file that names it. */
static int path_beside(const char *file, const json_t *name, char *path, size_t len)
{
	const char *text = json_string_value(name), *slash = strrchr(file, '/');
	int folder = slash && *text != '/' ? (int)(slash - file) + 1 : 0;

	if (snprintf(path, len, "%.*s%s", folder, file, text) >= (int)len)
		return cairn_error(EINVAL, "%s: a path of a recording is too long", file);
	return 0;
}

static int take_rate(const json_t *costs, struct cairn_json_at at, const char *key,
		     struct cairn_disagg_rate *rate)
{
	char where[128];
	struct cairn_json_at inside = { at.file, where };
	json_t *o;

	CAIRN_TRY(cairn_json_child(costs, at, key, true, JSON_OBJECT, &o));
	snprintf(where, sizeof(where), "%s%s.", at.where, key);
	CAIRN_TRY(cairn_json_number(o, inside, "base_us", true, -1, MOST_US, &rate->base_us));
	if (rate->base_us < 0)
		return cairn_error(EINVAL, "%s: %sbase_us: is below 0", at.file, where);
	return cairn_json_number(o, inside, "gbps", true, LEAST_NUMBER, MOST_NUMBER, &rate->gbps);
}

static int take_points(const json_t *costs, struct cairn_json_at at, const char *key,
		       struct cairn_disagg_points *points)
{
	json_t *list = NULL, *pair;
	size_t i;

	CAIRN_TRY(cairn_json_child(costs, at, key, false, JSON_ARRAY, &list));
	if (!list)
		return 0;
	if (json_array_size(list) < 2 || json_array_size(list) > CAIRN_DISAGG_MOST_POINTS)
		return cairn_error(EINVAL, "%s: %s%s: has not 2 to %d points", at.file, at.where, key,
				   CAIRN_DISAGG_MOST_POINTS);
	json_array_foreach(list, i, pair) {
		double x = json_number_value(json_array_get(pair, 0));
		double us = json_number_value(json_array_get(pair, 1));

		if (json_array_size(pair) != 2 || !(x > (i ? points->x[i - 1] : 0)) ||
		    !(us >= (i ? points->us[i - 1] : 0)) || !(us > 0) || us > MOST_US)
			return cairn_error(EINVAL, "%s: %s%s[%zu]: is not [number, us], both above 0 and "
					   "ascending, us at most %g", at.file, at.where, key, i, MOST_US);
		points->x[i] = x;
		points->us[i] = us;
	}
	points->num = (int32_t)i;
	return 0;
}

double cairn_disagg_points_us(const struct cairn_disagg_points *p, double x)
{
	int32_t i = 1;

	if (x <= p->x[0])
		return p->us[0];
	while (i + 1 < p->num && x > p->x[i])
		i++;
	return p->us[i - 1] + (x - p->x[i - 1]) * (p->us[i] - p->us[i - 1]) / (p->x[i] - p->x[i - 1]);
}

static int take_costs(struct cairn_disagg_gpu *gpu, const json_t *o, struct cairn_json_at at)
{
	const json_t *costs = json_object_get(o, "costs");
	char path[PATH_MAX], where[128];
	struct cairn_json_at inside = { at.file, where };

	if (json_is_string(costs)) {
		CAIRN_TRY(path_beside(at.file, costs, path, sizeof(path)));
		return cairn_disagg_recorded_costs(gpu, path);
	}
	if (!json_is_object(costs))
		return cairn_error(EINVAL, "%s: %scosts: is neither a path nor an object", at.file, at.where);
	snprintf(where, sizeof(where), "%scosts.", at.where);
	CAIRN_TRY(take_rate(costs, inside, "products", &gpu->products));
	CAIRN_TRY(take_rate(costs, inside, "light", &gpu->light));
	CAIRN_TRY(take_rate(costs, inside, "attention", &gpu->attention));
	CAIRN_TRY(cairn_json_number(costs, inside, "tflops", true, LEAST_NUMBER, MOST_NUMBER, &gpu->tflops));
	CAIRN_TRY(take_points(costs, inside, "slice_us", &gpu->slice));
	return take_points(costs, inside, "attention_us", &gpu->attn);
}

static int take_gpu(struct cairn_disagg_hardware *hw, const char *name, const json_t *o, const char *file)
{
	struct cairn_disagg_gpu *gpu = &hw->gpus[hw->num_gpus];
	char where[64];
	struct cairn_json_at at = { file, where };

	if (hw->num_gpus == CAIRN_DISAGG_MOST_GPUS)
		return cairn_error(EINVAL, "%s: gpus: has more than %d", file, CAIRN_DISAGG_MOST_GPUS);
	if (!*name || strlen(name) >= sizeof(gpu->name) || name[strspn(name, "abcdefghijklmnopqrstuvwxyz"
								       "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
								       "0123456789_-")])
		return cairn_error(EINVAL, "%s: gpus: the name %s has not 1 to %zu letters, digits, _ and -",
				   file, CAIRN_QUOTED(name), sizeof(gpu->name) - 1);
	if (!json_is_object(o))
		return cairn_error(EINVAL, "%s: gpus.%s: is not an object", file, name);
	snprintf(gpu->name, sizeof(gpu->name), "%s", name);
	snprintf(where, sizeof(where), "gpus.%s.", name);
	CAIRN_TRY(cairn_json_number(o, at, "dollars_per_hour", true, LEAST_NUMBER, MOST_NUMBER,
				    &gpu->dollars_per_hour));
	CAIRN_TRY(cairn_json_number(o, at, "memory_gb", true, 0, 1e6, &gpu->memory_gb));
	CAIRN_TRY(take_costs(gpu, o, at));
	hw->num_gpus++;
	return 0;
}

static int take_link(struct cairn_disagg_hardware *hw, const json_t *root, const char *file)
{
	const json_t *link = json_object_get(root, "link");
	struct cairn_json_at at = { file, "link." };
	char path[PATH_MAX];

	if (json_is_string(link)) {
		CAIRN_TRY(path_beside(file, link, path, sizeof(path)));
		return cairn_disagg_recorded_link(&hw->link, path);
	}
	if (!json_is_object(link))
		return cairn_error(EINVAL, "%s: link: is neither a path nor an object", file);
	CAIRN_TRY(cairn_json_number(link, at, "latency_us", true, -1, MOST_US, &hw->link.base_us));
	if (hw->link.base_us < 0)
		return cairn_error(EINVAL, "%s: link.latency_us: is below 0", file);
	return cairn_json_number(link, at, "gbps", true, LEAST_NUMBER, MOST_NUMBER, &hw->link.gbps);
}

static int take_all(struct cairn_disagg_hardware *hw, json_t *root, const char *file)
{
	struct cairn_json_at at = { file, "" };
	json_t *gpus, *o;
	const char *name;

	CAIRN_TRY(cairn_json_child(root, at, "gpus", true, JSON_OBJECT, &gpus));
	json_object_foreach(gpus, name, o)
		CAIRN_TRY(take_gpu(hw, name, o, file));
	if (!hw->num_gpus)
		return cairn_error(EINVAL, "%s: gpus: is empty", file);
	return take_link(hw, root, file);
}

int cairn_disagg_hardware_read(struct cairn_disagg_hardware *out, const char *path)
{
	json_t *root;
	int ret;

	memset(out, 0, sizeof(*out));
	CAIRN_TRY(cairn_json_read(path, MOST_BYTES, false, &root));
	ret = take_all(out, root, path);
	json_decref(root);
	return ret;
}

// SPDX-License-Identifier: Apache-2.0
/* recorded - costs of operations from the rows of a recording (hardware.h) */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"
#include "serving/base/line_fit.h"
#include "serving/disagg/hardware.h"

#define MOST_BYTES	((size_t)256 << 20)
#define BALANCE		100	/* flops per byte above which a product counts as bound by arithmetic */

struct row {
	const char *op, *name, *impl;
	double ns, bytes, flops;
};

struct fits {
	struct cairn_line_fit products, light, attention, link;
	double tflops;
};

static bool starts(const char *s, const char *with)
{
	return !strncmp(s, with, strlen(with));
}

static bool ends(const char *s, const char *with)
{
	size_t n = strlen(s), m = strlen(with);

	return n >= m && !strcmp(s + n - m, with);
}

static void add(struct fits *f, const struct row *r)
{
	if (!(r->ns > 0 && r->bytes > 0))
		return;
	if (!strcmp(r->op, "transport") && !strcmp(r->impl, "nvlink") && starts(r->name, "put_")) {
		cairn_line_fit_add(&f->link, r->bytes, r->ns);
		return;
	}
	if (strcmp(r->impl, "cuda"))
		return;
	if (!strcmp(r->op, "gemm") && ends(r->name, "_bf16")) {
		f->tflops = fmax(f->tflops, r->flops / r->ns * 1e-3);
		if (r->flops <= BALANCE * r->bytes)
			cairn_line_fit_add(&f->products, r->bytes, r->ns);
	} else if ((!strcmp(r->op, "rmsnorm") || !strcmp(r->op, "rope") || !strcmp(r->op, "silu_mul")) &&
		   ends(r->name, "_bf16")) {
		cairn_line_fit_add(&f->light, r->bytes, r->ns);
	} else if (!strcmp(r->op, "attn_paged") && starts(r->name, "decode_") && ends(r->name, "_bf16") &&
		   !strstr(r->name, "window") && !strstr(r->name, "_cap")) {
		cairn_line_fit_add(&f->attention, r->bytes, r->ns);
	}
}

/* Adds a line. A row without these members is of another kind: it is passed over. */
static int take_line(struct fits *f, const char *text, size_t len, const char *where)
{
	struct cairn_json_at at = { where, "" };
	struct row r = { .op = "", .name = "", .impl = "" };
	json_t *root;
	int ret;

	CAIRN_TRY(cairn_json_parse(text, len, where, false, &root));
	ret = cairn_json_string(root, at, "op", true, &r.op, NULL);
	if (!ret)
		ret = cairn_json_string(root, at, "case", true, &r.name, NULL);
	if (!ret)
		ret = cairn_json_string(root, at, "impl", true, &r.impl, NULL);
	if (!ret)
		ret = cairn_json_number(root, at, "median_ns", false, 0, 1e18, &r.ns);
	if (!ret)
		ret = cairn_json_number(root, at, "bytes", false, -1, 1e18, &r.bytes);
	if (!ret)
		ret = cairn_json_number(root, at, "flops", false, -1, 1e24, &r.flops);
	if (!ret)
		add(f, &r);
	json_decref(root);
	return ret;
}

static int read_rows(struct fits *f, const char *path)
{
	char *text, where[4096 + 16];
	size_t num_bytes;
	int32_t line = 0;
	int ret = 0;

	memset(f, 0, sizeof(*f));
	CAIRN_TRY(cairn_read_file(path, MOST_BYTES, &text, &num_bytes));
	for (char *at = text, *end = text + num_bytes; !ret && at < end; line++) {
		char *stop = memchr(at, '\n', (size_t)(end - at));

		stop = stop ? stop : end;
		snprintf(where, sizeof(where), "%s:%d", path, line + 1);
		if (stop > at)
			ret = take_line(f, at, (size_t)(stop - at), where);
		at = stop + 1;
	}
	free(text);
	return ret;
}

static int take_rate(const struct cairn_line_fit *fit, const char *path, const char *what,
		     struct cairn_disagg_rate *rate)
{
	struct cairn_fit_line line;

	if (!cairn_line_fit_get(fit, &line))
		return cairn_error(EINVAL, "%s: has no two rows of %s, or their time does not grow with "
				   "their bytes", path, what);
	*rate = (struct cairn_disagg_rate){ line.base * 1e-3, 1 / line.slope };
	return 0;
}

int cairn_disagg_recorded_costs(struct cairn_disagg_gpu *gpu, const char *path)
{
	struct fits f;

	CAIRN_TRY(read_rows(&f, path));
	CAIRN_TRY(take_rate(&f.products, path, "gemm bound by memory", &gpu->products));
	CAIRN_TRY(take_rate(&f.light, path, "rmsnorm, rope, silu_mul", &gpu->light));
	CAIRN_TRY(take_rate(&f.attention, path, "attn_paged decode", &gpu->attention));
	gpu->tflops = f.tflops;
	return 0;
}

int cairn_disagg_recorded_link(struct cairn_disagg_rate *link, const char *path)
{
	struct fits f;

	CAIRN_TRY(read_rows(&f, path));
	return take_rate(&f.link, path, "transport put_* nvlink", link);
}

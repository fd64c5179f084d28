// SPDX-License-Identifier: Apache-2.0
/* pt2_expect - compares a program with the results that PyTorch computed (pt2_expect.h) */
#include "serving/pt2/pt2_expect.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/json.h"

#define MAX_FILE	((size_t)256 << 20)

static double *numbers_of(const json_t *list, int64_t *num)
{
	double *numbers = malloc((json_array_size(list) + 1) * sizeof(*numbers));

	*num = (int64_t)json_array_size(list);
	for (int64_t i = 0; numbers && i < *num; i++)
		numbers[i] = json_number_value(json_array_get(list, (size_t)i));
	return numbers;
}

static int compare(const struct cairn_pt2_results *whole, const struct cairn_pt2_results *sliced,
		   const double *want, int64_t num, const char *path, double *worst)
{
	const struct cairn_pt2_tensor *got = whole->outputs;
	double most = 0, error = 0;

	if (got->num != num)
		return cairn_error(EINVAL, "%s: logits: has %lld numbers, the program %lld", path,
				   (long long)num, (long long)got->num);
	if (memcmp(got->data, sliced->outputs->data, (size_t)num * sizeof(*want)))
		return cairn_error(EINVAL, "%s: the slices give other bits than the program", path);
	for (int64_t i = 0; i < num; i++) {
		double e = fabs(got->data[i] - want[i]);

		most = fmax(most, fabs(want[i]));
		error = e <= error ? error : e;		/* a NaN counts */
	}
	*worst = fmax(*worst, error / most);
	return error <= CAIRN_PT2_TOLERANCE * most ? 0 :
	       cairn_error(EINVAL, "%s: a result differs by %g of the largest one", path, error / most);
}

static int expect_row(const struct cairn_pt2 *p, const struct cairn_pt2_slices *s, const double *ids,
		      int64_t num_ids, const double *want, int64_t num, const char *path, double *worst)
{
	const struct cairn_pt2_tensor input = {
		.rank = 2, .size = { 1, num_ids }, .num = num_ids, .data = (double *)(uintptr_t)ids,
	};
	struct cairn_pt2_results whole = { 0 }, sliced = { 0 };
	int64_t symbols[CAIRN_PT2_SYMBOLS];
	int ret = cairn_pt2_fit(p, &input, symbols);

	if (!ret)
		ret = cairn_pt2_run(&whole, p, NULL, &input, symbols);
	if (!ret)
		ret = cairn_pt2_run(&sliced, p, s, &input, symbols);
	if (!ret)
		ret = compare(&whole, &sliced, want, num, path, worst);
	cairn_pt2_results_free(&whole);
	cairn_pt2_results_free(&sliced);
	return ret;
}

int cairn_pt2_expect(const struct cairn_pt2 *p, const struct cairn_pt2_slices *s, const char *path,
		     double *worst)
{
	size_t num_bytes, i;
	json_t *rows, *row;
	char *text;
	int ret = 0;

	*worst = 0;
	if (p->num_inputs != 1 || p->num_outputs != 1)
		return cairn_error(EINVAL, "%s: the program has %d inputs and %d outputs, not one", p->path,
				   p->num_inputs, p->num_outputs);
	CAIRN_TRY(cairn_read_file(path, MAX_FILE, &text, &num_bytes));
	rows = json_loadb(text, num_bytes, JSON_REJECT_DUPLICATES, NULL);
	free(text);
	if (!json_array_size(rows))
		ret = cairn_error(EINVAL, "%s: is no list of ids and logits", path);
	json_array_foreach(rows, i, row) {
		int64_t num_ids, num;
		double *ids = numbers_of(json_object_get(row, "ids"), &num_ids);
		double *want = numbers_of(json_object_get(row, "logits"), &num);

		if (!ret)
			ret = ids && want ? expect_row(p, s, ids, num_ids, want, num, path, worst) :
			      cairn_error(ENOMEM, "%s: no memory", path);
		free(ids);
		free(want);
	}
	json_decref(rows);
	return ret;
}

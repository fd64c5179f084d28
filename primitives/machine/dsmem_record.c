// SPDX-License-Identifier: Apache-2.0
/* dsmem_record - turns the times of one dsmem run into JSON members of a bench record */
#include "primitives/machine/dsmem_record.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SMS	1024

int cairn_dsmem_ran(const struct cairn_dsmem_args *got)
{
	int n = 0, num_ctas = got->num_clusters * got->cluster_size;

	while (n < num_ctas && got->smid[n] >= 0)
		n++;
	return n;
}

int cairn_dsmem_together(const struct cairn_dsmem_args *got)
{
	int64_t first_end = INT64_MAX;
	int n = 0, ran = cairn_dsmem_ran(got);

	for (int c = 0; c < ran; c++) {
		int64_t end = got->time[c * CAIRN_DSMEM_NUM_TIMES + CAIRN_DSMEM_END_NS];

		first_end = end < first_end ? end : first_end;
	}
	for (int c = 0; c < ran; c++)
		n += got->time[c * CAIRN_DSMEM_NUM_TIMES + CAIRN_DSMEM_START_NS] < first_end;
	return n;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, int n)
{
	qsort(v, n, sizeof(*v), compare);
	return n ? v[n / 2] : 0;
}

static int __attribute__((format(printf, 3, 4))) put(char *json, size_t len, const char *fmt, ...)
{
	size_t n = strlen(json);
	va_list ap;
	int k;

	va_start(ap, fmt);
	k = vsnprintf(json + n, len - n, fmt, ap);
	va_end(ap);
	return k < 0 || (size_t)k >= len - n;
}

/* Writes each pair of SMs once, although two clusters may contain the same pair. */
static int put_matrix(const struct cairn_dsmem_args *a, int ran, char *json, size_t len)
{
	uint8_t *seen = calloc(MAX_SMS, MAX_SMS);
	int full = put(json, len, "\"matrix\":["), comma = 0;

	for (int c = 0; seen && c < ran; c++)
		for (int owner = 0; owner < a->cluster_size; owner++) {
			int d = c - c % a->cluster_size + owner;
			int from = a->smid[c] % MAX_SMS, to = a->smid[d] % MAX_SMS;

			if (c == d || seen[from * MAX_SMS + to])
				continue;
			seen[from * MAX_SMS + to] = 1;
			full |= put(json, len, "%s[%d,%d,%.1f]", comma ? "," : "", from, to,
				    (double)a->pair_cycles[(int64_t)c * a->cluster_size + owner] / a->rounds);
			comma = 1;
		}
	full |= put(json, len, "],") || !seen;
	free(seen);
	return full;
}

static int put_pairs(const struct cairn_dsmem_args *a, int ran, int matrix, char *json, size_t len)
{
	double *remote = malloc(((size_t)ran * a->cluster_size + 1) * sizeof(double));
	double *own = malloc((ran + 1) * sizeof(double));
	int num_remote = 0, num_own = 0, full = 1;

	if (!remote || !own)
		goto out_free;
	for (int c = 0; c < ran; c++)
		for (int owner = 0; owner < a->cluster_size; owner++) {
			double cycles =
				(double)a->pair_cycles[(int64_t)c * a->cluster_size + owner] / a->rounds;

			if (owner == c % a->cluster_size)
				own[num_own++] = cycles;
			else
				remote[num_remote++] = cycles;
		}
	full = matrix && put_matrix(a, ran, json, len);
	if (num_remote) {
		full |= put(json, len, "\"cycles\":%.1f,", median(remote, num_remote));
		full |= put(json, len, "\"min_cycles\":%.1f,\"max_cycles\":%.1f,\"window_cycles\":%.1f",
			    remote[0], remote[num_remote - 1], median(own, num_own));
	} else {
		full |= put(json, len, "\"cycles\":%.1f", median(own, num_own));
	}
out_free:
	free(remote);
	free(own);
	return full;
}

static int put_rate(const struct cairn_dsmem_args *a, int ran, char *json, size_t len)
{
	double bytes = (double)a->rounds * a->bytes, *per_clk = malloc((ran + 1) * sizeof(double));
	int64_t start = INT64_MAX, end = 0;
	int full;

	if (!per_clk)
		return 1;
	if (a->test == CAIRN_DSMEM_ST_ASYNC || a->test == CAIRN_DSMEM_BULK)
		bytes /= a->cluster_size;
	for (int c = 0; c < ran; c++) {
		const int64_t *time = &a->time[c * CAIRN_DSMEM_NUM_TIMES];

		start = time[CAIRN_DSMEM_START_NS] < start ? time[CAIRN_DSMEM_START_NS] : start;
		end = time[CAIRN_DSMEM_END_NS] > end ? time[CAIRN_DSMEM_END_NS] : end;
		per_clk[c] = bytes / (double)(time[CAIRN_DSMEM_CYCLES] + !time[CAIRN_DSMEM_CYCLES]);
	}
	full = put(json, len, "\"tbps_kernel\":%.3f,\"bytes_per_clk\":%.2f",
		   bytes * ran / (double)(end - start + (end == start)) * 1e-3, median(per_clk, ran));
	free(per_clk);
	return full;
}

int cairn_dsmem_record(const struct cairn_dsmem_args *a, int matrix, char *json, size_t len)
{
	int ran = cairn_dsmem_ran(a), full = 0, n = 0;
	double *first = malloc((ran + 1) * sizeof(double)), *second = malloc((ran + 1) * sizeof(double));

	if (!first || !second) {
		full = 1;
		goto out_free;
	}
	/* MBARRIER: only rank 0 measures the whole circulation */
	for (int c = 0; c < ran; c += a->test == CAIRN_DSMEM_MBARRIER ? a->cluster_size : 1) {
		first[n] = (double)a->time[c * CAIRN_DSMEM_NUM_TIMES + CAIRN_DSMEM_CYCLES] / a->rounds;
		second[n++] = (double)a->time[c * CAIRN_DSMEM_NUM_TIMES + CAIRN_DSMEM_CYCLES2] / a->rounds;
	}
	switch (a->test) {
	case CAIRN_DSMEM_LATENCY:
		full = put_pairs(a, ran, matrix, json, len);
		break;
	case CAIRN_DSMEM_LATENCY_SMEM:
	case CAIRN_DSMEM_LATENCY_L2:
	case CAIRN_DSMEM_LATENCY_HBM:
		full = put(json, len, "\"cycles\":%.1f", median(first, n));
		break;
	case CAIRN_DSMEM_BARRIER:
		full = put(json, len, "\"cycles\":%.1f,\"exchange_cycles\":%.1f", median(first, n),
			   median(second, n));
		break;
	case CAIRN_DSMEM_MBARRIER:
		full = put(json, len, "\"cycles\":%.1f,\"st_async_cycles\":%.1f",
			   median(first, n) / a->cluster_size, median(second, n) / a->cluster_size);
		break;
	case CAIRN_DSMEM_ACTIVE:
		full = put(json, len, "\"active_sms\":%d,\"asked_sms\":%d", cairn_dsmem_together(a),
			   *a->resident * a->cluster_size);
		goto out_free;
	default:
		full = put_rate(a, ran, json, len);
	}
	full |= put(json, len, ",\"active_sms\":%d", ran);
out_free:
	free(first);
	free(second);
	return full;
}

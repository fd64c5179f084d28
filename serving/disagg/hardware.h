/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hardware - reads the file of prices: GPUs with price, memory and measured costs, and the link between them
 *
 *   {"gpus": {"h100": {"dollars_per_hour": 11.06, "memory_gb": 80, "costs": "../reports/h100.jsonl"},
 *             "h20": {"dollars_per_hour": 4.63, "memory_gb": 96, "costs": {
 *               "products": {"base_us": 2, "gbps": 3600}, "tflops": 140,
 *               "light": {"base_us": 1, "gbps": 3000}, "attention": {"base_us": 5, "gbps": 3600}}}},
 *    "link": {"latency_us": 8.35, "gbps": 45.7}}
 *
 * costs     a recording of `cairn bench` (reports/README.md), relative to this file; or the same as rates.
 *           An operation takes base_us + bytes / gbps; a product base_us + the root of the sum of the squares
 *           of bytes / gbps and flops / tflops.
 * products  matrix products; light: norms, rotary embedding, activation; attention: decoding over pages
 * slice_us, attention_us   in costs given as rates, optional: times of a layer, measured on one GPU, as
 *           [[rows, us], ...] and [[keys of all requests, us], ...] ascending; they replace the rates
 * link      one way between any two GPUs: latency, and bandwidth per GPU and direction; or a recording, whose
 *           puts over NVLink between two GPUs are taken
 *
 * Prices and rates are above 0.001 and at most 1e9, times at most a second.
 *
 * The costs of a recording are lines, fitted by relative least squares through the rows of gemm that are
 * bound by memory, of rmsnorm, rope and silu_mul, of decoding attn_paged, and of the transport nvlink, all of
 * table cuda and in bf16; tflops is the largest of gemm.
 *
 * Errors: -EINVAL: the text names the file and the member, or what the recording lacks. -EIO, -ENOMEM.
 */
#ifndef CAIRN_DISAGG_HARDWARE_H
#define CAIRN_DISAGG_HARDWARE_H

#include <stdint.h>

#define CAIRN_DISAGG_MOST_GPUS		8
#define CAIRN_DISAGG_MOST_POINTS	32
#define CAIRN_DISAGG_NAME		32

struct cairn_disagg_rate {
	double base_us, gbps;
};

struct cairn_disagg_points {
	double x[CAIRN_DISAGG_MOST_POINTS], us[CAIRN_DISAGG_MOST_POINTS];
	int32_t num;		/* 0: not given */
};

struct cairn_disagg_gpu {
	char name[CAIRN_DISAGG_NAME];
	double dollars_per_hour, memory_gb;
	struct cairn_disagg_rate products, light, attention;
	double tflops;
	struct cairn_disagg_points slice, attn;
};

struct cairn_disagg_hardware {
	struct cairn_disagg_gpu gpus[CAIRN_DISAGG_MOST_GPUS];
	int32_t num_gpus;
	struct cairn_disagg_rate link;
};

int cairn_disagg_hardware_read(struct cairn_disagg_hardware *out, const char *path);

/* Piecewise linear between the points, constant below them, with the slope of the last two above. */
double cairn_disagg_points_us(const struct cairn_disagg_points *points, double x);

/* Reads what a recording says of a GPU's costs, or of the link. */
int cairn_disagg_recorded_costs(struct cairn_disagg_gpu *gpu, const char *path);
int cairn_disagg_recorded_link(struct cairn_disagg_rate *link, const char *path);

#endif

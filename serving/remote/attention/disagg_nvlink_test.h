/* SPDX-License-Identifier: Apache-2.0 */
/* disagg_nvlink_test - a measure of the family disagg that needs two GPUs (disagg_nvlink_test.c) */
#ifndef CAIRN_DISAGG_NVLINK_TEST_H
#define CAIRN_DISAGG_NVLINK_TEST_H

struct cairn_test;

void cairn_measure_lanes_cuda(struct cairn_test *t);

#endif

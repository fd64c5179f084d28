/* SPDX-License-Identifier: Apache-2.0 */
/* disagg_nvlink_test - measures of the family disagg that need two GPUs (disagg_nvlink_test.c) */
#ifndef CAIRN_DISAGG_NVLINK_TEST_H
#define CAIRN_DISAGG_NVLINK_TEST_H

struct cairn_test;

void cairn_measure_lanes_cuda(struct cairn_test *t);
void cairn_measure_lanes_paced(struct cairn_test *t);

#endif

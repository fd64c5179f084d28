/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic_measure - rows "nic" of `cairn bench`; include conformance/harness.h first; see nic_measure_test.c
 */
#ifndef CAIRN_NIC_MEASURE_H
#define CAIRN_NIC_MEASURE_H

#define NIC_NUM_MEASURES 4
extern const struct cairn_unit nic_measures[NIC_NUM_MEASURES];

#endif

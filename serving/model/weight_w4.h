/* SPDX-License-Identifier: Apache-2.0 */
/* weight_w4 - how a model keeps a weight in 4 bits, for those who load it and those who multiply by it */
#ifndef CAIRN_WEIGHT_W4_H
#define CAIRN_WEIGHT_W4_H

#include "serving/model/model.h"

/* num matrices [n, k] of gemm_w4.h, one after the other; num 0: the weight has another form */
struct cairn_weight_w4 {
	int32_t num, n, k;
	int32_t format, group;
};
struct cairn_weight_w4 cairn_weight_w4(const struct cairn_model *m, enum cairn_weight w);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* pt2_ops - the ATen operations that exported programs may have; all are functions of their arguments */
#ifndef CAIRN_PT2_OPS_H
#define CAIRN_PT2_OPS_H

enum cairn_pt2_role {
	CAIRN_PT2_COMPUTES,
	CAIRN_PT2_ARRANGES,		/* its result has elements of its first input, in some order */
	CAIRN_PT2_ATTENDS,		/* scaled_dot_product_attention */
	CAIRN_PT2_DROPPED		/* has no tensors as results */
};

struct cairn_pt2_op {
	const char *target;		/* without "torch.ops." */
	enum cairn_pt2_role role;
};

/* target: as the file has it. Returns NULL if it is unknown. */
const struct cairn_pt2_op *cairn_pt2_op(const char *target);

#endif

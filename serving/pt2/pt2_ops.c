// SPDX-License-Identifier: Apache-2.0
/* pt2_ops - the known ATen operations, in alphabetical order */
#include "serving/pt2/pt2_ops.h"

#include <stdlib.h>
#include <string.h>

#define COMPUTES(name)	{ "aten." name, CAIRN_PT2_COMPUTES }
#define ARRANGES(name)	{ "aten." name, CAIRN_PT2_ARRANGES }

static const struct cairn_pt2_op ops[] = {
	{ "_operator.add", CAIRN_PT2_DROPPED }, { "_operator.floordiv", CAIRN_PT2_DROPPED },
	{ "_operator.ge", CAIRN_PT2_DROPPED }, { "_operator.le", CAIRN_PT2_DROPPED },
	{ "_operator.mod", CAIRN_PT2_DROPPED }, { "_operator.mul", CAIRN_PT2_DROPPED },
	{ "_operator.sub", CAIRN_PT2_DROPPED },
	COMPUTES("__and__.Tensor"),
	{ "aten._assert_scalar.default", CAIRN_PT2_DROPPED },
	{ "aten._assert_tensor_metadata.default", CAIRN_PT2_DROPPED },
	COMPUTES("_to_copy.default"), ARRANGES("_unsafe_view.default"),
	COMPUTES("add.Tensor"), COMPUTES("addmm.default"), ARRANGES("alias.default"),
	COMPUTES("arange.default"), COMPUTES("arange.start"), COMPUTES("arange.start_step"),
	COMPUTES("bitwise_and.Tensor"), COMPUTES("bmm.default"), COMPUTES("cat.default"),
	COMPUTES("chunk.default"), ARRANGES("clone.default"), ARRANGES("contiguous.default"),
	COMPUTES("cos.default"), COMPUTES("cumsum.default"), ARRANGES("detach.default"),
	COMPUTES("diff.default"), COMPUTES("div.Tensor"), ARRANGES("dropout.default"),
	COMPUTES("embedding.default"), COMPUTES("eq.Tensor"), COMPUTES("exp.default"),
	ARRANGES("expand.default"), COMPUTES("full.default"), COMPUTES("ge.Tensor"), COMPUTES("gelu.default"),
	COMPUTES("gt.Tensor"), COMPUTES("index.Tensor"), COMPUTES("layer_norm.default"),
	COMPUTES("le.Tensor"), COMPUTES("linear.default"), COMPUTES("logical_and.default"),
	COMPUTES("lt.Tensor"), COMPUTES("matmul.default"), COMPUTES("mean.dim"), COMPUTES("mm.default"),
	COMPUTES("mul.Tensor"), COMPUTES("ne.Scalar"), COMPUTES("neg.default"), COMPUTES("new_ones.default"),
	COMPUTES("ones.default"), ARRANGES("permute.default"), COMPUTES("pow.Tensor_Scalar"),
	COMPUTES("relu.default"), ARRANGES("reshape.default"), COMPUTES("rms_norm.default"),
	COMPUTES("rsqrt.default"),
	{ "aten.scaled_dot_product_attention.default", CAIRN_PT2_ATTENDS },
	COMPUTES("select.int"), COMPUTES("sigmoid.default"), COMPUTES("silu.default"),
	COMPUTES("sin.default"), COMPUTES("slice.Tensor"), COMPUTES("softmax.int"), COMPUTES("split.Tensor"),
	COMPUTES("split_with_sizes.default"), ARRANGES("squeeze.dim"), COMPUTES("sub.Tensor"),
	{ "aten.sym_constrain_range_for_size.default", CAIRN_PT2_DROPPED },
	{ "aten.sym_size.int", CAIRN_PT2_DROPPED },
	ARRANGES("t.default"), COMPUTES("tanh.default"), COMPUTES("to.device"), COMPUTES("to.dtype"),
	COMPUTES("to.dtype_layout"), ARRANGES("transpose.int"), COMPUTES("unbind.int"),
	ARRANGES("unsqueeze.default"), ARRANGES("view.default"), COMPUTES("zeros.default"),
};

static int by_target(const void *key, const void *op)
{
	return strcmp(key, ((const struct cairn_pt2_op *)op)->target);
}

const struct cairn_pt2_op *cairn_pt2_op(const char *target)
{
	if (!strncmp(target, "torch.ops.", 10))
		target += 10;
	return bsearch(target, ops, sizeof(ops) / sizeof(ops[0]), sizeof(ops[0]), by_target);
}

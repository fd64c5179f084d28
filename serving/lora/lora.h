/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lora - adapters of low rank beside the weights of a model, as PEFT writes them
 *
 * An adapter is a directory with adapter_config.json and adapter_model.safetensors. The tensors
 * base_model.model.model.layers.N.X.lora_A.weight [r, in] and lora_B.weight [out, r] change the product of
 * matrix X by scale B A x, where X is q_proj, k_proj, v_proj or o_proj of self_attn, or gate_proj, up_proj or
 * down_proj of mlp, and scale is lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora. Adapters may have
 * different ranks and different matrices; what one lacks is filled up with zeros. Numbers are kept in the
 * model's dtype.
 *
 * A setting that would change the result and is not implemented is refused: another peft_type, use_dora,
 * bias, modules_to_save, rank_pattern, alpha_pattern, fan_in_fan_out, lora_bias and the like, a rank above
 * 64, and any tensor that is not one of those above. Models with experts or latent attention, and shares of
 * ranks, are refused.
 *
 * A pass adds the adapters by the operation lora, after each product, to the rows that have one
 * (struct cairn_batch, adapters). decode_step does not, so a model with adapters decodes as an operation
 * list.
 */
#ifndef CAIRN_MODEL_LORA_H
#define CAIRN_MODEL_LORA_H

#include <stddef.h>
#include <stdint.h>

#include "serving/model/model.h"

#define CAIRN_MAX_ADAPTERS	256
#define CAIRN_MAX_LORA_RANK	64
#define CAIRN_LORA_WEIGHTS	4	/* QKV, O, GATE_UP, DOWN */

struct cairn_adapter {
	const char *name, *dir;
};

/* The matrices of all adapters for one packed weight: a [num, num_parts * rank, k], b [num, n, rank] */
struct cairn_lora_weight {
	size_t a, b;			/* offsets in a layer */
	int32_t n, k, num_parts, part_end[3];
};

struct cairn_lora {
	int32_t num, rank;		/* adapters; the largest rank, rounded up to a multiple of 8 */
	char *base;			/* in the table's memory, like scale [num] */
	float *scale;
	size_t layer_bytes, bytes;
	struct cairn_lora_weight of[CAIRN_LORA_WEIGHTS];
};

/*
 * Loads adapters 0 .. num - 1 beside a loaded model, which has none and frees them. Errors: -EINVAL,
 * -EOPNOTSUPP, -EIO, -ENOMEM; the text names the adapter's file and the key or tensor.
 */
int cairn_model_load_adapters(struct cairn_model *model, const struct cairn_adapter *adapters, int32_t num);
void cairn_lora_free(const struct cairn_impl *impl, struct cairn_lora *lora);	/* NULL is legal */

/* Returns the place of a weight in `of`, or -1. */
static inline int cairn_lora_place(enum cairn_weight w)
{
	return w == CAIRN_W_QKV ? 0 : w == CAIRN_W_O ? 1 : w == CAIRN_W_GATE_UP ? 2 :
	       w == CAIRN_W_DOWN ? 3 : -1;
}

#endif

// SPDX-License-Identifier: Apache-2.0
/* dropin_plan - reads the argument lists of `plan` and of the functions that pack masks */
#include <string.h>

#include "conformance/dropin/dropin_attn.h"
#include "conformance/dropin/dropin_value.h"

const struct dl_tensor *dropin_first_tensor(const struct tvm_any *args, int32_t num_args)
{
	for (int32_t i = 0; i < num_args; i++)
		if (tensor_of(&args[i]))
			return tensor_of(&args[i]);
	return NULL;
}

static int64_t longest(const struct dl_tensor *indptr)
{
	const int32_t *at = data_of(indptr);
	int64_t most = 0;

	for (int64_t b = 0; b + 1 < indptr->shape[0]; b++)
		most = at[b + 1] - at[b] > most ? at[b + 1] - at[b] : most;
	return most;
}

static int host_indptr(const char *arg, const struct dl_tensor *t)
{
	CAIRN_TRY(needs_tensor("plan", arg, t, 1));
	if (!is_type(t, DL_INT, 32) || t->device_type != DL_CPU || !is_contiguous(t))
		return cairn_error(EOPNOTSUPP, "plan: %s: must be int32 in host memory", arg);
	return 0;
}

/* batch_decode: 15 arguments; batch_prefill: 16 for FlashAttention-3 and 20 for FlashAttention-2. */
int dropin_read_plan(const struct tvm_any *args, int32_t num_args, int64_t *values)
{
	int decode = num_args == 15;
	const struct dl_tensor *qo, *kv;

	if (!decode && num_args != 16 && num_args != 20)
		return cairn_error(EOPNOTSUPP, "plan with %d arguments: another version of FlashInfer",
				   num_args);
	if (num_args == 20 && (integer_of(&args[16]) > 0 || integer_of(&args[17])))
		return cairn_error(EOPNOTSUPP, "plan: fixed_split_size, disable_split_kv: sums may "
				   "depend on the batch");
	qo = tensor_of(&args[3]);
	kv = tensor_of(&args[decode ? 3 : 4]);
	CAIRN_TRY(host_indptr("qo_indptr", qo));
	CAIRN_TRY(host_indptr("kv_indptr", kv));
	values[0] = DROPIN_PLAN_MARK;
	values[1] = decode ? 1 : longest(qo);
	values[2] = longest(kv) * integer_of(&args[decode ? 7 : 10]);
	values[3] = integer_of(&args[decode ? 8 : 11]) != 0;
	return 0;
}

static int read_order(const struct tvm_any *a, int32_t *big)
{
	const struct tvm_text_object *o = a->p;
	const char *text;

	if (a->type == TVM_TEXT)
		text = a->p;
	else if (a->type == TVM_TEXT_OBJECT)
		text = o->text.data;
	else if (a->type == TVM_SMALL_TEXT)
		text = (const char *)&a->i;
	else
		return cairn_error(EINVAL, "packbits: bitorder: must be a text");
	*big = !strncmp(text, "big", 4);
	if (!*big && strncmp(text, "little", 7))
		return cairn_error(EINVAL, "packbits: bitorder: must be big or little");
	return 0;
}

int dropin_read_pack(enum dropin_function f, const struct tvm_any *args, int32_t num_args,
		     struct dropin_pack *a)
{
	int segments = f == DROPIN_SEGMENT_PACKBITS;
	const struct dl_tensor *x, *y, *in, *out;

	if (num_args != (segments ? 5 : 3))
		return cairn_error(EOPNOTSUPP, "packbits with %d arguments: another version of FlashInfer",
				   num_args);
	*a = (struct dropin_pack){ .segments = 1 };
	x = tensor_of(&args[0]);
	y = tensor_of(&args[num_args - 1]);
	CAIRN_TRY(needs_tensor("packbits", "x", x, 1));
	CAIRN_TRY(needs_tensor("packbits", "y", y, 1));
	CAIRN_TRY(read_order(&args[num_args - 2], &a->big));
	if (x->bits != 8 || y->bits != 8 || !is_contiguous(x) || !is_contiguous(y))
		return cairn_error(EINVAL, "packbits: x, y: must be contiguous arrays of bytes");
	a->bools = data_of(x);
	a->bits = data_of(y);
	a->count = x->shape[0];
	if (!segments)
		return 0;
	in = tensor_of(&args[1]);
	out = tensor_of(&args[2]);
	CAIRN_TRY(needs_tensor("packbits", "input_indptr", in, 1));
	CAIRN_TRY(needs_tensor("packbits", "output_indptr", out, 1));
	if (!is_type(in, DL_INT, 32) || !is_type(out, DL_INT, 32))
		return cairn_error(EOPNOTSUPP, "packbits: indptr: must be int32");
	a->in = data_of(in);
	a->out = data_of(out);
	a->segments = (int32_t)in->shape[0] - 1;
	return 0;
}

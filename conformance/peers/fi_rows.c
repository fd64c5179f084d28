// SPDX-License-Identifier: Apache-2.0
#include "conformance/peers/fi_rows.h"

#include "conformance/peers/fi_module.h"
#include "conformance/peers/fi_value.h"
#include "primitives/base/args.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

static int has_16_bits(const char *op, int dtype)
{
	if (dtype == CAIRN_F16 || dtype == CAIRN_BF16)
		return 0;
	return cairn_error(EOPNOTSUPP, "%s: FlashInfer: dtype: %s: its module has f16 and bf16", op,
			   cairn_dtype_name(dtype));
}

static int rmsnorm_supported(const struct cairn_rmsnorm_args *a)
{
	CAIRN_TRY(has_16_bits("rmsnorm", a->dtype));
	if (a->q)
		return cairn_error(EOPNOTSUPP, "rmsnorm: FlashInfer: q: its scale is an input there");
	if (a->weight_offset != 0)
		return cairn_error(EOPNOTSUPP, "rmsnorm: FlashInfer: weight_offset: needs another function");
	if (a->residual && a->out != a->x)
		return cairn_error(EOPNOTSUPP, "rmsnorm: FlashInfer: out: must be x if there is a residual");
	return 0;
}

int cairn_rmsnorm_fi(const struct cairn_rmsnorm_args *args, void *stream)
{
	struct cairn_rmsnorm_args a;
	struct fi_tensor t[3];
	struct tvm_any given[5], result = fi_none();
	const char *name;
	tvm_function *f;
	int code, n = 0;

	CAIRN_TRY(cairn_rmsnorm_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	if (!a.rows)
		return 0;
	CAIRN_TRY(rmsnorm_supported(&a));
	name = a.residual ? "fused_add_rmsnorm" : "rmsnorm";
	CAIRN_TRY(cairn_fi_load("rmsnorm", "norm", &name, 1, &f));
	code = fi_code(a.dtype == CAIRN_BF16);
	given[n++] = cairn_fi_rows(&t[0], a.out, code, 16, a.rows, a.dim);
	given[n++] = cairn_fi_rows(&t[1], a.residual ? a.residual : a.x, code, 16, a.rows, a.dim);
	given[n++] = cairn_fi_list(&t[2], a.weight, DL_CUDA, code, 16, a.dim);
	given[n++] = fi_number(a.eps);
	given[n++] = fi_flag(1);
	return cairn_fi_call("rmsnorm", f, given, n, stream, &result);
}

static int silu_mul_supported(const struct cairn_silu_mul_args *a)
{
	CAIRN_TRY(has_16_bits("silu_mul", a->dtype));
	if (a->q)
		return cairn_error(EOPNOTSUPP, "silu_mul: FlashInfer: q: its module has no such output");
	if (a->activation)
		return cairn_error(EOPNOTSUPP, "silu_mul: FlashInfer: activation: needs another module");
	return 0;
}

int cairn_silu_mul_fi(const struct cairn_silu_mul_args *args, void *stream)
{
	const char *const name = "silu_and_mul";
	struct cairn_silu_mul_args a;
	struct tvm_any result = fi_none();
	struct fi_tensor t[2];
	tvm_function *f;
	int code;

	CAIRN_TRY(cairn_silu_mul_check(args));
	cairn_copy_args(&a, args, sizeof(a));
	if (!a.rows)
		return 0;
	CAIRN_TRY(silu_mul_supported(&a));
	CAIRN_TRY(cairn_fi_load("silu_mul", "activation", &name, 1, &f));
	code = fi_code(a.dtype == CAIRN_BF16);
	struct tvm_any given[] = {
		cairn_fi_rows(&t[0], a.out, code, 16, a.rows, a.dim),
		cairn_fi_rows(&t[1], a.x, code, 16, a.rows, 2 * (int64_t)a.dim), fi_flag(1),
	};
	return cairn_fi_call("silu_mul", f, given, FI_COUNT(given), stream, &result);
}

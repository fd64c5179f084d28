// SPDX-License-Identifier: Apache-2.0
#include "conformance/dropin/dropin.h"

#include <stdio.h>

#include "conformance/dropin/dropin_attn.h"
#include "primitives/base/error.h"

static int plan(const struct dropin *d, const struct tvm_any *args, int32_t num_args, struct tvm_any *result)
{
	int64_t values[DROPIN_PLAN_VALUES];

	CAIRN_TRY(dropin_read_plan(args, num_args, values));
	if (d->host->array(values, DROPIN_PLAN_VALUES, result))
		return cairn_error(EIO, "plan: TVM made no array");
	return 0;
}

static int run(const struct dropin *d, enum dropin_function f, const struct tvm_any *args, int32_t num_args,
	       void *stream)
{
	struct dropin_attn a;

	CAIRN_TRY(dropin_read(d, f, args, num_args, &a));
	a.stream = stream;
	return dropin_attn(d, &a);
}

static int pack(const struct dropin *d, enum dropin_function f, const struct tvm_any *args, int32_t num_args,
		void *stream)
{
	struct dropin_pack a;

	CAIRN_TRY(dropin_read_pack(f, args, num_args, &a));
	return d->arrays->pack(&a, stream);
}

static int answer(const struct dropin *d, enum dropin_function f, const struct tvm_any *args,
		  int32_t num_args, struct tvm_any *result)
{
	const struct dl_tensor *t = dropin_first_tensor(args, num_args);
	void *stream;

	if (!t)
		return cairn_error(EINVAL, "no argument is a tensor");
	if (f == DROPIN_PLAN)
		return plan(d, args, num_args, result);
	stream = d->host->stream(t->device_type, t->device_id);
	if (f == DROPIN_PACKBITS || f == DROPIN_SEGMENT_PACKBITS)
		return pack(d, f, args, num_args, stream);
	return run(d, f, args, num_args, stream);
}

int dropin_call(const struct dropin *d, enum dropin_function f, const struct tvm_any *args, int32_t num_args,
		struct tvm_any *result)
{
	struct tvm_any value = { .type = TVM_NONE };
	int ret = answer(d, f, args, num_args, &value);
	const char *prefix = ret == -EOPNOTSUPP ? "not supported: " : "";
	char text[600];

	if (!ret) {
		*result = value;
		return 0;
	}
	snprintf(text, sizeof(text), "cairn: %s%s", prefix, cairn_last_error());
	d->host->raise(ret == -EINVAL ? "ValueError" : "RuntimeError", text);
	return -1;
}

// SPDX-License-Identifier: Apache-2.0
/* flashinfer_test - the table's errors where FlashInfer's modules are missing */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "conformance/tables/tables.h"

#ifdef CONFIG_CUDA
#include "conformance/peers/fi_module.h"

static void bad_arguments(struct cairn_test *t)
{
	struct cairn_attn_dense_args a = { .size = sizeof(a) };
	struct cairn_attn_paged_args p = { .size = sizeof(p) };
	size_t bytes;

	EXPECT(t, cairn_impl_flashinfer.attn_dense(&a, NULL) == -EINVAL);
	EXPECT(t, cairn_impl_flashinfer.attn_paged_workspace(&p, &bytes) == -EINVAL);
}

static void missing_module(struct cairn_test *t)
{
	const char *given = getenv("CAIRN_FLASHINFER");
	char *keep = given ? strdup(given) : NULL;
	const struct fi_module *m;

	setenv("CAIRN_FLASHINFER", "/nowhere", 1);
	EXPECT(t, cairn_fi_load("attn_dense", 128, 128, &m) == -EOPNOTSUPP);
	EXPECT(t, strstr(cairn_last_error(), "attn_dense: FlashInfer (") != NULL);
	EXPECT(t, strstr(cairn_last_error(), "(/nowhere/tvm_ffi/lib/libtvm_ffi.so)") != NULL);
	EXPECT(t, strstr(cairn_last_error(), "is not on this machine: tools/peers.sh flashinfer") != NULL);
	if (keep)
		setenv("CAIRN_FLASHINFER", keep, 1);
	else
		unsetenv("CAIRN_FLASHINFER");
	free(keep);
}

/* A module loads without a device, and has its three functions. */
static void module_without_a_device(struct cairn_test *t)
{
	const struct fi_module *m;

	if (cairn_fi_load("flashinfer", 128, 128, &m)) {
		cairn_skip(t, "%s", cairn_last_error());
		return;
	}
	EXPECT(t, m->plan && m->ragged_run && m->paged_run);
}

static const struct cairn_unit units[] = {
	{ "bad_arguments", bad_arguments }, { "missing_module", missing_module },
	{ "module_without_a_device", module_without_a_device },
};
#else
static void needs_cuda(struct cairn_test *t)
{
	cairn_skip(t, "this build has no CUDA");
}

static const struct cairn_unit units[] = { { "needs_cuda", needs_cuda } };
#endif

const struct cairn_family cairn_flashinfer_family = {
	.stage = "conformance", .name = "flashinfer", .units = units, .num_units = ARRAY_SIZE(units),
};

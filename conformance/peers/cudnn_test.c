// SPDX-License-Identifier: Apache-2.0
/*
 * cudnn_test - the errors of the cuDNN peers if the library is missing or does not support a call
 *
 * Their results are judged like those of any table: cairn check --impl peers fused.attn_dense fused.attn_bwd.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "conformance/tables/tables.h"

#ifdef CONFIG_CUDA
#include "conformance/peers/cudnn_graph.h"

static struct cairn_attn_dense_args dense(void)
{
	static char array[16] __attribute__((aligned(16)));
	static const int32_t indptr[2];

	return (struct cairn_attn_dense_args){
		.size = sizeof(struct cairn_attn_dense_args),
		.out = array, .q = array, .k = array, .v = array,
		.qo_indptr = indptr, .kv_indptr = indptr, .batch = 1, .nnz_qo = 8, .nnz_kv = 8,
		.max_qo_len = 8, .max_kv_len = 8, .num_qo_heads = 1, .num_kv_heads = 1, .qk_dim = 64,
		.v_dim = 64, .dtype = CAIRN_BF16, .sm_scale = 1,
	};
}

/* Arguments are checked before the library is looked up, so that a missing library hides no mistake. */
static void bad_arguments(struct cairn_test *t)
{
	struct cairn_attn_dense_args a = dense();
	size_t bytes;

	a.q = NULL;
	EXPECT(t, cairn_impl_peers.attn_dense(&a, NULL) == -EINVAL);
	a = dense();
	a.window = -1;
	EXPECT(t, cairn_impl_peers.attn_dense_workspace(&a, &bytes) == -EINVAL);
	EXPECT(t, strstr(cairn_last_error(), "attn_dense: window") != NULL);
}

/* Returns NULL if a missing library is reported correctly, else what is wrong. */
static const char *without_library(void)
{
	struct cairn_attn_dense_args a = dense();
	struct cairn_attn_bwd_args b = { .size = sizeof(b), .batch = 1, .num_qo_heads = 1, .num_kv_heads = 1,
		.qk_dim = 64, .v_dim = 64, .dtype = CAIRN_BF16, .sm_scale = 1 };
	size_t bytes;

	setenv("CAIRN_CUDNN", "/nowhere/libcudnn.so.9", 1);
	if (cairn_impl_peers.attn_dense(&a, NULL) != -EOPNOTSUPP)
		return "attn_dense is not refused";
	if (!strstr(cairn_last_error(), "attn_dense: cuDNN (libcudnn.so.9) is not on this machine") ||
	    !strstr(cairn_last_error(), "tools/peers.sh"))
		return cairn_last_error();
	if (cairn_impl_peers.attn_bwd_workspace(&b, &bytes) != -EOPNOTSUPP)
		return "attn_bwd_workspace is not refused";
	if (!strstr(cairn_last_error(), "attn_bwd: cuDNN (libcudnn.so.9) is not on this machine"))
		return cairn_last_error();
	return cairn_cudnn_version() ? "there is a version" : NULL;
}

/* Runs in its own process, because a process looks the library up only once. */
static void missing_library(struct cairn_test *t)
{
	const char *wrong;
	int status = -1;
	pid_t pid = fork();

	if (!pid) {
		wrong = without_library();
		if (wrong)
			fprintf(stderr, "%s\n", wrong);
		_exit(!!wrong);
	}
	EXPECT(t, pid > 0 && waitpid(pid, &status, 0) == pid);
	EXPECT(t, WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void found_library(struct cairn_test *t)
{
	if (cairn_cudnn_load("cudnn")) {
		cairn_skip(t, "%s", cairn_last_error());
		return;
	}
	EXPECT(t, cairn_cudnn_version() >= 91600);
	EXPECT(t, cairn_cudnn_version() < 100000);
}

/* Among all operations of all tables, only this library's gradients may vary in bits from call to call. */
static void bits(struct cairn_test *t)
{
	const size_t bwd = offsetof(struct cairn_impl, attn_bwd);

	EXPECT(t, cairn_impl_bits_vary(&cairn_impl_peers, bwd));
	EXPECT(t, !cairn_impl_bits_vary(&cairn_impl_peers, offsetof(struct cairn_impl, attn_dense)));
	EXPECT(t, !cairn_impl_bits_vary(&cairn_impl_cuda, bwd));
	EXPECT(t, !cairn_impl_bits_vary(&cairn_impl_cpu, bwd));
}

static const struct cairn_unit units[] = {
	{ "bad_arguments", bad_arguments }, { "missing_library", missing_library },
	{ "found_library", found_library }, { "bits", bits },
};
#else
static void needs_cuda(struct cairn_test *t)
{
	cairn_skip(t, "this build has no CUDA");
}

static const struct cairn_unit units[] = { { "needs_cuda", needs_cuda } };
#endif

const struct cairn_family cairn_cudnn_family = {
	.stage = "conformance", .name = "cudnn", .units = units, .num_units = ARRAY_SIZE(units),
};

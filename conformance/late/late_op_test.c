// SPDX-License-Identifier: Apache-2.0
/* late_op_test - how operations of the late table treat their arguments and workspaces */
#include "conformance/harness.h"
#include "conformance/late/late_test.h"

enum { M = 3, DIM = 8 };

static int operands(struct fixture *f, float *a)
{
	for (int i = 0; i < 2 * DIM * DIM; i++)
		a[i] = (float)(i % 7) - 3;
	MUST(f->impl.mem_alloc((void **)&f->dev, 2 * DIM * DIM * sizeof(float)) == 0);
	MUST(f->impl.mem_copy(f->dev, a, 2 * DIM * DIM * sizeof(float), CAIRN_COPY_TO_DEVICE,
			      f->stream) == 0);
	return 0;
}

static int gemm_and_its_workspace(struct fixture *f)
{
	float ab[2 * DIM * DIM], got[M * DIM], want[M * DIM];
	struct cairn_gemm_args a = { .size = sizeof(a), .out = f->dev2, .m = M, .n = DIM, .k = DIM };
	uint8_t *after;
	size_t bytes, most = 0;
	int smaller = 0;

	MUST(operands(f, ab) == 0);
	a.a = f->dev;
	a.b = f->dev + DIM * DIM * sizeof(float);
	for (a.m = 1; a.m < 20; a.m++) {
		MUST(f->impl.gemm_workspace(&a, &bytes) == 0 && bytes > 0);
		smaller += bytes < most;
		most = bytes > most ? bytes : most;
	}
	MUST(smaller > 0);		/* a smaller shape may need a larger workspace */
	a.m = M;
	MUST(f->impl.gemm_workspace(&a, &bytes) == 0);
	MUST(f->impl.mem_alloc(&a.workspace, bytes) == 0);
	a.workspace_bytes = bytes - 1;
	MUST(f->impl.gemm(&a, f->stream) == -EINVAL && strstr(cairn_last_error(), "gemm: workspace"));
	a.workspace_bytes = bytes + 1;
	MUST(f->impl.gemm(&a, f->stream) == -EINVAL);
	a.workspace_bytes = bytes;
	MUST(f->impl.mem_set(a.workspace, 0, bytes, f->stream) == 0);
	MUST(f->impl.gemm(&a, f->stream) == 0);
	memset(&a.m, 0, sizeof(a.m));		/* the caller may change the arguments after the call */
	MUST(f->impl.mem_copy(got, f->dev2, sizeof(got), CAIRN_COPY_TO_HOST, f->stream) == 0);
	after = malloc(bytes);
	MUST(f->impl.mem_copy(after, a.workspace, bytes, CAIRN_COPY_TO_HOST, f->stream) == 0);
	for (size_t i = 0; i < bytes; i++)
		MUST(after[i] == 0xff);
	free(after);
	a = (struct cairn_gemm_args){ .size = sizeof(a), .out = want, .a = ab, .b = ab + DIM * DIM, .m = M,
				      .n = DIM, .k = DIM };
	MUST(cairn_impl_cpu.gemm(&a, NULL) == 0 && !memcmp(got, want, sizeof(got)));
	return 0;
}

static int pointers_of_the_host(struct fixture *f)
{
	static int32_t fixed[4] = { 3, 2, 1, 0 };
	struct cairn_embedding_args a = { .size = sizeof(a), .out = f->dev2, .rows = 2, .dim = 8,
					  .vocab = 4 };
	float table[2 * DIM * DIM], got[16];
	int32_t *heap = calloc(4, sizeof(*heap));

	MUST(operands(f, table) == 0);
	a.table = f->dev;
	a.ids = fixed;
	MUST(f->impl.embedding(&a, f->stream) == -EINVAL);
	MUST(strstr(cairn_last_error(), "memory of the host"));
	a.ids = heap;
	MUST(f->impl.embedding(&a, f->stream) == -EINVAL);
	a.ids = memcpy(f->pinned, fixed, sizeof(fixed));
	MUST(f->impl.embedding(&a, f->stream) == 0);
	((int32_t *)f->pinned)[0] = 1;			/* read when the operation runs */
	MUST(f->impl.mem_copy(got, f->dev2, sizeof(got), CAIRN_COPY_TO_HOST, f->stream) == 0);
	MUST(!memcmp(got, table + 8, 32) && !memcmp(got + 8, table + 16, 32));
	f->impl.mem_free(f->dev);
	MUST(f->impl.embedding(&a, f->stream) == -EINVAL && strstr(cairn_last_error(), "was freed"));
	free(heap);
	return 0;
}

/* Pointers that were added behind the scalars of attn_merge; a shorter struct has none. */
static int later_pointers_of_the_host(struct fixture *f)
{
	static float host[64] __attribute__((aligned(16)));
	struct cairn_attn_merge_args a = {
		.size = sizeof(a), .num_states = 1, .rows = 1, .num_heads = 1, .head_dim = DIM,
		.dtype = CAIRN_BF16, .num_kv_heads = 1, .sm_scale = 1,
	};
	const void **later[] = { (const void **)&a.sink, &a.q, &a.k, &a.v };

	MUST(operands(f, (float[2 * DIM * DIM]){ 0 }) == 0);
	a.o = a.q = a.k = a.v = f->dev;
	a.lse = a.sink = (const float *)(const void *)f->dev;
	a.out = f->dev2;
	for (size_t i = 0; i < ARRAY_SIZE(later); i++) {
		*later[i] = host;
		MUST(f->impl.attn_merge(&a, f->stream) == -EINVAL);
		MUST(strstr(cairn_last_error(), "attn_merge: arguments") &&
		     strstr(cairn_last_error(), "memory of the host"));
		*later[i] = f->dev;
		MUST(f->impl.attn_merge(&a, f->stream) == 0);
	}
	a.q = host;
	a.size = CAIRN_ATTN_MERGE_SECOND_BYTES;
	MUST(f->impl.attn_merge(&a, f->stream) == 0);
	a.sink = host;
	MUST(f->impl.attn_merge(&a, f->stream) == -EINVAL);
	a.size = CAIRN_ATTN_MERGE_FIRST_BYTES;
	MUST(f->impl.attn_merge(&a, f->stream) == 0 && f->impl.stream_sync(f->stream) == 0);
	return 0;
}

/* A moe call with zero weights, to exercise the counters in its workspace. */
static int mixture(struct fixture *f, int zeroed, int again_for_two)
{
	struct cairn_moe_args a = {
		.size = sizeof(a), .batch = 1, .hidden = 64, .num_experts = 2, .experts_per_token = 1,
		.intermediate = 64, .dtype = CAIRN_BF16, .eps = 1e-5f, .scaling = 1,
	}, two;
	const size_t room = 2 * 2 * 64 * 64 * 2;
	size_t bytes, more;
	void *zeros;

	MUST(f->impl.mem_alloc(&zeros, room) == 0 && f->impl.mem_set(zeros, 0, room, f->stream) == 0);
	MUST(f->impl.mem_alloc(&a.out, room) == 0);
	a.x = a.norm_weight = a.w_router = a.w_gate_up = a.w_down = zeros;
	two = a;
	two.batch = 2;
	MUST(f->impl.moe_workspace(&a, &bytes) == 0 && f->impl.moe_workspace(&two, &more) == 0);
	bytes = bytes > more ? bytes : more;
	MUST(f->impl.mem_alloc(&a.workspace, bytes) == 0);
	a.workspace_bytes = two.workspace_bytes = bytes;
	two.workspace = a.workspace;
	if (zeroed)
		MUST(f->impl.mem_set(a.workspace, 0, bytes, f->stream) == 0);
	MUST(f->impl.moe(&a, f->stream) == 0 && f->impl.moe(&a, f->stream) == 0);
	MUST((f->impl.stream_sync(f->stream) == 0) == zeroed);
	if (zeroed && again_for_two)
		MUST(f->impl.mem_set(a.workspace, 0, bytes, f->stream) == 0);
	if (zeroed) {
		MUST(f->impl.moe(&two, f->stream) == 0);
		MUST((f->impl.stream_sync(f->stream) == 0) == again_for_two);
	}
	if (!zeroed || !again_for_two)
		MUST(strstr(f->impl.last_error(), "moe: workspace: not zeroed"));
	return 0;
}

static int counters_not_zeroed(struct fixture *f)
{
	return mixture(f, 0, 0);
}

static int counters_of_another_shape(struct fixture *f)
{
	return mixture(f, 1, 0);
}

static int counters_zeroed(struct fixture *f)
{
	return mixture(f, 1, 1);
}

static void operations(struct cairn_test *t)
{
	all_well(t, gemm_and_its_workspace);
	all_well(t, pointers_of_the_host);
	all_well(t, later_pointers_of_the_host);
	all_well(t, counters_not_zeroed);
	all_well(t, counters_of_another_shape);
	all_well(t, counters_zeroed);
}

/*
 * `cairn check` must pass on the late table, which shows that the harness never accesses device memory
 * itself. Far cases are left out, because the table protects each page of its memory.
 */
static void is_judged(struct cairn_test *t)
{
	char path[PATH_MAX], out[65536];
	char *argv[] = { "cairn", "check", "--impl", path, "--skip", "*.far_*", "--drawn", "5", "--one-kind",
			 "primitives.pick_ids", "primitives.token_counts",
			 "fused.moe.smallest", "fused.moe.one_expert*",
			 "fused.decode_step.one_key", "fused.cluster_attn.batch_0",
			 "fused.cluster_attn.all_in_one", "fused.attn_merge.own_sink_n3*",
			 "primitives.all_reduce_norm.*_of_2.*",
			 "primitives.all_reduce_norm.reject_*_rank*", "fused.decode_step_ranks.absent_of_2",
			 NULL };

	if (!cairn_beside("late_plugin.so", path, sizeof(path))) {
		cairn_skip(t, "late_plugin.so is not in the directory of this program");
		return;
	}
	if (!EXPECT(t, cairn_spawn(argv, out, sizeof(out)) == 0))
		cairn_note(t, "%.1000s", out);
	EXPECT_CONTAINS(t, out, " 0 failed, 0 skipped");
}

static const struct cairn_unit units[] = {
	{ "operations", operations },
	{ "is_judged", is_judged },
};

const struct cairn_family cairn_late_op_family = {
	.stage = "conformance", .name = "late_op", .units = units, .num_units = ARRAY_SIZE(units),
	.cost_s = 3,
};

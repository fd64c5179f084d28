// SPDX-License-Identifier: Apache-2.0
/*
 * remote_models_test - passes of twelve architectures over remote attention give the logits of a local split
 *
 * Both sides split attention in the same way: a worker takes the previous keys, or a stripe of them, the
 * model worker takes the pass's own keys, and the results are merged. Only the place of the worker differs,
 * so the logits must have the same bits.
 *
 * On cuda the worker is a process that the lead starts, on the same GPU or on the next one. It has all heads,
 * because kernels divide their work by the number of heads.
 */
#include <errno.h>

#include "conformance/harness.h"
#include "rdma/transport/transport.h"
#include "serving/remote/attention/lists.h"
#include "serving/remote/remote_rig_test.h"
#include "serving/slices/sliced_test.h"

static const struct scene_request requests[] = { { 1, 14 }, { 1, 33 }, { 12, 5 }, { 40, 7 } };

enum { NUM = ARRAY_SIZE(requests), PASSES = 3 };

/* The keys before the requests; the requests; one more row for each, whose own keys the merge attends to. */
static void requests_of(int pass, struct scene_request *r)
{
	for (int i = 0; i < NUM; i++) {
		if (pass == 0)
			r[i] = (struct scene_request){ .rows = requests[i].past };
		if (pass == 1)
			r[i] = requests[i];
		if (pass == 2)
			r[i] = (struct scene_request){ 1, requests[i].past + requests[i].rows };
	}
}

static size_t logits_bytes(const struct scene *s)
{
	return sizeof(float) * NUM * (size_t)s->m->config.vocab_size;
}

/* Runs all passes, over the remote link if there is one. logits: [PASSES, NUM, vocab]. */
static int run_passes(struct scene *s, struct slicer *x, struct cairn_attn_remote *remote, float *logits)
{
	const struct cairn_attn_link *link = remote ? cairn_attn_remote_link(remote, 0) : &x->link;
	int moved;

	CAIRN_TRY(s->impl.mem_set(s->kv.base, 0, s->kv_bytes, s->stream));
	for (int pass = 0; pass < PASSES; pass++) {
		struct scene_request r[NUM];
		struct cairn_remote_pass p;

		requests_of(pass, r);
		scene_batch(s, r, NUM, &s->host, &s->batch);
		s->batch.max_kv_len = cairn_lists_bound(48, SCENE_PAGES * SCENE_PAGE);	/* as the worker's */
		CAIRN_TRY(scene_copy(s, s->dev, &s->host, sizeof(s->host), CAIRN_COPY_TO_DEVICE));
		list_scene_past(x, s);
		p = (struct cairn_remote_pass){
			.num_rows = s->batch.num_rows, .batch = NUM, .num_pages = s->host.kv_indptr[NUM],
			.qo_indptr = s->host.qo_indptr, .kv_indptr = s->host.kv_indptr,
			.last_page_len = s->host.last_page_len, .kv_indices = s->host.kv_indices,
		};
		CAIRN_TRY(ready_slicer(x, &s->batch, s->stream));
		CAIRN_TRY(cairn_sliced_reserve(x->sliced, &s->batch, link, s->stream, &moved));
		CAIRN_TRY(remote ? cairn_attn_remote_begin(remote, 0, &p) : 0);
		CAIRN_TRY(cairn_sliced_forward(x->sliced, &s->batch, link, s->stream));
		CAIRN_TRY(remote ? cairn_attn_remote_finish(remote, 0, s->stream) : 0);
		CAIRN_TRY(scene_copy(s, (char *)logits + pass * logits_bytes(s), s->dev_logits,
				     logits_bytes(s), CAIRN_COPY_TO_HOST));
	}
	return 0;
}

static int compare(struct cairn_test *t, struct rig *r, struct scene *s, struct slicer *x)
{
	const struct cairn_remote_limits limits = { SCENE_ROWS, NUM, SCENE_PAGES * SCENE_PAGE, SCENE_PAGES,
						    SCENE_PAGE, 1, 0 };
	CAIRN_TRY(run_passes(s, x, NULL, s->want));
	CAIRN_TRY(cairn_attn_remote_create(&r->remote, r->lead, s->m, &limits, 1, 0));
	CAIRN_TRY(run_passes(s, x, r->remote, s->got));
	EXPECT(t, !memcmp(s->got, s->want, PASSES * logits_bytes(s)));
	return 0;
}

static void one_model(struct cairn_test *t, const char *model, int32_t workers)
{
	static struct rig r;
	const struct rig_shape shape = { .workers = workers };
	struct slicer x = { 0 };
	struct scene s;

	if (!open_scene(t, &s, "cpu", model) &&
	    !open_slicer(t, &x, s.m, s.s, &s.kv, CAIRN_SLICED_PARTS,
			 cairn_most_stripes(cairn_share_heads(&s.m->config), workers))) {
		if (!rig_open_lead(t, &r, &shape)) {
			for (int i = 0; i < shape.workers; i++)
				rig_add_worker(&r, 0);
			if (!EXPECT(t, compare(t, &r, &s, &x) == 0))
				cairn_note(t, "%s", cairn_last_error());
			cairn_note(t, "%s, %d workers, %d stripes", model, workers, x.link.previous);
		}
		rig_close(&r);
	}
	close_slicer(&x);
	close_scene(&s);
}

static void same_split(struct cairn_test *t)
{
	static const struct {
		const char *model;
		int32_t workers;
	} runs[] = {
		{ "llama3_tiny", 2 }, { "llama2_tiny", 2 }, { "qwen2_tiny", 1 }, { "mistral_tiny", 4 },
		{ "qwen3_tiny", 1 }, { "gemma2_tiny", 3 }, { "mixtral_tiny", 2 }, { "qwen3_moe_tiny", 2 },
		{ "longrope_tiny", 2 }, { "deepseek_tiny", 1 }, { "deepseek_v2_group_tiny", 2 },
		{ "deepseek_v3_tiny", 3 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(runs); i++)
		one_model(t, runs[i].model, runs[i].workers);
}

/* device: the worker's */
static void on_gpus(struct cairn_test *t, const char *model, int32_t device)
{
	const struct cairn_lead_options o = {
		.attention = 1, .table = "cuda", .beat_ms = 20000, .join_ms = 60000,
		.first_device = device, .num_devices = cairn_transport_gpus(),
	};
	static struct rig r;
	struct slicer x = { 0 };
	struct scene s;
	int ret;

	memset(&r, 0, sizeof(r));
	if (!open_scene(t, &s, "cuda", model) &&
	    !open_slicer(t, &x, s.m, s.s, &s.kv, CAIRN_SLICED_PARTS, 1)) {
		ret = cairn_lead_create(&r.lead, &o);
		if (ret == -EOPNOTSUPP) {
			cairn_skip(t, "%s", cairn_last_error());
		} else if (!EXPECT(t, ret == 0 && compare(t, &r, &s, &x) == 0)) {
			cairn_note(t, "%s: %s", model, cairn_last_error());
		}
		cairn_attn_remote_destroy(r.remote);
		cairn_lead_destroy(r.lead);
	}
	close_slicer(&x);
	close_scene(&s);
}

static void on_num_gpus(struct cairn_test *t, int num)
{
	static const char *const models[] = {
		"llama3_tiny", "gemma2_tiny", "longrope_tiny", "deepseek_tiny",
	};

	if (cairn_transport_gpus() < num)
		return cairn_skip(t, "needs %d CUDA device%s", num, num > 1 ? "s" : "");
	for (size_t i = 0; i < ARRAY_SIZE(models); i++)
		on_gpus(t, models[i], num - 1);
}

static void cuda_one_gpu(struct cairn_test *t)
{
	on_num_gpus(t, 1);
}

static void cuda_two_gpus(struct cairn_test *t)
{
	on_num_gpus(t, 2);
}

static const struct cairn_unit units[] = {
	{ "same_split", same_split }, { "cuda_one_gpu", cuda_one_gpu }, { "cuda_two_gpus", cuda_two_gpus },
};

const struct cairn_family cairn_remote_models_family = {
	.stage = "serving", .name = "remote_models", .units = units, .num_units = ARRAY_SIZE(units),
};

// SPDX-License-Identifier: Apache-2.0
/*
 * lora_test - adapters of llama3_tiny: answers of mixed requests, caches, refusals, mutants
 *
 * The expected logits are those of model_ref for a checkpoint whose weights have the adapter merged. A
 * product with an adapter is rounded twice, once before and once after the adapter is added, so that twice
 * the bound of model_ref, which rounds it once, holds.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "conformance/harness.h"
#include "serving/base/json.h"
#include "serving/engine/engine_test.h"
#include "serving/lora/lora_test.h"
#include "serving/lora/lora.h"
#include "serving/model/ref/model_ref.h"
#include "serving/remote/lead/lead.h"
#include "serving/remote/prefill/prefill_worker.h"

#define BASE		"llama3_tiny"
#define LAYERS		2
#define NUM_SPECS	3
#define ROWS		24		/* tokens of the prompt */
#define NEW		6
#define ALL		0x7fu

static const struct adapter_spec specs[NUM_SPECS] = {
	{ "sql", 8, 16, 0, ALL, 3, 0.12f },
	{ "chat", 16, 8, 0, 0x05, 3, 0.5f },		/* q and v, as PEFT's default */
	{ "odd", 5, 4, 1, 0x58, 2, 0.4f },	/* a rank that is filled up; o, gate, down of layer 1 */
};

struct setup {
	struct cairn_impl impl;
	struct golden g;
	struct cairn_safetensors *st;
	struct cairn_model *m;
	char dirs[NUM_SPECS][PATH_MAX];
};

static int open_setup(struct cairn_test *t, struct setup *s, const char *table)
{
	struct cairn_adapter list[NUM_SPECS];

	memset(s, 0, sizeof(*s));
	if (open_table(t, table, &s->impl) || open_golden(t, &s->g, BASE) ||
	    !EXPECT(t, cairn_safetensors_open(s->g.dir, &s->st) == 0) ||
	    !EXPECT(t, cairn_model_load(&s->m, &s->impl, s->g.dir, NULL, NULL) == 0))
		return -1;
	for (int i = 0; i < NUM_SPECS; i++) {
		write_adapter(t, &specs[i], s->st, LAYERS, s->dirs[i]);
		list[i] = (struct cairn_adapter){ specs[i].name, s->dirs[i] };
	}
	if (!EXPECT(t, cairn_model_load_adapters(s->m, list, NUM_SPECS) == 0)) {
		cairn_note(t, "%s", cairn_last_error());
		return -1;
	}
	return 0;
}

static void close_setup(struct setup *s)
{
	cairn_model_free(s->m);
	cairn_safetensors_close(s->st);
	close_golden(&s->g);
}

/* Expected logits of some tokens, and their bounds. */
struct expected {
	double *exact, *bound;		/* [rows, vocab], exact first */
	int rows;
};

/* Computes those of the prompt and of the first `more` tokens of an answer. */
static int expect_logits(struct cairn_test *t, const struct setup *s, const char *dir, const struct answer *a,
			 int more, struct expected *to)
{
	const int rows = ROWS + more, vocab = s->m->config.vocab_size;
	int32_t ids[ROWS + NEW];

	to->rows = rows;
	to->exact = malloc(sizeof(double) * (size_t)(2 * rows * vocab));
	to->bound = to->exact + rows * vocab;
	for (int i = 0; i < rows; i++)
		ids[i] = i < ROWS ? s->g.tokens[i] : a->ids[i - ROWS];
	return EXPECT(t, to->exact && cairn_model_ref_bound(dir, ids, rows, s->m->dtype, to->exact,
							     to->bound) == 0) ? 0 : -1;
}

/* Returns whether a token is not the likeliest, or its log-probability is off by over twice the bounds. */
static int is_wrong(const double *l, const double *b, int vocab, int id, double logprob)
{
	double sum = 0, most = l[0], off = 0;
	int better = 0;

	for (int v = 0; v < vocab; v++) {
		better += !(l[v] - 2 * b[v] <= l[id] + 2 * b[id]);
		most = fmax(most, l[v]);
		off = fmax(off, 2 * b[v]);
	}
	for (int v = 0; v < vocab; v++)
		sum += exp(l[v] - most);
	/* a change of all logits by at most `off` changes a log-probability by at most twice that */
	return better || !(fabs(logprob - (l[id] - most - log(sum))) <= 2 * off);
}

/* Counts the wrong tokens of an answer, as far as logits are expected. */
static int wrong_tokens(const struct setup *s, const struct expected *e, const struct answer *a)
{
	const int vocab = s->m->config.vocab_size;
	int wrong = 0;

	for (int i = ROWS - 1; i < e->rows; i++)
		wrong += is_wrong(e->exact + i * vocab, e->bound + i * vocab, vocab, a->ids[i - ROWS + 1],
				  (double)a->logprob[i - ROWS + 1]);
	return wrong;
}

/* Judges all tokens of an answer. */
static int judge(struct cairn_test *t, const struct setup *s, const char *dir, const struct answer *a)
{
	struct expected e = { NULL };
	int wrong = -1;

	if (EXPECT(t, a->num_ids == NEW) && !expect_logits(t, s, dir, a, NEW - 1, &e))
		wrong = wrong_tokens(s, &e, a);
	free(e.exact);
	return wrong;
}

/* Runs a request with each adapter and one without, all at once, in an engine of their own. */
static int run_mixed(struct cairn_test *t, const struct setup *s, struct answer a[1 + NUM_SPECS])
{
	const struct cairn_engine_options opt = { .max_batch = 4, .max_context = 64, .max_rows = 32 };
	struct cairn_engine_stats stats;
	struct cairn_engine *e = NULL;
	int ret;

	if (!EXPECT(t, cairn_engine_create(&e, s->m, &opt) == 0)) {
		cairn_note(t, "%s", cairn_last_error());
		return -1;
	}
	for (int k = 0; k <= NUM_SPECS; k++) {
		struct cairn_request r = request(&s->g, ROWS, NEW, &a[k]);

		r.adapter = k;
		r.ignore_eos = 1;
		r.sampling.num_logprobs = 1;
		EXPECT(t, cairn_engine_submit(e, &r) == 0);
	}
	ret = cairn_engine_run(e);
	cairn_engine_stats(e, &stats);
	EXPECT(t, stats.fused_steps == 0 && cairn_engine_verify(e) == 0);
	cairn_engine_destroy(e);
	return ret;
}

static void answers(struct cairn_test *t, const char *table)
{
	struct answer *a = calloc(1 + NUM_SPECS, sizeof(*a));
	struct expected without = { NULL };
	struct setup s;
	char dir[PATH_MAX];

	if (!EXPECT(t, a != NULL) || open_setup(t, &s, table) || !EXPECT(t, run_mixed(t, &s, a) == 0))
		goto out;
	EXPECT(t, judge(t, &s, s.g.dir, &a[0]) == 0);
	if (expect_logits(t, &s, s.g.dir, NULL, 0, &without))
		goto out;
	for (int i = 0; i < NUM_SPECS; i++) {
		write_merged(t, &specs[i], s.g.dir, s.st, dir);
		EXPECT(t, judge(t, &s, dir, &a[1 + i]) == 0);
		/* the adapter matters: the model without it begins another answer */
		EXPECT(t, wrong_tokens(&s, &without, &a[1 + i]) > 0);
	}
out:
	free(without.exact);
	close_setup(&s);
	free(a);
}

static void answers_cpu(struct cairn_test *t)
{
	answers(t, "cpu");
}

static void answers_late(struct cairn_test *t)
{
	answers(t, "late");
}

static void answers_cuda(struct cairn_test *t)
{
	answers(t, "cuda");
}

/* Keys and values are shared by requests with the same adapter only, whatever their salts are. */
static void caches(struct cairn_test *t)
{
	/* adapter, salt, and whether a prefix is found */
	static const struct { int adapter; uint64_t salt; int found; } rows[] = {
		{ 0, 0, 0 }, { 1, 0, 0 }, { 2, 0, 0 }, { 1, 0, 1 }, { 0, 0, 1 }, { 2, 0, 1 }, { 2, 77, 0 },
		{ 1, 77, 0 }, { 2, 77, 1 },
	};
	const struct cairn_engine_options opt = { .max_batch = 4, .max_context = 64, .max_rows = 32 };
	struct cairn_engine *e = NULL;
	int32_t first[3][NEW] = { { 0 } };
	struct setup s;

	if (open_setup(t, &s, "cpu") || !EXPECT(t, cairn_engine_create(&e, s.m, &opt) == 0))
		goto out;
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		static struct answer a;
		struct cairn_request r = request(&s.g, ROWS, NEW, &a);

		r.adapter = rows[i].adapter;
		r.ignore_eos = 1;
		r.salt.lo = rows[i].salt;
		EXPECT(t, cairn_engine_submit(e, &r) == 0 && cairn_engine_run(e) == 0);
		EXPECT(t, rows[i].found ? a.cached >= 16 : a.cached == 0);
		/* the answer is the same with cached keys */
		if (i < 3)
			memcpy(first[rows[i].adapter], a.ids, sizeof(first[0]));
		EXPECT(t, !memcmp(first[rows[i].adapter], a.ids, sizeof(first[0])));
	}
	EXPECT(t, memcmp(first[0], first[1], sizeof(first[0])));
	EXPECT(t, memcmp(first[1], first[2], sizeof(first[0])));
out:
	cairn_engine_destroy(e);
	close_setup(&s);
}

/* ---- prefill workers ---- */

static void *help(void *options)
{
	cairn_prefill_worker_run(options);
	return NULL;
}

/* Answers of an engine with a prefill worker: a[1] with an adapter. Returns how many pulls it began. */
static int64_t run_pulled(struct cairn_test *t, struct setup *s, struct cairn_lead *lead, struct answer *a)
{
	const struct cairn_engine_options opt = {
		.max_batch = 4, .max_context = 64, .max_rows = 32, .prefill = lead, .prefill_min = 16,
	};
	struct cairn_engine_stats stats = { 0 };
	struct cairn_engine *e = NULL;

	if (!EXPECT(t, cairn_engine_create(&e, s->m, &opt) == 0))
		return -1;
	for (int i = 0; i < 30000 && !stats.pull.workers; i++) {
		cairn_engine_stats(e, &stats);
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
	}
	for (int k = 1; k >= 0; k--) {
		struct cairn_request r = request(&s->g, ROWS, NEW, &a[k]);

		r.adapter = k;
		r.ignore_eos = 1;
		EXPECT(t, cairn_engine_submit(e, &r) == 0 && cairn_engine_run(e) == 0);
	}
	cairn_engine_stats(e, &stats);
	EXPECT(t, stats.pull.completed == stats.pull.begun && cairn_engine_verify(e) == 0);
	cairn_engine_destroy(e);
	return stats.pull.begun;
}

/* Prefill workers have no adapters, so a prompt with one is computed here. */
static void pulled(struct cairn_test *t)
{
	const struct cairn_lead_options o = {
		.prefill = 1, .table = "cpu", .listen = "127.0.0.1:0", .beat_ms = 20000,
	};
	struct answer *a = calloc(3 + NUM_SPECS, sizeof(*a));
	struct cairn_prefill_worker_options wo = { .member = { .join_ms = 5000 } };
	struct cairn_model *plain = NULL;
	struct cairn_lead *lead = NULL;
	char join[32];
	pthread_t thread;
	struct setup s;
	int ret;

	if (!EXPECT(t, a != NULL) || open_setup(t, &s, "cpu") || !EXPECT(t, run_mixed(t, &s, a + 2) == 0) ||
	    !EXPECT(t, cairn_model_load(&plain, &s.impl, s.g.dir, NULL, NULL) == 0))
		goto out;
	ret = cairn_lead_create(&lead, &o);
	if (ret == -EOPNOTSUPP)
		cairn_skip(t, "%s", cairn_last_error());
	if (ret)
		goto out;
	snprintf(join, sizeof(join), "127.0.0.1:%d", cairn_lead_port(lead));
	wo.member.join = join;
	wo.model = plain;
	if (EXPECT(t, pthread_create(&thread, NULL, help, &wo) == 0)) {
		EXPECT(t, run_pulled(t, &s, lead, a) == 1);
		cairn_lead_destroy(lead);
		pthread_join(thread, NULL);
		for (int k = 0; k < 2; k++)
			EXPECT(t, !memcmp(a[k].ids, a[2 + k].ids, sizeof(a[k].ids)));
	}
out:
	cairn_model_free(plain);
	close_setup(&s);
	free(a);
}

/* ---- refusals ---- */

static void refuses_adapter(struct cairn_test *t, struct cairn_model *m, const char *dir, int want,
			    const char *text)
{
	const struct cairn_adapter a = { "x", dir };

	EXPECT(t, cairn_model_load_adapters(m, &a, 1) == want && !m->lora);
	EXPECT_CONTAINS(t, cairn_last_error(), text);
}

static void refused_configs(struct cairn_test *t)
{
	static const struct { const char *more; int want; const char *text; } rows[] = {
		{ ",\"use_dora\":true", -EOPNOTSUPP, "adapter_config.json: use_dora: is not supported" },
		{ ",\"alpha_pattern\":{\"q\":1}", -EOPNOTSUPP, "alpha_pattern: is not supported" },
		{ ",\"fan_in_fan_out\":true", -EOPNOTSUPP, "fan_in_fan_out: is not supported" },
		{ ",\"lora_bias\":true", -EOPNOTSUPP, "lora_bias: is not supported" },
	};
	static const struct { int rank; double alpha; int want; const char *text; } numbers[] = {
		{ 0, 1, -EINVAL, "adapter_config.json: r: must be" },
		{ 65, 1, -EOPNOTSUPP, "adapter_config.json: r: is 65, at most 64 is supported" },
		{ 8, -1, -EINVAL, "adapter_config.json: lora_alpha: must be" },
	};
	struct cairn_model *m = NULL;
	struct cairn_impl impl;
	struct golden g;
	char dir[PATH_MAX];

	if (open_table(t, "cpu", &impl) || open_golden(t, &g, BASE) ||
	    !EXPECT(t, cairn_model_load(&m, &impl, g.dir, NULL, NULL) == 0))
		return;
	snprintf(dir, sizeof(dir), "%s/bad", cairn_tmpdir(t));
	refuses_adapter(t, m, dir, -EIO, "bad/adapter_config.json");
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		write_adapter_config(t, &specs[0], dir, rows[i].more);
		refuses_adapter(t, m, dir, rows[i].want, rows[i].text);
	}
	for (size_t i = 0; i < ARRAY_SIZE(numbers); i++) {
		struct adapter_spec s = specs[0];

		s.rank = numbers[i].rank;
		s.alpha = numbers[i].alpha;
		write_adapter_config(t, &s, dir, "");
		refuses_adapter(t, m, dir, numbers[i].want, numbers[i].text);
	}
	write_adapter_config(t, &specs[0], dir, "");
	refuses_adapter(t, m, dir, -EIO, "bad/adapter_model.safetensors");
	cairn_model_free(m);
	close_golden(&g);
}

static void refused_tensors(struct cairn_test *t)
{
	static const struct { const char *name; int rows, cols, want; const char *text; } rows[] = {
		{ "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight", 8, 64, -EINVAL,
		  "layers.1.self_attn.q_proj.lora_B.weight: is missing" },
		{ "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight", 128, 8, -EINVAL,
		  "layers.0.mlp.up_proj.lora_A.weight: is missing" },
		{ "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight", 8, 128, -EINVAL,
		  "layers.0.mlp.up_proj.lora_B.weight: the shape must be [128, 8]" },
		{ "base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight", 4, 64, -EINVAL,
		  "k_proj.lora_A.weight: the shape must be [8, 64]" },
		{ "base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight", 8, 64, -EOPNOTSUPP,
		  "is no matrix of an adapter of this model's 2 layers" },
		{ "base_model.model.lm_head.lora_A.weight", 8, 64, -EOPNOTSUPP,
		  "adapter_model.safetensors: \"base_model.model.lm_head.lora_A.weight\": is no matrix" },
		{ "base_model.model.model.layers.0.self_attn.q_proj.lora_C.weight", 8, 64, -EOPNOTSUPP,
		  "is no matrix of an adapter" },
	};
	struct cairn_model *m = NULL;
	struct cairn_impl impl;
	struct golden g;
	char dir[PATH_MAX], path[PATH_MAX + 64];

	if (open_table(t, "cpu", &impl) || open_golden(t, &g, BASE) ||
	    !EXPECT(t, cairn_model_load(&m, &impl, g.dir, NULL, NULL) == 0))
		return;
	snprintf(dir, sizeof(dir), "%s/bad", cairn_tmpdir(t));
	write_adapter_config(t, &specs[0], dir, "");
	snprintf(path, sizeof(path), "%s/adapter_model.safetensors", dir);
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		struct lora_file f = { .at = 0 };
		float *to = lora_file_add(&f, rows[i].name, rows[i].rows, rows[i].cols);

		memset(to, 0, sizeof(*to) * (size_t)(rows[i].rows * rows[i].cols));
		lora_file_write(t, &f, path);
		refuses_adapter(t, m, dir, rows[i].want, rows[i].text);
	}
	cairn_model_free(m);
	close_golden(&g);
}

/* Models, tables, engines and requests that adapters do not go with. */
static void refused_uses(struct cairn_test *t)
{
	static struct answer a;
	const struct cairn_engine_options opt = { .max_batch = 4, .max_context = 64, .max_rows = 32 };
	struct cairn_engine_options graph = opt;
	struct cairn_model *other = NULL;
	struct cairn_engine *e = NULL;
	struct cairn_request r;
	struct golden g;
	struct setup s;

	if (open_setup(t, &s, "cpu") || !EXPECT(t, cairn_engine_create(&e, s.m, &opt) == 0))
		goto out;
	for (int adapter = -1; adapter <= NUM_SPECS + 1; adapter += NUM_SPECS + 2) {
		r = request(&s.g, ROWS, NEW, &a);
		r.adapter = adapter;
		EXPECT(t, cairn_engine_submit(e, &r) == -EINVAL);
		EXPECT_CONTAINS(t, cairn_last_error(), "adapter: is");
	}
	cairn_engine_destroy(e);
	e = NULL;
	graph.decode = CAIRN_DECODE_GRAPH;
	EXPECT(t, cairn_engine_create(&e, s.m, &graph) == -EOPNOTSUPP);
	EXPECT_CONTAINS(t, cairn_last_error(), s.impl.decode_step ? "adapters" : "decode_step");
	if (open_golden(t, &g, "mixtral_tiny") ||
	    !EXPECT(t, cairn_model_load(&other, &s.impl, g.dir, NULL, NULL) == 0))
		goto out;
	refuses_adapter(t, other, s.dirs[0], -EOPNOTSUPP, "lora: adapters are not supported with experts");
	cairn_model_free(other);
	other = NULL;
	close_golden(&g);
	s.impl.lora = NULL;
	if (EXPECT(t, cairn_model_load(&other, &s.impl, s.g.dir, NULL, NULL) == 0))
		refuses_adapter(t, other, s.dirs[0], -EOPNOTSUPP, "cpu: the table has no operation lora");
	cairn_model_free(other);
out:
	cairn_engine_destroy(e);
	close_setup(&s);
}

/* ---- mutants ---- */

static struct cairn_impl right;

#define CALL(name, change) \
	static int name##_call(const struct cairn_lora_args *args, void *stream) \
	{ \
		struct cairn_lora_args a = *args; \
		int32_t slots[64]; \
		\
		memcpy(slots, a.slot, sizeof(*slots) * (size_t)a.m); \
		change; \
		return right.lora(&a, stream); \
	} \
	static void name(struct setup *s) \
	{ \
		s->impl.lora = name##_call; \
	}

CALL(first_row_for_all, for (int i = 1; i < a.m; i++) slots[i] = slots[0]; a.slot = slots)
CALL(idle_rows_get_one, for (int i = 0; i < a.m; i++) slots[i] += slots[i] < 0; a.slot = slots)
CALL(slots_shifted, for (int i = 0; i < a.m; i++) slots[i] = slots[i] < 0 ? -1 : (slots[i] + 1) % a.num_slots;
     a.slot = slots)
CALL(parts_shifted, a.part_end[0] -= a.num_parts > 1 ? 32 : 0)
CALL(other_layers, a.a = (const char *)a.a + (a.k == 128 ? 256 : 0))

static void scales_swapped(struct setup *s)
{
	float first = s->m->lora->scale[0];

	s->m->lora->scale[0] = s->m->lora->scale[1];
	s->m->lora->scale[1] = first;
}

static const struct mutant {
	const char *name;
	void (*change)(struct setup *s);
} mutants[] = {
	{ "none", NULL },
	{ "first_row_for_all", first_row_for_all }, { "idle_rows_get_one", idle_rows_get_one },
	{ "slots_shifted", slots_shifted }, { "parts_shifted", parts_shifted },
	{ "other_layers", other_layers }, { "scales_swapped", scales_swapped },
};

/* The first token of each answer is judged. */
static void noticed(struct cairn_test *t)
{
	struct answer *a = calloc(1 + NUM_SPECS, sizeof(*a));
	struct expected e[1 + NUM_SPECS] = { { NULL } };
	char dir[PATH_MAX];
	struct setup s;

	for (size_t i = 0; i < ARRAY_SIZE(mutants) && EXPECT(t, a != NULL); i++) {
		int wrong = 0;

		if (!open_setup(t, &s, "cpu")) {
			for (int k = 0; k <= NUM_SPECS && !i; k++) {
				if (k)
					write_merged(t, &specs[k - 1], s.g.dir, s.st, dir);
				expect_logits(t, &s, k ? dir : s.g.dir, NULL, 0, &e[k]);
			}
			right = s.impl;
			if (mutants[i].change)
				mutants[i].change(&s);
			wrong = run_mixed(t, &s, a) != 0;
			for (int k = 0; k <= NUM_SPECS && e[k].exact; k++)
				wrong += wrong_tokens(&s, &e[k], &a[k]);
			cairn_note(t, "%s: %d of %d wrong", mutants[i].name, wrong, 1 + NUM_SPECS);
			EXPECT(t, mutants[i].change ? wrong > 0 : wrong == 0);
		}
		close_setup(&s);
	}
	for (int k = 0; k <= NUM_SPECS; k++)
		free(e[k].exact);
	free(a);
}

static const struct cairn_unit units[] = {
	{ "answers_cpu", answers_cpu }, { "answers_late", answers_late }, { "answers_cuda", answers_cuda },
	{ "caches", caches }, { "pulled", pulled }, { "refused_configs", refused_configs },
	{ "refused_tensors", refused_tensors }, { "refused_uses", refused_uses }, { "noticed", noticed },
};

const struct cairn_family cairn_lora_model_family = {
	.stage = "serving",
	.name = "lora_model",
	.units = units,
	.num_units = ARRAY_SIZE(units),
	.cost_s = 3,
};

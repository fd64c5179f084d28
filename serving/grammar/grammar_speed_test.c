// SPDX-License-Identifier: Apache-2.0
/*
 * grammar_speed_test - times of constraints and masks with a vocabulary of 128000 tokens
 *
 * The vocabulary is made up: words of up to three syllables with and without a space before them, numbers,
 * runs of spaces, and pairs of punctuation. Times are those that an engine sees, messages included. A mask is
 * timed at each token of random answers, whose tokens are drawn from the masks.
 *
 * Keys: num, the number of samples; mean_us, p50_us, p99_us, of the time from the request for a constraint to
 * its end (compile_*), or of a step with one answer, or with 64 (*_rows64). llama3_8b_b1 and _b64, on a GPU:
 * time from one token to the next of free and of constrained answers, or their tokens per second.
 */
#include <math.h>
#include <stdlib.h>

#include "serving/engine/engine.h"
#include "serving/grammar/grammar_test.h"
#include "serving/model/model_test.h"

#define WIDE		128000
#define MOST		20000		/* samples of a row */
#define COMPILED	300		/* different schemas */

static const char schema[] =
	"{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\","
	"\"minimum\":0,\"maximum\":150},"
	"\"mail\":{\"type\":\"string\",\"pattern\":\"^[a-z]+@[a-z]+\\\\.com$\"},"
	"\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"red\",\"green\",\"blue\"]},\"maxItems\":5},"
	"\"state\":{\"enum\":[\"open\",\"closed\"]}},"
	"\"required\":[\"name\",\"age\",\"mail\",\"tags\",\"state\"],"
	"\"additionalProperties\":false}";

static void put_token(FILE *f, int32_t *id, const char *text)
{
	if (*id < WIDE - 2)
		fprintf(f, "%s\"%s\":%d", *id ? "," : "", text, *id);
	++*id;
}

/* Whether ByteLevel spells a byte as itself. */
static int is_plain(int byte)
{
	return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

/* A byte as ByteLevel spells it, in JSON. */
static const char *spelled(int byte, char *to)
{
	int code = 256;

	for (int b = 0; b < byte; b++)
		code += !is_plain(b);
	sprintf(to, "\\u%04x", is_plain(byte) ? byte : code);
	return to;
}

static void put_words(FILE *f, int32_t *id)
{
	static const char starts[] = "bdfghjklmnprstvwz", vowels[] = "aeiou";
	char text[32];
	int n = (int)(sizeof(starts) - 1) * 5;

	for (int len = 1, many = n; len <= 3; len++, many *= n)
		for (int w = 0; w < many && *id < WIDE - 2; w++)
			for (int space = 0; space < 2; space++) {
				char *at = text + sprintf(text, "%s", space ? "\\u0120" : "");

				for (int k = 0, rest = w; k < len; k++, rest /= n) {
					*at++ = starts[rest % n / 5];
					*at++ = vowels[rest % 5];
				}
				*at = 0;
				put_token(f, id, text);
			}
}

static int write_tokenizer(struct cairn_test *t, char *dir, size_t len)
{
	char path[4200], a[8], b[8], text[300];
	static const char marks[] = "{}[],:.\\/'-+_()*&!?<>=";
	int32_t id = 0;
	FILE *f;

	snprintf(dir, len, "%s", cairn_tmpdir(t));
	snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
	f = fopen(path, "w");
	if (!EXPECT(t, f))
		return 0;
	fputs("{\"version\":\"1.0\",\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
	      "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,"
	      "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,"
	      "\"use_regex\":true},\"added_tokens\":[", f);
	for (int32_t i = WIDE - 2; i < WIDE; i++)
		fprintf(f, "%s{\"id\":%d,\"content\":\"<|%d|>\",\"single_word\":false,\"lstrip\":false,"
			"\"rstrip\":false,\"normalized\":false,\"special\":true}",
			i < WIDE - 1 ? "" : ",", i, i);
	fputs("],\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{", f);
	for (int byte = 0; byte < 256; byte++)
		put_token(f, &id, spelled(byte, a));
	for (int i = 10; i < 1000; i++) {
		snprintf(text, sizeof(text), "%d", i);
		put_token(f, &id, text);
	}
	for (int i = 2; i < 30; i++) {
		text[0] = 0;
		for (int k = 0; k < i; k++)
			strcat(text, "\\u0120");
		put_token(f, &id, text);
	}
	for (size_t i = 0; i < sizeof(marks) - 1; i++)
		for (size_t k = 0; k < sizeof(marks); k++) {
			spelled(k < sizeof(marks) - 1 ? marks[k] : '"', b);
			snprintf(text, sizeof(text), "%s%s", b, spelled(marks[i], a));
			put_token(f, &id, text);
		}
	put_words(f, &id);
	fputs("}}}\n", f);
	return EXPECT(t, !fclose(f) && id >= WIDE - 2);
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

struct samples {
	double us[MOST], sum;
	int num;
};

static void add(struct samples *s, int64_t ns)
{
	if (s->num == MOST)
		return;
	s->us[s->num] = (double)ns * 1e-3;
	s->sum += s->us[s->num++];
}

static double quantile(struct samples *s, double q)
{
	qsort(s->us, (size_t)s->num, sizeof(*s->us), by_size);
	return s->us[(int)(q * (s->num - 1))];
}

/* Draws `rows` answers side by side until they end, `rounds` times; a sample is a step of all rows. */
static void walk(struct cairn_test *t, struct bench *b, enum cairn_constraint_kind kind, const char *text,
		 int rows, int rounds, struct samples *s)
{
	struct cairn_mask_item items[64] = { 0 };
	int32_t last[64];

	s->num = 0;
	s->sum = 0;
	for (int round = 0; round < rounds; round++) {
		uint64_t id = open_constraint(t, b, kind, text, NULL, rows);
		int busy = EXPECT(t, id);

		for (int i = 0; i < rows; i++)
			items[i] = (struct cairn_mask_item){ .constraint = id, .seq = i, .tokens = &last[i],
							     .wants_masks = 1 };
		for (int step = 0; busy && step < 100; step++) {
			int64_t begun = cairn_clock_ns();

			EXPECT(t, !b->masks->step(b->masks->ctx, items, rows));
			add(s, cairn_clock_ns() - begun);
			for (int i = 0; i < rows; i++) {
				const uint32_t *mask = b->masks->mask(b->masks->ctx, items[i].first_mask, id,
								      i, items[i].draw);
				int32_t drawn = (int32_t)(cairn_rand(t) % WIDE);

				if (!EXPECT(t, mask)) {
					busy = 0;
					break;
				}
				while (!is_allowed(mask, drawn))
					drawn = (drawn + 1) % WIDE;
				busy &= drawn != WIDE - 1 || rows > 1;
				items[i].num_tokens = drawn != WIDE - 1;	/* an ended row stays */
				items[i].draw += drawn != WIDE - 1;
				last[i] = drawn;
			}
		}
		cairn_grammar_close(b->g, id);
	}
}

static void masks(struct cairn_test *t)
{
	static const struct { const char *name; enum cairn_constraint_kind kind; const char *text; } all[] = {
		{ "schema_128k", CAIRN_CONSTRAINT_JSON, schema },
		{ "json_128k", CAIRN_CONSTRAINT_JSON, "{\"type\":\"object\"}" },
		{ "regex_128k", CAIRN_CONSTRAINT_REGEX, "[A-Za-z ]{20,200}\\. [0-9]{1,9}" },
		{ "regex_slug_128k", CAIRN_CONSTRAINT_REGEX, "[a-z0-9]+(-[a-z0-9]+){2,20}" },
		{ "regex_words_128k", CAIRN_CONSTRAINT_REGEX, "(\\w+[ ,.]){10,40}" },	/* of all scripts */
	};
	static const int32_t eos[] = { WIDE - 1 };
	struct samples *s = calloc(1, sizeof(*s));
	char dir[4096], text[2048];
	struct cairn_grammar_options o = { .model_dir = dir, .vocab_size = WIDE, .eos = eos, .num_eos = 1,
					   .max_masks = 64, .step_ms = WAIT_S * 1000 };
	struct bench b = { 0 };
	double p50, p99;

	if (cairn_grammar_library()) {
		cairn_skip(t, "%s", cairn_last_error());
		free(s);
		return;
	}
	if (!write_tokenizer(t, dir, sizeof(dir)) || !EXPECT(t, !cairn_grammar_create(&b.g, &o)))
		return;
	b.masks = cairn_grammar_masks(b.g);
	/* starts the process */
	EXPECT(t, open_constraint(t, &b, CAIRN_CONSTRAINT_REGEX, "a", NULL, 1));
	for (int i = 0; i < COMPILED; i++) {
		int64_t begun = cairn_clock_ns();

		snprintf(text, sizeof(text), "{\"title\":\"%d\",%s", i, schema + 1);
		EXPECT(t, open_constraint(t, &b, CAIRN_CONSTRAINT_JSON, text, NULL, 1));
		add(s, cairn_clock_ns() - begun);
	}
	p50 = quantile(s, 0.5);
	p99 = quantile(s, 0.99);
	EXPECT(t, p99 <= 20000);
	cairn_host_row(t, "compile_128k", "llguidance", "\"num\":%d,\"mean_us\":%.1f,\"p50_us\":%.1f,"
		       "\"p99_us\":%.1f", s->num, s->sum / s->num, p50, p99);
	for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
		walk(t, &b, all[i].kind, all[i].text, 1, 100, s);
		p50 = quantile(s, 0.5);
		p99 = quantile(s, 0.99);
		EXPECT(t, i == ARRAY_SIZE(all) - 1 || (s->sum / s->num <= 150 && p99 <= 1500));
		cairn_host_row(t, all[i].name, "llguidance", "\"num\":%d,\"mean_us\":%.1f,\"p50_us\":%.1f,"
			       "\"p99_us\":%.1f", s->num, s->sum / s->num, p50, p99);
	}
	walk(t, &b, all[0].kind, all[0].text, 64, 4, s);
	p50 = quantile(s, 0.5);
	p99 = quantile(s, 0.99);
	cairn_host_row(t, "schema_128k_rows64", "llguidance", "\"num\":%d,\"mean_us\":%.1f,\"p50_us\":%.1f,"
		       "\"p99_us\":%.1f", s->num, s->sum / s->num, p50, p99);
	cairn_grammar_destroy(b.g);
	free(s);
}

/* ---- tokens of an engine ---- */

enum { WARM_TOKENS = 20, TIMED_TOKENS = 200, MOST_TOKENS = 300 };

struct answers {
	int64_t tokens;
	int wrong;		/* answers that ended otherwise than at MOST_TOKENS */
};

static int count_token(void *ctx, int32_t index, const struct cairn_token *token)
{
	(void)index;
	(void)token;
	((struct answers *)ctx)->tokens++;
	return 0;
}

static void count_end(void *ctx, int32_t index, enum cairn_finish why, int32_t token)
{
	(void)index;
	(void)token;
	((struct answers *)ctx)->wrong += why != CAIRN_FINISH_LENGTH;
}

/* Submits `rows` requests, each under a constraint of its own if they are constrained. */
static int submit(struct cairn_test *t, struct bench *b, struct cairn_engine *e, struct answers *a, int rows,
		  int constrained, uint64_t *ids)
{
	char text[2048];

	for (int i = 0; i < rows; i++) {
		int32_t prompt[16];
		struct cairn_request req = {
			.id = (uint64_t)i + 1, .prompt = prompt, .num_prompt = ARRAY_SIZE(prompt),
			.max_new_tokens = MOST_TOKENS, .ignore_eos = !constrained,
			.sampling = { .temperature = 1, .top_p = 1, .seed = (uint64_t)i },
			.on_token = count_token, .on_finish = count_end, .ctx = a,
		};

		snprintf(text, sizeof(text), "{\"title\":\"row %d\",\"type\":\"array\",\"minItems\":%d,"
			 "\"items\":%s}", i, MOST_TOKENS, schema);
		ids[i] = constrained ? open_constraint(t, b, CAIRN_CONSTRAINT_JSON, text, NULL, 1) : 0;
		req.constraint = ids[i];
		for (size_t k = 0; k < ARRAY_SIZE(prompt); k++)
			prompt[k] = (int32_t)(cairn_rand(t) % (uint64_t)(b->masks->vocab_size - 2));
		if (!EXPECT(t, !constrained || ids[i]) || !EXPECT(t, !cairn_engine_submit(e, &req)))
			return -1;
	}
	return 0;
}

/* Returns the milliseconds from one token of each answer to the next, when `rows` answers run; 0: failed. */
static double token_ms(struct cairn_test *t, struct bench *b, struct cairn_engine *e, int rows,
		       int constrained)
{
	struct answers a = { 0 };
	int64_t from = 0, to = 0;
	uint64_t ids[64] = { 0 };
	int busy = 1;

	if (submit(t, b, e, &a, rows, constrained, ids))
		return 0;
	while (busy && EXPECT(t, !cairn_engine_step(e, &busy))) {
		from = !from && a.tokens >= (int64_t)rows * WARM_TOKENS ? cairn_clock_ns() : from;
		to = !to && a.tokens >= (int64_t)rows * (WARM_TOKENS + TIMED_TOKENS) ? cairn_clock_ns() : to;
	}
	for (int i = 0; i < rows && constrained; i++)
		cairn_grammar_close(b->g, ids[i]);
	return EXPECT(t, from && to && !a.wrong) ? (double)(to - from) * 1e-6 / TIMED_TOKENS : 0;
}

/* Times answers with and without a constraint in one engine, in turn; each result is the lower of two. */
static int token_times(struct cairn_test *t, struct bench *b, struct cairn_model *m, int rows, double ms[2])
{
	const struct cairn_engine_options o = { .max_batch = rows, .max_context = 512, .masks = b->masks };
	struct cairn_engine *e = NULL;

	ms[0] = ms[1] = INFINITY;
	if (!EXPECT(t, !cairn_engine_create(&e, m, &o)))
		return -1;
	for (int i = 0; i < 4; i++) {
		double took = token_ms(t, b, e, rows, i % 2);

		ms[i % 2] = took < ms[i % 2] ? took : ms[i % 2];
	}
	cairn_engine_destroy(e);
	return ms[0] > 0 && ms[1] > 0 ? 0 : -1;
}

/* llama3-8b with random weights and a vocabulary of 128000: one constrained answer, and 64, and free ones */
static void tokens(struct cairn_test *t)
{
	static const int32_t eos[] = { WIDE - 1 };
	struct cairn_grammar_options o = { .vocab_size = WIDE, .eos = eos, .num_eos = 1, .max_masks = 64,
					   .step_ms = WAIT_S * 1000 };
	struct cairn_model_config c;
	struct cairn_model *m = NULL;
	struct cairn_impl impl;
	struct bench b = { 0 };
	char dir[4096];
	double ms[2];

	if (open_table(t, "cuda", &impl) || !EXPECT(t, !cairn_model_shape("llama3-8b", &c)))
		return;
	if (cairn_grammar_library()) {
		cairn_skip(t, "%s", cairn_last_error());
		return;
	}
	c.vocab_size = WIDE;
	o.model_dir = dir;
	if (!write_tokenizer(t, dir, sizeof(dir)) || !EXPECT(t, !cairn_model_random(&m, &impl, &c, 1)))
		return;
	if (EXPECT(t, !cairn_grammar_create(&b.g, &o))) {
		b.masks = cairn_grammar_masks(b.g);
		if (!token_times(t, &b, m, 1, ms)) {
			EXPECT(t, ms[1] <= 1.05 * ms[0]);
			cairn_row(t, "llama3_8b_b1", "cuda", "\"free_ms\":%.4f,\"constrained_ms\":%.4f,"
				  "\"slower_pct\":%.2f", ms[0], ms[1], 100 * (ms[1] / ms[0] - 1));
		}
		if (!token_times(t, &b, m, 64, ms)) {
			EXPECT(t, ms[0] >= 0.9 * ms[1]);
			cairn_row(t, "llama3_8b_b64", "cuda", "\"free_per_s\":%.0f,"
				  "\"constrained_per_s\":%.0f,\"share_pct\":%.1f", 64e3 / ms[0],
				  64e3 / ms[1], 100 * ms[0] / ms[1]);
		}
		cairn_grammar_destroy(b.g);
	}
	cairn_model_free(m);
}

/* The same on the host with a small model, so that the measure itself is tested. */
static void tokens_small(struct cairn_test *t)
{
	struct cairn_model_config c;
	struct cairn_model *m = NULL;
	struct cairn_impl impl;
	struct bench b;
	double ms[2];

	if (open_table(t, "cpu", &impl) || !EXPECT(t, !cairn_model_shape("llama3-8b", &c)) ||
	    !start_bench(t, &b, (struct cairn_grammar_options){ 0 }))
		return;
	c.hidden_size = 64;
	c.intermediate_size = 64;
	c.num_hidden_layers = c.num_attention_heads = c.num_key_value_heads = 1;
	c.head_dim = 64;
	c.vocab_size = VOCAB;
	if (EXPECT(t, !cairn_model_random(&m, &impl, &c, 1)))
		EXPECT(t, !token_times(t, &b, m, 3, ms));
	cairn_model_free(m);
	stop_bench(&b);
}

static const struct cairn_unit measures[] = { { "masks", masks }, { "tokens", tokens } };
static const struct cairn_unit units[] = { { "tokens_small", tokens_small } };

const struct cairn_family cairn_structured_family = {
	.stage = "serving", .name = "structured", .measures = measures, .num_measures = ARRAY_SIZE(measures),
	.units = units, .num_units = ARRAY_SIZE(units), .timeout_s = 600,
};

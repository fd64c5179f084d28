// SPDX-License-Identifier: Apache-2.0
/* command - parses options, loads models and measures memory bandwidth for the subcommands */
#include "serving/engine/spec/eagle_head.h"
#include "serving/engine/spec/mtp_head.h"
#include "serving/cli/command.h"
#include "serving/cli/session_ranks.h"
#include "serving/lora/lora.h"
#include "serving/plan/plan_engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "conformance/tables/program.h"
#include "conformance/tables/tables.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"

static int take_int(const struct cairn_option *o, const char *text)
{
	char *end;
	long long v;

	errno = 0;
	v = strtoll(text, &end, 10);
	/* a double cannot hold a bound near 2^63 exactly; for those, strtoll() reports ERANGE */
	if (errno || end == text || *end || (double)v < o->lo || (double)v > o->hi)
		return cairn_error(EINVAL, "--%s: '%.64s' is not a whole number from %.0f to %lld", o->name,
				   text, o->lo, o->hi < 0x1p63 ? (long long)o->hi : INT64_MAX);
	*(int64_t *)o->to = v;
	return 0;
}

static int take_float(const struct cairn_option *o, const char *text)
{
	char *end;
	double v = strtod(text, &end);

	if (end == text || *end || !(v >= o->lo && v <= o->hi))
		return cairn_error(EINVAL, "--%s: '%.64s' is not a number from %g to %g", o->name, text,
				   o->lo, o->hi);
	*(float *)o->to = (float)v;
	return 0;
}

static int take_choice(const struct cairn_option *o, const char *text)
{
	char all[128] = "";
	size_t at = 0;

	for (int i = 0; o->names[i]; i++) {
		if (!strcmp(text, o->names[i])) {
			*(int *)o->to = i;
			return 0;
		}
		if (at < sizeof(all))
			at += (size_t)snprintf(all + at, sizeof(all) - at, "%s%s", i ? ", " : "",
					       o->names[i]);
	}
	return cairn_error(EINVAL, "--%s: '%.64s' is none of %s", o->name, text, all);
}

static int take_adapter(const struct cairn_option *o, const char *text)
{
	struct cairn_adapter_options *a = o->to;
	const char *equals = strchr(text, '=');
	const size_t len = equals ? (size_t)(equals - text) : 0;

	if (!len || !equals[1])
		return cairn_error(EINVAL, "--%s: '%.200s' is not NAME=DIR", o->name, text);
	if (len >= sizeof(a->list[0].name))
		return cairn_error(EINVAL, "--%s: '%.64s...': the name has over %zu bytes", o->name, text,
				   sizeof(a->list[0].name) - 1);
	if (a->num == CAIRN_MAX_LORA)
		return cairn_error(EINVAL, "--%s: at most %d adapters", o->name, CAIRN_MAX_LORA);
	for (int32_t i = 0; i < a->num; i++)
		if (!strncmp(a->list[i].name, text, len) && !a->list[i].name[len])
			return cairn_error(EINVAL, "--%s: two adapters have the name '%s'", o->name,
					   a->list[i].name);
	memcpy(a->list[a->num].name, text, len);
	a->list[a->num].name[len] = 0;
	a->list[a->num++].dir = equals + 1;
	return 0;
}

static int take(const struct cairn_option *o, const char *text)
{
	switch (o->kind) {
	case CAIRN_OPT_FLAG:
		*(int *)o->to = 1;
		return 0;
	case CAIRN_OPT_TEXT:
		*(const char **)o->to = text;
		return 0;
	case CAIRN_OPT_INT:
		return take_int(o, text);
	case CAIRN_OPT_FLOAT:
		return take_float(o, text);
	case CAIRN_OPT_ADAPTER:
		return take_adapter(o, text);
	default:
		return take_choice(o, text);
	}
}

/* Checks that the record can be written, before the run instead of after it. */
static int check_json(const char *path)
{
	FILE *json = path ? fopen(path, "a") : NULL;

	if (path && !json)
		return cairn_error(EINVAL, "--json: %s: %s", path, strerror(errno));
	if (json)
		fclose(json);
	return 0;
}

static const struct cairn_option *option_at(const struct cairn_option *shared, int num_shared,
					    const struct cairn_option *options, int i)
{
	return i < num_shared ? &shared[i] : &options[i - num_shared];
}

static void print_option(const struct option *o, const char *const *values)
{
	static const char *const takes[] = {
		[no_argument] = "none", [required_argument] = "value", [optional_argument] = "optional",
	};

	printf("%s\t%s\t", o->name, takes[o->has_arg]);
	for (int i = 0; values && values[i]; i++)
		printf("%s%s", i ? " " : "", values[i]);
	printf("\n");
}

void cairn_print_options(const struct option *table)
{
	for (; table->name; table++)
		print_option(table, NULL);
}

int cairn_parse_options(int argc, char **argv, struct cairn_common_options *common,
			const struct cairn_option *options, int num_options, const char *usage)
{
	struct cairn_common_options none = { .impl = NULL }, *to = common ? common : &none;
	const struct cairn_option shared[] = {
		{ "impl", CAIRN_OPT_TEXT, &to->impl, 0, 0, NULL },
		{ "device", CAIRN_OPT_INT, &to->device, 0, 1023, NULL },
		{ "model", CAIRN_OPT_TEXT, &to->model, 0, 0, NULL },
		{ "batch", CAIRN_OPT_INT, &to->batch, 1, 4096, NULL },
		{ "tp", CAIRN_OPT_INT, &to->tp, 1, CAIRN_COMM_MAX_RANKS, NULL },
		{ "cp", CAIRN_OPT_INT, &to->cp, 1, CAIRN_COMM_MAX_RANKS, NULL },
		{ "pp", CAIRN_OPT_INT, &to->pp, 1, CAIRN_COMM_MAX_RANKS, NULL },
		{ "pp-chunk", CAIRN_OPT_INT, &to->pp_chunk, 1, 1 << 20, NULL },
		{ "cp-exchange", CAIRN_OPT_CHOICE, &to->exchange, 0, 0, cairn_exchange_names },
		{ "cp-rows", CAIRN_OPT_INT, &to->context_rows, 1, 1 << 20, NULL },
		{ "cp-keys", CAIRN_OPT_INT, &to->context_keys, 1, (int64_t)1 << 40, NULL },
		{ "cp-stripes", CAIRN_OPT_FLAG, &to->stripes, 0, 0, NULL },
		{ "collective-timeout", CAIRN_OPT_INT, &to->collective_s, 1, 3600, NULL },
		{ "rendezvous", CAIRN_OPT_TEXT, &to->rendezvous, 0, 0, NULL },
		{ "rendezvous-key-file", CAIRN_OPT_TEXT, &to->rendezvous_key, 0, 0, NULL },
		{ "rendezvous-timeout", CAIRN_OPT_INT, &to->rendezvous_s, 1, 86400, NULL },
		{ "nodes", CAIRN_OPT_INT, &to->nodes, 1, CAIRN_COMM_MAX_RANKS, NULL },
		{ "node-rank", CAIRN_OPT_INT, &to->node, 0, CAIRN_COMM_MAX_RANKS - 1, NULL },
		{ "decode", CAIRN_OPT_CHOICE, &to->decode, 0, 0, cairn_decode_path_names },
		{ "weights", CAIRN_OPT_CHOICE, &to->weights, 0, 0, cairn_weights_names },
		{ "kv", CAIRN_OPT_CHOICE, &to->kv, 0, 0, cairn_kv_names },
		{ "json", CAIRN_OPT_TEXT, &to->json, 0, 0, NULL },
	};
	/* json is the last one */
	const int num_shared = common ? (int)(sizeof(shared) / sizeof(shared[0])) - !!common->no_json : 0;
	struct option table[CAIRN_MAX_OPTIONS + 2] = { { NULL, 0, NULL, 0 } };
	int which;

	to->node = -1;
	if (num_shared + num_options > CAIRN_MAX_OPTIONS)
		return cairn_error(EINVAL, "command: %d options are too many", num_options);
	for (int i = 0; i < num_shared + num_options; i++) {
		const struct cairn_option *o = option_at(shared, num_shared, options, i);

		table[i].name = o->name;
		table[i].has_arg = o->kind == CAIRN_OPT_FLAG ? no_argument : required_argument;
	}
	table[num_shared + num_options] = (struct option){ "help", optional_argument, NULL, 0 };
	for (int c; (c = getopt_long(argc, argv, "", table, &which)) != -1;) {
		if (c == '?')
			return -EINVAL;	/* getopt has already named the option */
		if (which < num_shared + num_options) {
			CAIRN_TRY(take(option_at(shared, num_shared, options, which), optarg));
			continue;
		}
		if (optarg && strcmp(optarg, "options"))
			return cairn_error(EINVAL, "--help: '%.64s' is not 'options'", optarg);
		if (!optarg)
			fputs(usage, stdout);
		for (int i = 0; optarg && i <= num_shared + num_options; i++)
			print_option(&table[i], i == num_shared + num_options ? NULL :
				     option_at(shared, num_shared, options, i)->names);
		return 1;
	}
	if (optind < argc)
		return cairn_error(EINVAL, "'%.64s' is not an option", argv[optind]);
	return check_json(to->json);
}

int cairn_parse_list(const char *option, const char *text, int32_t lo, int32_t hi, int32_t *values, int most,
		     int *num)
{
	const char *at = text;

	*num = 0;
	for (;;) {
		char *end;
		long v = strtol(at, &end, 10);

		if (end == at || v < lo || v > hi || (*end && *end != ',') || *num == most)
			return cairn_error(EINVAL, "--%s: '%.64s' is not a list of up to %d whole numbers "
					   "from %d to %d", option, text, most, lo, hi);
		values[(*num)++] = (int32_t)v;
		if (!*end)
			return 0;
		at = end + 1;
	}
}

int cairn_check_speculative(struct cairn_speculative_options *o)
{
	const char *name = o->num_tokens ? "num-speculative-tokens" : o->lookup_max ? "prompt-lookup-max" :
			   o->lookup_min ? "prompt-lookup-min" : o->branches ? "speculative-branches" :
			   o->tree_rows ? "speculative-tree-rows" : NULL;

	if (o->model && o->method == CAIRN_SPECULATE_OFF)
		o->method = CAIRN_SPECULATE_DRAFT_MODEL;
	if (name && o->method == CAIRN_SPECULATE_OFF)
		return cairn_error(EINVAL, "--%s: needs --speculative", name);
	if (o->tree_rows && o->branches < 2)
		return cairn_error(EINVAL, "--speculative-tree-rows: needs --speculative-branches of "
				   "2 and more");
	if (!o->model != (o->method != CAIRN_SPECULATE_DRAFT_MODEL && o->method != CAIRN_SPECULATE_EAGLE3))
		return cairn_error(EINVAL, "--speculative: %s %s --speculative-model",
				   cairn_speculate_names[o->method], o->model ? "excludes" : "needs");
	return 0;
}

int cairn_name_option(int ret, const char *const (*names)[2])
{
	const char *text = cairn_last_error();
	size_t part = strcspn(text, ": "), n;
	char rest[1024];

	if (ret >= 0)
		return ret;
	for (int again = 0; again < 2; again++) {
		n = strcspn(text, ": ");
		for (int i = 0; names[i][0] && text[n] == ':'; i++) {
			if (strlen(names[i][0]) != n || strncmp(text, names[i][0], n))
				continue;
			snprintf(rest, sizeof(rest), "%s", text + n);
			return cairn_error(-ret, "--%s%s", names[i][1], rest);
		}
		/* "engine: num_pages: ..." */
		text += text[part] == ':' && text[part + 1] == ' ' ? part + 2 : 0;
	}
	return ret;
}

double cairn_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

int cairn_session_start(struct cairn_session *s, const char *name, int device)
{
	int ret;

	memset(s, 0, sizeof(*s));
	if (!name) {
		if (!cairn_impl_open("cuda", &s->impl) && !cairn_impl_start(&s->impl, device)) {
			s->started = 1;
			return 0;
		}
		cairn_clear_error();
		name = "cpu";
		device = 0;
	}
	CAIRN_TRY(cairn_impl_open(name, &s->impl));
	ret = cairn_impl_start(&s->impl, device);
	if (ret)
		return cairn_table_error(&s->impl, ret, "cannot start");
	s->started = 1;
	return 0;
}

#define LINE_S		0.5	/* minimum time before the first progress line and between lines */
#define LINE_PERCENT	10

struct progress {
	double last;
	int percent, lines;
};

/* Updates one line on a terminal. Elsewhere prints a line for each tenth, or nothing if lines is 0. */
static void show_progress(void *ctx, int64_t done, int64_t total)
{
	struct progress *p = ctx;
	int percent = (int)(100 * (double)done / (double)total);
	double now;

	if (percent == p->percent)
		return;
	if (!isatty(STDERR_FILENO)) {
		now = cairn_now();
		if (!p->lines || percent < p->percent + LINE_PERCENT || now < p->last + LINE_S ||
		    done == total)
			return;
		fprintf(stderr, "loading %d%% of %.4g GB\n", percent, (double)total * 1e-9);
		p->last = now;
		p->percent = percent;
		return;
	}
	p->percent = percent;
	fprintf(stderr, "\rloading %3d%% of %.2f GB", percent, (double)total * 1e-9);
	if (done == total)
		fprintf(stderr, "\r\033[K");
	fflush(stderr);
}

static void show_loaded(const struct cairn_session *s, const char *what, double seconds)
{
	const struct cairn_model *m = s->model;
	struct cairn_device_info info = { .size = sizeof(info) };
	char stage[48] = "";

	if (s->impl.device_info(&info))
		info.name[0] = 0;
	if (m->config.stages > 1)
		snprintf(stage, sizeof(stage), "the first of %d stages: ", m->config.stages);
	fprintf(stderr, "%s: %s%d layers, %.4g GB of %s%s%s on %s%s%s%s, loaded in %.2f s\n", what,
		stage, m->config.num_hidden_layers, (double)m->bytes * 1e-9, cairn_dtype_name(m->dtype),
		m->weights == CAIRN_WEIGHTS_W4 ? " and 4-bit matrices" :
		m->keeps_mxfp4 ? " and MXFP4 experts" : "",
		m->kv == CAIRN_KV_PLAIN ? "" : m->kv_scales ? ", KV in 8 bits with the checkpoint's scales" :
		", KV in 8 bits with scale 1", s->impl.name, info.name[0] ? " (" : "", info.name,
		info.name[0] ? ")" : "", seconds);
}

int cairn_session_load(struct cairn_session *s, const char *dir)
{
	double start = cairn_now();
	struct progress p = { .last = start, .percent = -1, .lines = s->progress_lines };

	if (dir && !*dir)
		return cairn_error(EINVAL, "--model: is empty");
	if (dir && strlen(dir) >= sizeof(s->dir))
		return cairn_error(EINVAL, "--model: has over %zu bytes", sizeof(s->dir) - 1);
	if (dir)
		strcpy(s->dir, dir);
	else
		snprintf(s->dir, sizeof(s->dir), "%s/serving/embedded", cairn_data_dir());
	if (!s->without_text)
		CAIRN_TRY(cairn_tokenizer_open(s->dir, &s->tokenizer));
	if (s->ranks > 1)
		CAIRN_TRY(cairn_session_load_rank(s, s->rank ? NULL : show_progress, &p));
	else
		CAIRN_TRY(cairn_model_load_as(&s->model, &s->impl, s->dir, s->weights, s->kv, show_progress,
					      &p));
	s->weights = s->model->weights;		/* w4 for a checkpoint in 4 bits */
	if (s->tokenizer && cairn_tokenizer_size(s->tokenizer) > s->model->config.vocab_size)
		return cairn_error(EINVAL,
				   "%s/tokenizer.json: has %d tokens, vocab_size of config.json is %d",
				   s->dir, cairn_tokenizer_size(s->tokenizer), s->model->config.vocab_size);
	if (!s->rank)
		show_loaded(s, s->dir, cairn_now() - start);
	return 0;
}

int cairn_session_adapters(struct cairn_session *s, const struct cairn_adapter_options *adapters)
{
	struct cairn_adapter list[CAIRN_MAX_LORA];
	char text[1024];
	int ret;

	if (!adapters->num)
		return 0;
	for (int32_t i = 0; i < adapters->num; i++)
		list[i] = (struct cairn_adapter){ adapters->list[i].name, adapters->list[i].dir };
	ret = cairn_model_load_adapters(s->model, list, adapters->num);
	if (ret) {
		snprintf(text, sizeof(text), "%s", cairn_last_error());
		return cairn_error(-ret, "--lora: %s", text);
	}
	if (!s->rank)
		fprintf(stderr, "%d adapter%s of rank %d or less, %.4g GB\n", adapters->num,
			adapters->num > 1 ? "s" : "", s->model->lora->rank,
			(double)s->model->lora->bytes * 1e-9);
	return 0;
}

int cairn_shape_config(const char *shape, struct cairn_model_config *config)
{
	static const char *const names[][2] = { { "shape", "shape" }, { NULL, NULL } };

	return cairn_name_option(cairn_model_shape(shape, config), names);
}

int cairn_config_option(const char *model, const char *shape, struct cairn_model_config *config)
{
	if (!model == !shape)
		return cairn_error(EINVAL, "one of --model and --shape is required");
	return model ? cairn_model_config_load(model, config) : cairn_shape_config(shape, config);
}

int cairn_session_shape(struct cairn_session *s, const char *shape, uint64_t seed)
{
	static const char none[] = "random model/config.json: ";
	struct cairn_model_config config;
	double start = cairn_now();
	char why[1024];
	int ret;

	CAIRN_TRY(cairn_shape_config(shape, &config));
	ret = s->ranks > 1 ? cairn_session_random_rank(s, &config, seed) :
	      cairn_model_random_as(&s->model, &s->impl, &config, s->weights, s->kv, seed);
	if (ret && !strncmp(cairn_last_error(), none, sizeof(none) - 1)) {
		snprintf(why, sizeof(why), "%s", cairn_last_error() + sizeof(none) - 1);
		return cairn_error(-ret, "--shape %s: %s", shape, why);
	}
	CAIRN_TRY(ret);
	if (!s->rank)
		show_loaded(s, shape, cairn_now() - start);
	return 0;
}

/* Returns whether two tokenizers give every id the same spelling. */
static int same_tokens(const struct cairn_tokenizer *a, const struct cairn_tokenizer *b)
{
	size_t n, m;

	if (cairn_tokenizer_size(a) != cairn_tokenizer_size(b))
		return 0;
	for (int32_t id = 0; id < cairn_tokenizer_size(a); id++) {
		const char *x = cairn_tokenizer_token(a, id, &n), *y = cairn_tokenizer_token(b, id, &m);

		if (!x != !y || (x && (n != m || memcmp(x, y, n))))
			return 0;
	}
	return 1;
}

static int load_drafter(struct cairn_session *s, const char *dir)
{
	struct cairn_tokenizer *tokenizer;
	double start = cairn_now();
	int same;

	if (!s->tokenizer)
		return cairn_error(EINVAL, "--speculative-model: a shape has no tokenizer to share with it");
	CAIRN_TRY(cairn_tokenizer_open(dir, &tokenizer));
	same = same_tokens(s->tokenizer, tokenizer);
	cairn_tokenizer_free(tokenizer);
	if (!same)
		return cairn_error(EINVAL, "--speculative-model: %s/tokenizer.json has other tokens than the "
				   "model's", dir);
	CAIRN_TRY(cairn_model_load(&s->drafter, &s->impl, dir, NULL, NULL));
	fprintf(stderr, "%s: drafts, %d layers, %.4g GB, loaded in %.2f s\n", dir,
		s->drafter->config.num_hidden_layers, (double)s->drafter->bytes * 1e-9, cairn_now() - start);
	return 0;
}

static int load_head(struct cairn_session *s, int method, const char *dir)
{
	const int is_mtp = method == CAIRN_SPECULATE_MTP;
	double start = cairn_now();

	if (is_mtp)
		dir = s->dir;
	CAIRN_TRY((is_mtp ? cairn_mtp_head_load : cairn_eagle_head_load)(&s->head, s->model, dir));
	fprintf(stderr, "%s: %s, loaded in %.2f s\n", dir, is_mtp ? "a layer for multi-token prediction" :
		"an EAGLE-3 head", cairn_now() - start);
	return 0;
}

int cairn_session_speculate(struct cairn_session *s, const struct cairn_speculative_options *o,
			    struct cairn_speculation *speculation)
{
	if (o->method == CAIRN_SPECULATE_EAGLE3 || o->method == CAIRN_SPECULATE_MTP)
		CAIRN_TRY(load_head(s, o->method, o->model));
	else if (o->model)
		CAIRN_TRY(load_drafter(s, o->model));
	*speculation = (struct cairn_speculation){
		.method = (enum cairn_speculate)o->method, .num_tokens = (int32_t)o->num_tokens,
		.lookup_max = (int32_t)o->lookup_max, .lookup_min = (int32_t)o->lookup_min,
		.branches = (int32_t)o->branches, .tree_rows = (int32_t)o->tree_rows, .model = s->drafter,
		.head = s->head,
	};
	return 0;
}

void cairn_session_close(struct cairn_session *s)
{
	cairn_lead_destroy(s->lead);
	cairn_plan_engine_close(s->plans);
	cairn_tokenizer_free(s->tokenizer);
	cairn_model_free(s->drafter);
	cairn_draft_head_free(s->head);
	cairn_model_free(s->context);
	cairn_model_free(s->model);
	if (s->started)
		cairn_impl_stop(&s->impl);
	memset(s, 0, sizeof(*s));
}

static double time_reads(const struct cairn_impl *impl, const struct cairn_stream_args *args, void *stream,
			 void *events[2])
{
	double best = 0;
	float ms;

	for (int i = 0; i < 6; i++) {
		if (impl->event_record(events[0], stream) || impl->stream(args, stream) ||
		    impl->event_record(events[1], stream) || impl->stream_sync(stream) ||
		    impl->event_elapsed(&ms, events[0], events[1]))
			return 0;
		if (i && ms > 0)	/* the first run is a warm-up that loads the kernel */
			best = fmax(best, (double)args->bytes / (ms * 1e6));
	}
	return best;
}

double cairn_session_read_gbps(const struct cairn_session *s)
{
	const struct cairn_impl *impl = &s->impl;
	struct cairn_stream_args args = {
		.size = sizeof(args), .op = CAIRN_STREAM_READ,
		.bytes = impl->flags & CAIRN_IMPL_HOST_MEM ? 256 << 20 : (int64_t)4 << 30,
	};
	size_t sums = (size_t)cairn_stream_num_blocks(args.bytes) * sizeof(*args.sum);
	void *src = NULL, *sum = NULL, *stream = NULL, *events[2] = { NULL, NULL };
	double gbps = 0;

	if (!impl->stream)
		return 0;
	/* write to src first, so that the system maps its pages */
	if (impl->stream_create(&stream) || impl->mem_alloc(&src, (size_t)args.bytes) ||
	    impl->mem_alloc(&sum, sums) || impl->mem_set(src, 1, (size_t)args.bytes, stream) ||
	    impl->event_create(&events[0]) || impl->event_create(&events[1]))
		goto out;
	args.src = src;
	args.sum = sum;
	gbps = time_reads(impl, &args, stream, events);
out:
	for (int i = 0; i < 2; i++) {
		if (events[i])
			impl->event_destroy(events[i]);
	}
	if (sum)
		impl->mem_free(sum);
	if (src)
		impl->mem_free(src);
	if (stream)
		impl->stream_destroy(stream);
	return gbps;
}

double cairn_session_peak_gbps(const struct cairn_session *s)
{
	struct cairn_device_info info = { .size = sizeof(info) };

	return s->impl.device_info(&info) ? 0 : cairn_peak_gbps(info.name);
}

void cairn_session_table(const struct cairn_session *s, enum cairn_decode_path path, char *name, size_t len)
{
	const struct cairn_model *by_rows = s->has_context ? s->context : s->is_context ? s->model : NULL;
	int has_ring = by_rows && by_rows->exchange != CAIRN_EXCHANGE_HEADS;
	char ranks[32] = "";

	if (s->ranks > 1)
		snprintf(ranks, sizeof(ranks), ":%s%d%s%s", s->is_pipeline ? "pp" : s->has_context ? "tp+cp" :
			 s->is_context ? "cp" : "tp", s->ranks, has_ring ? "-" : "",
			 has_ring ? cairn_exchange_names[by_rows->exchange] : "");
	snprintf(name, len, "%s%s%s%s%s%s%s%s", s->impl.name, path == CAIRN_DECODE_AUTO ? "" : ":",
		 path == CAIRN_DECODE_AUTO ? "" : cairn_decode_path_names[path],
		 s->weights == CAIRN_WEIGHTS_PLAIN ? "" : ":",
		 s->weights == CAIRN_WEIGHTS_PLAIN ? "" : cairn_weights_names[s->weights],
		 s->kv == CAIRN_KV_PLAIN ? "" : ":kv-",
		 s->kv == CAIRN_KV_PLAIN ? "" : cairn_kv_names[s->kv], ranks);
}

static int check_parts(const struct cairn_session *s, const struct cairn_nano_plans *plans)
{
	for (int32_t i = 0; i < plans->num && !s->impl.stream_create_part; i++)
		for (int32_t l = 0; l < plans->plans[i].num_lanes; l++)
			if (plans->plans[i].lanes[l].sms || plans->plans[i].lanes[l].priority)
				return cairn_error(EOPNOTSUPP, "the table %s has no stream_create_part",
						   s->impl.name);
	return 0;
}

const struct cairn_nano_plans *cairn_session_plans(struct cairn_session *s, const char *path,
						   const char *command)
{
	struct cairn_device_info info = { .size = sizeof(info) };
	char table[128];
	struct cairn_plan_file_for here = { .gpu = info.name, .impl = table,
					    .kernels = cairn_kernel_digest() };

	if (!path)
		return NULL;
	cairn_session_table(s, CAIRN_DECODE_AUTO, table, sizeof(table));
	if (s->impl.device_info(&info))
		info.name[0] = 0;
	if (!cairn_plan_engine_open(&s->plans, path, &s->model->config, &here) &&
	    !check_parts(s, cairn_plan_engine_plans(s->plans)))
		return cairn_plan_engine_plans(s->plans);
	if (!s->rank)
		fprintf(stderr, "cairn %s: --plan: %s; passes run sequentially\n", command,
			cairn_last_error());
	cairn_clear_error();
	cairn_plan_engine_close(s->plans);
	s->plans = NULL;
	return NULL;
}

void cairn_session_record(const struct cairn_session *s, enum cairn_decode_path path, double sm_mhz,
			  char *json, size_t len)
{
	struct cairn_device_info info = { .size = sizeof(info) };
	char table[128];

	if (s->impl.device_info(&info))
		memset(&info, 0, sizeof(info));
	if (sm_mhz > 0)
		info.clock_mhz = (int32_t)(sm_mhz + 0.5);
	cairn_session_table(s, path, table, sizeof(table));
	snprintf(json, len,
		 "\"impl\":\"%s\",\"impl_version\":\"%s\",\"sm_mhz\":%d,\"gpu\":\"%s\","
		 "\"driver\":\"%s\",\"source\":\"%s\"",
		 table, s->impl.version, info.clock_mhz, info.name, info.driver,
		 cairn_source_digest());
}

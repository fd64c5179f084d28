// SPDX-License-Identifier: Apache-2.0
/*
 * serve - `cairn serve`: start, signals, drain, exit
 *
 * The HTTP server starts first, so that /health can report that the model is being loaded. After a SIGTERM or
 * SIGINT new requests get 503 and those in flight continue for at most --drain-timeout; a second signal ends
 * them at once.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/cli/member_rank.h"
#include "serving/serve/front/serve_front.h"

#define LOOK_MS		20	/* polling interval of the main thread */
#define LOG_MS		1000	/* time for the logs of standard output and error to be written */
#define OTHER_FILES	96	/* descriptors for refused connections and for everything but clients */

static int read_file(const char *option, const char *path, char **text, size_t *n)
{
	FILE *f = fopen(path, "rb");
	long size;
	int ret = 0;

	if (!f)
		return cairn_error(EINVAL, "--%s: %s: %s", option, path, strerror(errno));
	if (fseek(f, 0, SEEK_END) || (size = ftell(f)) < 0 || size > 16 << 20 || fseek(f, 0, SEEK_SET)) {
		fclose(f);
		return cairn_error(EINVAL, "--%s: %s: cannot be read, or is over 16 MiB", option, path);
	}
	*text = malloc((size_t)size + 1);
	if (!*text)
		ret = cairn_error(ENOMEM, "--%s: %s: no memory", option, path);
	else if (fread(*text, 1, (size_t)size, f) != (size_t)size)
		ret = cairn_error(EINVAL, "--%s: %s: cannot be read", option, path);
	fclose(f);
	if (ret) {
		free(*text);
		return ret;
	}
	(*text)[size] = 0;
	*n = (size_t)size;
	return 0;
}

/* Reads the key from a file or the environment, never from the arguments, which `ps` would show. */
static int read_key(struct serve *s)
{
	const char *env = getenv("CAIRN_API_KEY");
	char *text = NULL;
	size_t n, size = 0;
	int ret = 0;

	if (s->opt.key_file)
		CAIRN_TRY(read_file("key-file", s->opt.key_file, &text, &size));
	n = text || env ? strcspn(text ? text : env, "\r\n") : 0;
	if (n < size && !text[n])
		ret = cairn_error(EINVAL, "--key-file: %s: its first line has a NUL byte", s->opt.key_file);
	else if (s->opt.key_file && !n)
		ret = cairn_error(EINVAL, "--key-file: %s: its first line is empty", s->opt.key_file);
	else if (n >= sizeof(s->key))
		ret = cairn_error(EINVAL, "the API key is longer than %zu bytes", sizeof(s->key) - 1);
	else if (n)
		memcpy(s->key, text ? text : env, n);
	free(text);
	unsetenv("CAIRN_API_KEY");	/* the worker must not inherit it */
	return ret;
}

static int load_template(struct serve *s, const char *dir)
{
	json_t *tokens;
	char *text;
	size_t n;
	int ret;

	if (s->opt.template_file) {
		CAIRN_TRY(read_file("chat-template", s->opt.template_file, &text, &n));
		/* the template's special tokens, if the checkpoint defines them */
		ret = cairn_chat_template_config(dir, &tokens);
		if (!ret) {
			ret = cairn_chat_template_open(text, n, tokens, s->opt.template_file, &s->template);
			json_decref(tokens);
		}
		free(text);
		return ret;
	}
	ret = cairn_chat_template_load(dir, NULL, &s->template);
	return ret == -ENOENT ? 0 : ret;
}

/* Finds the formats of tool calls and reasoning, by their names or from the template. */
static int find_formats(struct serve *s)
{
	const char *source = s->template ? cairn_chat_template_source(s->template) : NULL;

	if (cairn_tool_format_find(s->opt.tool_parser, source, &s->tool_format) ||
	    cairn_reasoning_format_find(s->opt.reasoning_parser, source, &s->reasoning))
		return -EINVAL;
	if (s->tool_format && s->reasoning && s->tool_format->harmony != s->reasoning->harmony)
		return cairn_error(EINVAL, "--tool-call-parser: %s does not go with the reasoning parser %s",
				   s->tool_format->name, s->reasoning->name);
	if (s->tool_format || s->reasoning)
		serve_log_print(s->log, "cairn serve: tool calls: %s, reasoning: %s",
				s->tool_format ? s->tool_format->name : "none",
				s->reasoning ? s->reasoning->name : "none");
	return 0;
}

static int name_model(struct serve *s, const char *dir)
{
	const char *end = dir + strlen(dir), *begin;

	while (end > dir && end[-1] == '/')
		end--;
	for (begin = end; begin > dir && begin[-1] != '/';)
		begin--;
	if (s->opt.name || s->opt.shape)
		snprintf(s->name, sizeof(s->name), "%s", s->opt.name ? s->opt.name : s->opt.shape);
	else
		snprintf(s->name, sizeof(s->name), "%.*s", (int)(end - begin), begin);
	s->names[0] = s->name;
	for (int32_t i = 0; i < s->opt.lora.num; i++) {
		s->names[1 + i] = s->opt.lora.list[i].name;
		if (!strcmp(s->names[1 + i], s->name))
			return cairn_error(EINVAL, "--lora: '%s' is the name of the model", s->name);
	}
	return s->name[0] ? 0 : cairn_error(EINVAL, "--name: is empty");
}

/* A shape's random weights use the embedded tokenizer, but not the embedded model's sampling defaults. */
static int load_defaults(struct serve *s, const char *dir)
{
	s->defaults = (struct cairn_generation){ .temperature = 1, .top_p = 1, .repetition_penalty = 1 };
	if (s->opt.no_defaults || s->opt.shape)
		return 0;
	CAIRN_TRY(cairn_generation_load(dir, &s->defaults));
	if (s->defaults.set[0])
		serve_log_print(s->log, "cairn serve: %s/generation_config.json: defaults of requests: %s",
				dir, s->defaults.set);
	return 0;
}

static int load(struct serve *s)
{
	char dir[4096];
	int32_t max_context, *ids;
	size_t num_ids;

	cairn_serve_dir(&s->opt, dir, sizeof(dir));
	CAIRN_TRY(cairn_serve_config(&s->opt, &s->config, &max_context));
	CAIRN_TRY(cairn_tokenizer_open(dir, &s->tokenizer));
	if (cairn_tokenizer_size(s->tokenizer) > s->config.vocab_size)
		return cairn_error(EINVAL, "%s/tokenizer.json: has %d tokens, the model's vocab_size is %d",
				   dir, cairn_tokenizer_size(s->tokenizer), s->config.vocab_size);
	CAIRN_TRY(load_template(s, dir));
	CAIRN_TRY(find_formats(s));
	CAIRN_TRY(load_defaults(s, dir));
	CAIRN_TRY(name_model(s, dir));
	CAIRN_TRY(read_key(s));
	CAIRN_TRY(cairn_tokenizer_encode(s->tokenizer, "", 0, CAIRN_ENCODE_ADD_SPECIAL, &ids, &num_ids));
	free(ids);
	s->limits = (struct cairn_api_limits){
		.max_body = (size_t)s->opt.max_body, .vocab_size = s->config.vocab_size,
		.max_context = max_context, .models = s->names,
		.num_models = 1 + s->opt.lora.num,
		.adds_bos = num_ids > 0, .has_template = s->template != NULL,
		.has_tools = s->tool_format != NULL, .has_grammar = !cairn_grammar_library(),
		.takes_effort = s->template && strstr(cairn_chat_template_source(s->template),
						      "reasoning_effort"),
		.defaults = &s->defaults,
	};
	atomic_init(&s->max_context, max_context);
	return cairn_metrics_new(s->name, "0", max_context, &s->metrics);
}

/* Raises RLIMIT_NOFILE for --max-connections, or lowers --max-connections to what the hard limit allows. */
static int fit_descriptors(struct serve *s)
{
	rlim_t need = (rlim_t)s->opt.max_connections + OTHER_FILES;
	struct rlimit l;

	if (getrlimit(RLIMIT_NOFILE, &l))
		return cairn_error(EIO, "serve: getrlimit: %s", strerror(errno));
	if (l.rlim_cur < need) {
		l.rlim_cur = l.rlim_max < need ? l.rlim_max : need;
		if (setrlimit(RLIMIT_NOFILE, &l))
			return cairn_error(EIO, "serve: setrlimit: %s", strerror(errno));
	}
	if (l.rlim_cur >= need)
		return 0;
	if (l.rlim_cur <= OTHER_FILES)
		return cairn_error(EINVAL, "serve: a limit of %llu open files is too low, %d is the least",
				   (unsigned long long)l.rlim_cur, OTHER_FILES + 1);
	s->opt.max_connections = (int64_t)l.rlim_cur - OTHER_FILES;
	serve_log_print(s->log, "cairn serve: limit of %llu open files: at most %lld connections",
			(unsigned long long)l.rlim_cur, (long long)s->opt.max_connections);
	return 0;
}

/* Prints the server's address to standard output, through a log: it may be a pipe that nobody reads. */
static int say_address(const struct serve *s)
{
	bool is_v6 = strchr(s->opt.host, ':');
	struct cairn_api_out name = { 0 };
	struct serve_log *out;

	CAIRN_TRY(serve_log_open(STDOUT_FILENO, &out));
	cairn_api_put_string(&name, s->name, strlen(s->name));
	if (s->opt.uds)
		serve_log_print(out, "cairn serve: %s on unix:%s", name.failed ? "" : name.s, s->opt.uds);
	else
		serve_log_print(out, "cairn serve: %s on http://%s%s%s:%d", name.failed ? "" : name.s,
				is_v6 ? "[" : "", s->opt.host, is_v6 ? "]" : "", cairn_http_port(s->http));
	cairn_api_out_free(&name);
	serve_log_close(out, LOG_MS);
	return 0;
}

static int start(struct serve *s)
{
	CAIRN_TRY(fit_descriptors(s));
	CAIRN_TRY(serve_start_preparing(s));
	CAIRN_TRY(serve_create_link(s));
	/* listen before starting a worker: if the address is taken, no model is loaded */
	CAIRN_TRY(cairn_serve_name_option(serve_open_http(s)));
	CAIRN_TRY(serve_start_link(s));
	return say_address(s);
}

/* Waits for a signal. Returns -EINVAL if the first worker cannot load the model. */
static int wait_for_signal(struct serve *s, const sigset_t *signals)
{
	struct timespec look = { 0, LOOK_MS * 1000000 };

	while (sigtimedwait(signals, NULL, &look) < 0) {
		if (atomic_load(&s->cannot_load))
			return cairn_error(EINVAL, "the model cannot be loaded: %s", s->why);
	}
	return 0;
}

/* Lets requests in flight continue until they end, --drain-timeout has passed, or another signal arrives. */
static void drain(struct serve *s, const sigset_t *signals)
{
	struct timespec look = { 0, LOOK_MS * 1000000 };
	int64_t end = serve_now_ns() + s->opt.drain_s * 1000000000;

	atomic_store(&s->draining, true);
	serve_log_print(s->log, "cairn serve: shutting down; %d requests continue for at most %lld s",
			atomic_load(&s->num_jobs), (long long)s->opt.drain_s);
	while (atomic_load(&s->num_jobs) && serve_now_ns() < end) {
		if (sigtimedwait(signals, NULL, &look) > 0)
			break;
	}
}

static void stop(struct serve *s)
{
	/* clients that still read get an error before their connections are cut */
	serve_give_up(s);
	if (s->http) {
		cairn_http_drain(s->http, 200);
		cairn_http_wait(s->http, -1);
	}
	serve_stop_preparing(s);
	serve_stop_link(s);
	cairn_http_destroy(s->http);
}

static void free_all(struct serve *s)
{
	serve_log_close(s->log, LOG_MS);
	cairn_metrics_free(s->metrics);
	cairn_chat_template_free(s->template);
	cairn_tokenizer_free(s->tokenizer);
	pthread_cond_destroy(&s->more);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

/* Becomes the first worker process of a node that has no front. */
static int be_node(int argc, char **argv)
{
	char **args = calloc((size_t)argc + 2, sizeof(*args));
	sigset_t none;

	sigemptyset(&none);
	pthread_sigmask(SIG_SETMASK, &none, NULL);
	if (args) {
		args[0] = argv[0];
		args[1] = "serve-worker";
		for (int i = 1; i < argc; i++)
			args[i + 1] = argv[i];
		execv("/proc/self/exe", args);
	}
	fprintf(stderr, "cairn serve: %s\n", strerror(errno));
	free(args);
	return CAIRN_EXIT_FAILED;
}

int cairn_cmd_serve(int argc, char **argv)
{
	struct serve *s = calloc(1, sizeof(*s));
	sigset_t signals;
	int ret, status = CAIRN_EXIT_USAGE;
	char why[1024] = "";

	if (!s)
		return CAIRN_EXIT_FAILED;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->more, NULL);
	for (int i = 0; i < 2; i++)
		s->unprepared[i].tail = &s->unprepared[i].first;
	s->unwritten.tail = &s->unwritten.first;
	s->prepared_tail = &s->prepared;
	s->argc = argc;
	s->argv = argv;
	s->created = (int64_t)time(NULL);
	s->wake_fd = -1;
	/* block the signals before the first thread is created, so that all threads inherit the mask */
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_CHILD_SUBREAPER, 1);	/* ranks of a dead worker: serve_supervise.c */
	cairn_clear_error();
	if (serve_log_open(STDERR_FILENO, &s->log))
		fprintf(stderr, "cairn serve: %s\n", cairn_last_error());
	ret = s->log ? cairn_serve_parse(argc, argv, &s->opt) : -ENOMEM;
	if (ret > 0) {
		free_all(s);
		return CAIRN_EXIT_OK;
	}
	if (!ret)
		ret = cairn_exec_member(&s->opt.attention, &s->opt.prefill, &s->opt.common, s->opt.shape,
					s->opt.seed);
	if (!ret && s->opt.common.node > 0) {
		free_all(s);
		return be_node(argc, argv);
	}
	if (!ret)
		ret = load(s);
	if (!ret) {
		ret = start(s);
		status = ret == -EINVAL ? CAIRN_EXIT_USAGE : CAIRN_EXIT_FAILED;
		if (!ret)
			ret = wait_for_signal(s, &signals);
		if (!ret)
			drain(s, &signals);
		if (!ret)
			status = CAIRN_EXIT_OK;
		else if (atomic_load(&s->cannot_load))
			status = CAIRN_EXIT_USAGE;
		if (ret)
			snprintf(why, sizeof(why), "%s", cairn_last_error());
		stop(s);
	} else {
		snprintf(why, sizeof(why), "%s", cairn_last_error());
	}
	if (why[0])	/* this must be the last line, after everything the worker has printed */
		serve_log_print(s->log, "cairn serve: %s", why);
	free_all(s);
	return status;
}

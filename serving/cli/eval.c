// SPDX-License-Identifier: Apache-2.0
/*
 * eval - `cairn eval`: scores a model on questions with one right answer each
 *
 * A line of the file is {"task": "arith", "prompt": "What is 55 - 8?\n", "answer": "47"}. Each prompt is
 * continued greedily until the model ends its answer. The text must equal the right answer, ignoring white
 * space at both ends. Prompts run in batches, as ragged passes.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/cli/command.h"
#include "serving/cli/commands.h"
#include "serving/cli/session_ranks.h"
#include "serving/engine/engine.h"
#include "serving/base/json.h"

#define MAX_TASKS	64
#define MAX_LINE	(1 << 20)
#define MAX_ANSWER	64	/* tokens generated per question; more if the right answer is longer */

static const char usage[] =
	"usage: cairn eval [OPTION]...\n"
	"\n"
	"Scores a model on questions with one right answer each.\n"
	"\n"
	"  --impl NAME|PATH    cuda, cpu, ref, or a plug-in (cuda if there is a device, else cpu)\n"
	"  --device N          CUDA device (0)\n"
	"  --tp N              tensor parallelism over N processes: see generate (1)\n"
	"  --cp N, --cp-exchange WHAT, --cp-rows N, --cp-keys N, --cp-stripes\n"
	"                        context parallelism: see generate\n"
	"  --pp N              pipeline parallelism over N processes: see generate (1)\n"
	"  --pp-chunk N        tokens of the first chunk of a prompt: see generate (1024, on the host 64)\n"
	"  --collective-timeout S, --rendezvous HOST:PORT, --rendezvous-key-file FILE,\n"
	"  --rendezvous-timeout S, --nodes N, --node-rank K    see generate\n"
	"  --model DIR         Hugging Face checkpoint (the embedded model)\n"
	"  --file FILE         the questions (eval.jsonl of the model)\n"
	"  --limit N           only the first N questions\n"
	"  --batch N           questions at once (64, on the host 8)\n"
	"  --decode PATH       auto, graph, persistent or unfused: see generate (auto)\n"
	"  --weights FORM      plain, fp8, fp8-blocks, w8a8, w8a8-blocks or w4: see generate (plain)\n"
	"  --kv FORM           plain or fp8: see generate (plain)\n"
	"  --min-accuracy X    exit status 1 below this percentage (0)\n"
	"  --verbose           print wrong answers\n"
	"  --json FILE         append a record for each task and one for all to FILE\n"
	"\n"
	"Exit status: 0 success, 1 too few right, the engine failed or the logits were NaN, 2 bad usage or\n"
	"input.\n";

struct options {
	struct cairn_common_options common;
	const char *file;
	int64_t limit;
	float min_accuracy;
	int verbose;
};

struct task {
	char name[32];
	int asked, right;
};

struct question {
	struct eval *eval;
	int task;
	char *prompt_text, *answer;
	int32_t *ids, *out;	/* ids of the prompt; of the model's answer */
	size_t num_ids;
	int32_t num_out, room;
};

struct eval {
	struct options opt;
	struct cairn_session s;
	struct question *questions;
	size_t num_questions, room;
	struct task tasks[MAX_TASKS];
	int num_tasks;
	int failed;		/* -errno of the first answer that could not be scored */
};

static int parse(int argc, char **argv, struct options *o)
{
	const struct cairn_option options[] = {
		{ "file", CAIRN_OPT_TEXT, &o->file, 0, 0, NULL },
		{ "limit", CAIRN_OPT_INT, &o->limit, 1, INT32_MAX, NULL },
		{ "min-accuracy", CAIRN_OPT_FLOAT, &o->min_accuracy, 0, 100, NULL },
		{ "verbose", CAIRN_OPT_FLAG, &o->verbose, 0, 0, NULL },
	};

	int ret = cairn_parse_options(argc, argv, &o->common, options, sizeof(options) / sizeof(options[0]),
				      usage);

	return ret ? ret : cairn_check_ranks(&o->common, NULL, NULL);
}

/* ---- questions ---- */

static int find_task(struct eval *ev, const char *name, const char *file)
{
	for (int i = 0; i < ev->num_tasks; i++) {
		if (!strcmp(ev->tasks[i].name, name))
			return i;
	}
	if (ev->num_tasks == MAX_TASKS || strlen(name) >= sizeof(ev->tasks->name) || !*name ||
	    strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != strlen(name))
		return cairn_error(EINVAL, "%s: task: must be a name in lower case of at most %zu letters, "
				   "one of at most %d", file, sizeof(ev->tasks->name) - 1, MAX_TASKS);
	strcpy(ev->tasks[ev->num_tasks].name, name);
	return ev->num_tasks++;
}

static int add_question(struct eval *ev, const char *line, size_t len, const char *file)
{
	const struct cairn_json_at at = { file, "" };
	const char *task, *prompt, *answer;
	struct question *q, *grown;
	size_t prompt_len;
	json_t *root;
	int ret;

	if (ev->num_questions == ev->room) {
		ev->room = ev->room ? 2 * ev->room : 256;
		grown = realloc(ev->questions, ev->room * sizeof(*grown));
		if (!grown)
			return cairn_error(ENOMEM, "%s: no memory", file);
		ev->questions = grown;
	}
	CAIRN_TRY(cairn_json_parse(line, len, file, false, &root));
	q = &ev->questions[ev->num_questions];
	memset(q, 0, sizeof(*q));
	ret = cairn_json_string(root, at, "task", true, &task, NULL);
	if (!ret)
		ret = cairn_json_string(root, at, "prompt", true, &prompt, &prompt_len);
	if (!ret)
		ret = cairn_json_string(root, at, "answer", true, &answer, NULL);
	if (!ret)
		ret = q->task = find_task(ev, task, file);
	if (ret >= 0)
		ret = cairn_tokenizer_encode(ev->s.tokenizer, prompt, prompt_len, CAIRN_ENCODE_ADD_SPECIAL,
					     &q->ids, &q->num_ids);
	if (!ret) {
		q->prompt_text = strdup(prompt);
		q->answer = strdup(answer);
		q->room = (int32_t)strlen(answer) + 8 > MAX_ANSWER ? (int32_t)strlen(answer) + 8 : MAX_ANSWER;
		q->out = malloc((size_t)q->room * sizeof(*q->out));
		ev->num_questions++;
		if (!q->prompt_text || !q->answer || !q->out)
			ret = cairn_error(ENOMEM, "%s: no memory", file);
	}
	json_decref(root);
	return ret;
}

static int read_questions(struct eval *ev)
{
	char path[4200], at[4300];
	size_t room = 0;
	char *line = NULL;
	ssize_t len;
	FILE *f;
	int ret = 0;

	snprintf(path, sizeof(path), "%s", ev->opt.file ? ev->opt.file : "");
	if (!ev->opt.file)
		snprintf(path, sizeof(path), "%s/eval.jsonl", ev->s.dir);
	f = fopen(path, "r");
	if (!f)
		return cairn_error(EINVAL, "%s: %s", path, strerror(errno));
	for (int i = 1; !ret && (len = getline(&line, &room, f)) > 0; i++) {
		snprintf(at, sizeof(at), "%s:%d", path, i);
		if (len > MAX_LINE)
			ret = cairn_error(EINVAL, "%s: is over %d bytes", at, MAX_LINE);
		else
			ret = add_question(ev, line, (size_t)len, at);
	}
	if (!ret && ferror(f))
		ret = cairn_error(EIO, "%s: %s", path, strerror(errno));
	if (!ret && !ev->num_questions)
		ret = cairn_error(EINVAL, "%s: has no question", path);
	free(line);
	fclose(f);
	return ret;
}

/* ---- answers ---- */

static int take_token(void *ctx, int32_t index, const struct cairn_token *token)
{
	struct question *q = ctx;

	(void)index;
	q->out[q->num_out++] = token->id;
	return 0;
}

static int equal_but_for_space(const char *a, const char *b)
{
	size_t la, lb;

	while (isspace((unsigned char)*a))
		a++;
	while (isspace((unsigned char)*b))
		b++;
	for (la = strlen(a); la && isspace((unsigned char)a[la - 1]);)
		la--;
	for (lb = strlen(b); lb && isspace((unsigned char)b[lb - 1]);)
		lb--;
	return la == lb && !memcmp(a, b, la);
}

static void score(void *ctx, int32_t index, enum cairn_finish why, int32_t token)
{
	struct question *q = ctx;
	struct eval *ev = q->eval;
	struct task *task = &ev->tasks[q->task];
	char *text = NULL;
	size_t len;
	int right;

	(void)index;
	(void)token;
	if (ev->failed)
		return;
	if (why == CAIRN_FINISH_FAILED)
		ev->failed = cairn_error(EIO, CAIRN_NAN_TEXT " of the answer to %s", q->num_out + 1,
					 CAIRN_QUOTED(q->prompt_text));
	else
		ev->failed = cairn_tokenizer_decode(ev->s.tokenizer, q->out, (size_t)q->num_out, true, &text,
						    &len);
	if (ev->failed)
		return;
	right = why == CAIRN_FINISH_STOP && equal_but_for_space(text, q->answer);
	task->asked++;
	task->right += right;
	if (!right && ev->opt.verbose)
		printf("wrong: %s: '%s' answered '%s', right is '%s'\n", task->name, q->prompt_text, text,
		       q->answer);
	free(text);
}

/*
 * Returns whether --limit includes question i. The file interleaves its tasks, so any limit samples them all.
 */
static int chosen(const struct eval *ev, size_t i)
{
	return !ev->opt.limit || i < (size_t)ev->opt.limit;
}

static int ask_all(struct eval *ev, struct cairn_tp *tp)
{
	int host = !!(ev->s.impl.flags & CAIRN_IMPL_HOST_MEM);
	struct cairn_engine_options eo = {
		.max_batch = (int32_t)(ev->opt.common.batch ? ev->opt.common.batch : host ? 8 : 64),
		.max_queued = INT32_MAX,
		.decode = (enum cairn_decode_path)ev->opt.common.decode,
	};
	struct cairn_engine *e;
	int ret = 0;

	cairn_set_rows(&eo, &ev->opt.common, 0, host);
	for (size_t i = 0; i < ev->num_questions; i++) {
		const struct question *q = &ev->questions[i];

		if (chosen(ev, i) && (int64_t)q->num_ids + q->room > eo.max_context)
			eo.max_context = (int32_t)((int64_t)q->num_ids + q->room);
	}
	if (eo.max_rows < eo.max_batch)
		eo.max_rows = eo.max_batch;
	cairn_session_lead_ranks(&ev->s, &ev->opt.common, tp, &eo);
	CAIRN_TRY(cairn_engine_create(&e, ev->s.model, &eo));
	for (size_t i = 0; i < ev->num_questions && !ret; i++) {
		struct question *q = &ev->questions[i];
		struct cairn_request req = {
			.id = i, .prompt = q->ids, .num_prompt = (int32_t)q->num_ids,
			.max_new_tokens = q->room,
			.on_token = take_token, .on_finish = score, .ctx = q,
		};

		q->eval = ev;
		if (chosen(ev, i))
			ret = cairn_engine_submit(e, &req);
	}
	if (!ret)
		ret = cairn_engine_run(e);
	if (!ret)
		ret = ev->failed;
	cairn_engine_destroy(e);
	return ret;
}

static int report(const struct eval *ev, double seconds, double *accuracy)
{
	struct task all = { "all", 0, 0 };
	char device[320];
	FILE *json = ev->opt.common.json ? fopen(ev->opt.common.json, "a") : NULL;

	if (ev->opt.common.json && !json)
		return cairn_error(EINVAL, "--json: %s: %s", ev->opt.common.json, strerror(errno));
	cairn_session_record(&ev->s, (enum cairn_decode_path)ev->opt.common.decode, 0, device,
			     sizeof(device));
	for (int i = 0; i <= ev->num_tasks; i++) {
		const struct task *t = i < ev->num_tasks ? &ev->tasks[i] : &all;
		double percent = t->asked ? 100.0 * t->right / t->asked : 0;

		if (i < ev->num_tasks) {
			all.asked += t->asked;
			all.right += t->right;
		}
		printf("%-12s %5d of %5d right %7.2f%%\n", t->name, t->right, t->asked, percent);
		if (json)
			fprintf(json,
				"{\"v\":1,\"op\":\"eval\",\"case\":\"%s\",\"ok\":true,\"n\":%d,\"right\":%d,"
				"\"accuracy_pct\":%.2f,%s}\n",
				t->name, t->asked, t->right, percent, device);
	}
	*accuracy = 100.0 * all.right / all.asked;
	printf("%d questions in %.1f s on %s\n", all.asked, seconds, ev->s.impl.name);
	if (json && fclose(json))
		return cairn_error(EIO, "--json: %s: %s", ev->opt.common.json, strerror(errno));
	return 0;
}

static void free_questions(struct eval *ev)
{
	for (size_t i = 0; i < ev->num_questions; i++) {
		free(ev->questions[i].prompt_text);
		free(ev->questions[i].answer);
		free(ev->questions[i].ids);
		free(ev->questions[i].out);
	}
	free(ev->questions);
}

int cairn_cmd_eval(int argc, char **argv)
{
	struct eval ev = { 0 };
	struct cairn_tp *tp = NULL;
	int ret, status = CAIRN_EXIT_USAGE;
	double start, accuracy = 0;

	cairn_clear_error();
	ret = parse(argc, argv, &ev.opt);
	if (ret > 0)
		return CAIRN_EXIT_OK;
	if (!ret)
		ret = cairn_ranks_fork(&tp, &ev.opt.common);
	if (tp && cairn_tp_rank(tp))
		return cairn_session_follow(&ev.opt.common, tp, NULL, 0, NULL, "eval");
	if (!ret)
		ret = cairn_session_start_rank(&ev.s, &ev.opt.common, tp, NULL, 0);
	if (!ret)
		ret = cairn_session_load(&ev.s, ev.opt.common.model);
	if (!ret)
		ret = read_questions(&ev);
	if (!ret) {
		start = cairn_now();
		ret = ask_all(&ev, tp);
		status = ret == -EINVAL ? CAIRN_EXIT_USAGE : CAIRN_EXIT_FAILED;
		if (!ret)
			ret = report(&ev, cairn_now() - start, &accuracy);
	}
	if (!ret && accuracy >= (double)ev.opt.min_accuracy)
		status = CAIRN_EXIT_OK;
	else if (!ret)
		fprintf(stderr, "cairn eval: %.2f%% right, --min-accuracy is %g\n", accuracy,
			(double)ev.opt.min_accuracy);
	if (ret && *cairn_last_error())
		fprintf(stderr, "cairn eval: %s\n", cairn_last_error());
	free_questions(&ev);
	cairn_tp_close(tp);
	cairn_session_close(&ev.s);
	return status;
}

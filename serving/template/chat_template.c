// SPDX-License-Identifier: Apache-2.0
/* chat_template - finds a template in a checkpoint, opens it, and renders it */
#include "serving/template/chat_template.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "primitives/base/error.h"
#include "serving/template/chat_template_impl.h"
#include "serving/base/json.h"

#define TREE_BYTES (128u << 20)
#define MAX_CONFIG (64u << 20) /* tokenizer_config.json lists added tokens and may take megabytes */

#define STEPS 4000000
#define OUTPUT_BYTES (16u << 20)
#define MEMORY_BYTES (256u << 20)

static const char *const token_names[] = { "bos_token", "eos_token", "unk_token", "sep_token",
					   "pad_token", "cls_token", "mask_token" };

void cairn_chat_template_free(struct cairn_chat_template *t)
{
	if (!t)
		return;
	cairn_tpl_arena_free(&t->arena);
	free(t->name);
	free(t->source);
	free(t);
}

const char *cairn_chat_template_source(const struct cairn_chat_template *t)
{
	return t->source;
}

/* Names the type of a member of tokenizer_config.json, in which integers have been read as reals. */
static const char *type_name(const json_t *v)
{
	return json_is_real(v) ? "a number" : cairn_json_type_name(v);
}

/* Stores the special token `name` in t->tokens. It is a string, or an object with the string as "content". */
static int take_token(struct cairn_chat_template *t, const json_t *tokens, const char *name)
{
	const json_t *v = json_object_get(tokens, name);
	struct dict *d = &t->tokens;
	char *copy;

	if (json_is_object(v))
		v = json_object_get(v, "content");
	if (!v || json_is_null(v))
		return 0;
	if (!json_is_string(v))
		return cairn_error(EINVAL, "%s: %s: must be a string, is %s", t->name, name, type_name(v));
	copy = cairn_tpl_alloc(&t->arena, json_string_length(v) + 1);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, json_string_value(v), json_string_length(v));
	d->keys[d->num] = cairn_tpl_str(name);
	d->vals[d->num++] = (struct val) { .kind = V_STR, .str = { copy, NULL, json_string_length(v) } };
	return 0;
}

static int open_into(struct cairn_chat_template *t, const char *source, size_t num_bytes,
		     const json_t *tokens)
{
	const size_t num = sizeof(token_names) / sizeof(*token_names);

	t->arena.limit = TREE_BYTES;
	t->tokens.keys = cairn_tpl_alloc(&t->arena, 2 * num * sizeof(struct val));
	if (!t->tokens.keys)
		return -ENOMEM;
	t->tokens.vals = t->tokens.keys + num;
	for (size_t i = 0; tokens && i < num; i++)
		CAIRN_TRY(take_token(t, tokens, token_names[i]));
	return cairn_tpl_parse(t, source, num_bytes);
}

int cairn_chat_template_open(const char *source, size_t num_bytes, const json_t *tokens, const char *name,
			     struct cairn_chat_template **out)
{
	struct cairn_chat_template *t;
	int ret;

	if (!source || !name || !out)
		return cairn_error(EINVAL, "chat_template: null argument");
	t = calloc(1, sizeof(*t));
	if (t) {
		t->name = strdup(name);
		t->source = strndup(source, num_bytes);
	}
	ret = t && t->name && t->source ? open_into(t, source, num_bytes, tokens)
			   : cairn_error(ENOMEM, "%s: no memory", name);
	if (ret) {
		cairn_chat_template_free(t);
		return ret;
	}
	*out = t;
	return 0;
}

/* Finds chat_template of tokenizer_config.json: a string, or the list element with this name. */
static int pick(const json_t *config, const char *path, const char *name, const json_t **out)
{
	const json_t *v = json_object_get(config, "chat_template"), *one;
	size_t i;

	if (!v || json_is_null(v))
		return cairn_error(ENOENT, "%s: chat_template: is missing", path);
	*out = v;
	if (json_is_string(v))
		return 0;
	if (!json_is_array(v))
		return cairn_error(EINVAL, "%s: chat_template: must be a string or a list, is %s", path,
				   type_name(v));
	json_array_foreach(v, i, one)
	{
		const char *called = json_string_value(json_object_get(one, "name"));

		*out = json_object_get(one, "template");
		if (!called || !json_is_string(*out))
			return cairn_error(EINVAL,
					   "%s: chat_template[%zu]: needs the strings name and template",
					   path, i);
		if (!strcmp(called, name))
			return 0;
	}
	return cairn_error(ENOENT, "%s: chat_template: has no template named %s", path, CAIRN_QUOTED(name));
}

static int config_path(const char *dir, char path[4096])
{
	if (snprintf(path, 4096, "%s/tokenizer_config.json", dir) >= 4096)
		return cairn_error(EINVAL, "%.100s...: the path is too long", dir);
	return 0;
}

int cairn_chat_template_config(const char *dir, json_t **out)
{
	char path[4096];

	CAIRN_TRY(config_path(dir, path));
	if (access(path, F_OK) && errno == ENOENT) {
		*out = NULL;
		return 0;
	}
	/* transformers writes 10^30 as the model_max_length of a tokenizer without a limit */
	return cairn_json_read_reals(path, MAX_CONFIG, out);
}

int cairn_chat_template_load(const char *dir, const char *name, struct cairn_chat_template **out)
{
	char path[4096], from[4096], *source = NULL;
	const json_t *chosen = NULL;
	json_t *config = NULL;
	size_t num_bytes = 0;
	int ret;

	if (!dir || !out)
		return cairn_error(EINVAL, "chat_template: null argument");
	CAIRN_TRY(config_path(dir, from)); /* the longer of the two names */
	snprintf(path, sizeof(path), "%s/chat_template.jinja", dir);
	CAIRN_TRY(cairn_chat_template_config(dir, &config));
	if (!access(path, F_OK)) {
		ret = cairn_read_file(path, TPL_MAX_SOURCE, &source, &num_bytes);
		if (!ret)
			ret = cairn_chat_template_open(source, num_bytes, config, path, out);
	} else if (!config) {
		ret = cairn_error(ENOENT, "%s: has no chat_template.jinja and no tokenizer_config.json", dir);
	} else {
		ret = pick(config, from, name ? name : "default", &chosen);
		snprintf(path, sizeof(path), "%.4000s: chat_template", from);
		if (!ret)
			ret = cairn_chat_template_open(json_string_value(chosen), json_string_length(chosen),
						       config, path, out);
	}
	free(source);
	json_decref(config);
	return ret;
}

/* Defines a variable of the render. Does nothing if the template does not use its name. */
static int define(struct render *r, const char *name, const struct val *v)
{
	struct var *var;

	CAIRN_TRY(cairn_tpl_charge(r, 0, r->tpl->num_names));
	for (size_t i = 0; i < r->tpl->num_names; i++) {
		if (strcmp(r->tpl->names[i], name))
			continue;
		for (var = r->globals.vars; var; var = var->next)
			if (var->name == r->tpl->names[i])
				break;
		if (!var) {
			var = cairn_tpl_alloc(&r->arena, sizeof(*var));
			if (!var)
				return -EINVAL;
			var->name = r->tpl->names[i];
			var->next = r->globals.vars;
			r->globals.vars = var;
		}
		var->value = *v;
		return 0;
	}
	return 0;
}

static int define_all(struct render *r, const struct cairn_chat_input *in)
{
	const struct dict *tokens = &r->tpl->tokens;
	struct val v = { .kind = V_BOOL, .i = in->add_generation_prompt };
	const char *name;
	json_t *json;

	CAIRN_TRY(define(r, "add_generation_prompt", &v));
	CAIRN_TRY(cairn_tpl_from_json(r, in->messages, &v));
	CAIRN_TRY(define(r, "messages", &v));
	/* variables that transformers always defines */
	v = (struct val) { .kind = V_NONE };
	CAIRN_TRY(define(r, "documents", &v));
	if (in->tools)
		CAIRN_TRY(cairn_tpl_from_json(r, in->tools, &v));
	CAIRN_TRY(define(r, "tools", &v));
	for (size_t i = 0; i < tokens->num; i++)
		CAIRN_TRY(define(r, tokens->keys[i].str.s, &tokens->vals[i]));
	json_object_foreach((json_t *)in->extra, name, json)
	{
		CAIRN_TRY(cairn_tpl_from_json(r, json, &v));
		CAIRN_TRY(define(r, name, &v));
	}
	return 0;
}

/* Fills *out with a copy of the text and the list of its parts that come from the conversation. */
static int hand_over(const struct out *o, struct cairn_chat_text *out)
{
	struct cairn_chat_text t = { .num_bytes = o->len };
	size_t num = 0;

	for (size_t i = 0; o->user && i < o->len; i++)
		num += o->user[i] && (i == 0 || !o->user[i - 1]);
	t.text = malloc(o->len + 1);
	t.user = malloc((num + 1) * sizeof(*t.user));
	if (!t.text || !t.user) {
		cairn_chat_text_free(&t);
		return cairn_error(ENOMEM, "chat_template: no memory for %zu bytes", o->len);
	}
	if (o->len)
		memcpy(t.text, o->s, o->len);
	t.text[o->len] = 0;
	for (size_t i = 0; o->user && i < o->len; i++) {
		if (!o->user[i])
			continue;
		if (i == 0 || !o->user[i - 1])
			t.user[t.num_user++].begin = i;
		t.user[t.num_user - 1].end = i + 1;
	}
	*out = t;
	return 0;
}

int cairn_chat_template_render(const struct cairn_chat_template *t, const struct cairn_chat_input *in,
			       struct cairn_chat_text *out)
{
	struct render r = { .tpl = t };
	struct out text = { 0 };
	int ret;

	if (!t || !in || !out || !json_is_array(in->messages) || (in->extra && !json_is_object(in->extra)))
		return cairn_error(EINVAL, "chat_template: null argument, or messages is not an array");
	r.arena.limit = in->budget.max_memory ? in->budget.max_memory : MEMORY_BYTES;
	r.max_steps = in->budget.max_steps ? in->budget.max_steps : STEPS;
	r.max_output = in->budget.max_output ? in->budget.max_output : OUTPUT_BYTES;
	r.now = in->now;
	r.scope = &r.globals;
	ret = define_all(&r, in);
	if (!ret)
		ret = cairn_tpl_run(&r, &text);
	if (!ret)
		ret = hand_over(&text, out);
	cairn_tpl_arena_free(&r.arena);
	return ret;
}

void cairn_chat_text_free(struct cairn_chat_text *text)
{
	free(text->text);
	free(text->user);
	*text = (struct cairn_chat_text) { 0 };
}

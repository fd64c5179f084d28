// SPDX-License-Identifier: Apache-2.0
/* generate_constraint - `cairn generate --json-schema` and `--regex`: answers held to a constraint */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/base/clock.h"
#include "serving/base/json.h"
#include "serving/cli/generate.h"
#include "serving/cli/session_ranks.h"

#define WAIT_NS	120000000000ll		/* to start the process and to compile */

int generate_constraint_check(const struct generate_options *o)
{
	const char *name = o->json_schema ? "--json-schema" : "--regex";

	if (!o->json_schema && !o->regex)
		return 0;
	if (o->json_schema && o->regex)
		return cairn_error(EINVAL, "--json-schema, --regex: give only one");
	if (o->shape || o->ignore_eos || cairn_num_ranks(&o->common) > 1 || o->attention.workers)
		return cairn_error(EINVAL, "%s: excludes --shape, --ignore-eos, --tp, --cp and "
				   "--attention-workers",
				   name);
	return 0;
}

int generate_constraint_create(struct generate_constraint *c, const struct generate_options *o,
			       const struct cairn_session *s, struct cairn_engine_options *eo, int32_t drafts)
{
	const struct cairn_model_config *config = &s->model->config;
	struct cairn_grammar_options go = {
		.model_dir = s->dir, .vocab_size = config->vocab_size, .eos = config->eos_token_ids,
		.num_eos = config->num_eos, .max_masks = eo->max_batch + drafts,
	};
	size_t n;

	if (!o->json_schema && !o->regex)
		return 0;
	c->constraint.kind = o->json_schema ? CAIRN_CONSTRAINT_JSON : CAIRN_CONSTRAINT_REGEX;
	c->constraint.text = o->regex;
	c->constraint.num_bytes = o->regex ? strlen(o->regex) : 0;
	if (o->json_schema) {
		int ret = cairn_read_file(o->json_schema, CAIRN_GRAMMAR_MAX_TEXT, &c->text, &n);

		if (ret)
			return cairn_error_prefix(ret, "--json-schema");
		c->constraint.text = c->text;
		c->constraint.num_bytes = n;
	}
	CAIRN_TRY(cairn_grammar_create(&c->grammar, &go));
	eo->masks = cairn_grammar_masks(c->grammar);
	return 0;
}

int generate_constraint_open(struct generate_constraint *c, uint64_t *id)
{
	int64_t end = cairn_clock_ns() + WAIT_NS;

	if (!c->grammar)
		return 0;
	cairn_grammar_close(c->grammar, *id);
	CAIRN_TRY(cairn_grammar_open(c->grammar, &c->constraint, 1, id));
	for (;;) {
		struct pollfd p = { cairn_grammar_fd(c->grammar), POLLIN, 0 };

		cairn_grammar_poll(c->grammar);
		switch (cairn_grammar_state(c->grammar, *id)) {
		case CAIRN_GRAMMAR_OPEN:
			return 0;
		case CAIRN_GRAMMAR_REFUSED:
			return -EINVAL;
		case CAIRN_GRAMMAR_LOST:
			return -EIO;
		case CAIRN_GRAMMAR_OPENING:
			break;
		}
		if (cairn_clock_ns() > end)
			return cairn_error(ETIMEDOUT, "the grammar process does not answer");
		poll(&p, 1, 100);
	}
}

void generate_constraint_destroy(struct generate_constraint *c)
{
	cairn_grammar_destroy(c->grammar);
	free(c->text);
}

// SPDX-License-Identifier: Apache-2.0
/* api_detach - frees the body of a request whose prompt has been made */
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/api/api_request.h"

static const char *copy(char **to, const char *text, size_t n)
{
	const char *begin = *to;

	memcpy(*to, text, n);
	*to += n;
	return begin;
}

static void drop(json_t **value)
{
	json_decref(*value);
	*value = NULL;
}

int cairn_api_request_detach(struct cairn_api_request *r)
{
	size_t bytes = r->constraint.num_bytes;
	char *texts, *to;

	for (int32_t i = 0; i < r->num_stop; i++)
		bytes += r->stop[i].num_bytes;
	to = texts = malloc(bytes + 1);
	if (!texts)
		return -ENOMEM;
	if (r->constraint.kind)
		r->constraint.text = copy(&to, r->constraint.text, r->constraint.num_bytes);
	for (int32_t i = 0; i < r->num_stop; i++)
		r->stop[i].bytes = copy(&to, r->stop[i].bytes, r->stop[i].num_bytes);
	free(r->constraint_text);
	r->constraint_text = texts;
	drop(&r->messages);
	drop(&r->tools);
	drop(&r->template_args);
	drop(&r->root);
	drop(&r->given);
	free(r->prompts);
	free(r->ids);
	r->prompts = NULL;
	r->ids = NULL;
	r->num_prompts = 0;
	r->num_ids = 0;
	r->model = r->tool_name = r->user = r->cache_salt = NULL;
	return 0;
}

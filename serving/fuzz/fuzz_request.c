// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_request - parses arbitrary bytes as a request's body; the result must be a complete error or a request
 * within its bounds
 */
#include <stdlib.h>
#include <string.h>

#include "serving/api/api_response.h"
#include "serving/fuzz/fuzz.h"

static void check_refused(const struct cairn_api_error *e)
{
	struct cairn_api_out out = { 0 };
	json_t *root;

	FUZZ_HOLDS(e->status >= 400 && e->status < 500 && e->type && e->message[0]);
	cairn_api_error_body(&out, e);
	root = json_loadb(out.s, out.len, JSON_REJECT_DUPLICATES, NULL);
	FUZZ_HOLDS(root && json_is_string(json_object_get(json_object_get(root, "error"), "message")));
	json_decref(root);
	cairn_api_out_free(&out);
}

static void check_accepted(const struct cairn_api_request *r, const struct cairn_api_limits *limits)
{
	struct cairn_api_error e;
	int32_t max_tokens = 0;
	size_t i;
	json_t *m;

	FUZZ_HOLDS(r->n >= 1 && r->n <= CAIRN_API_MAX_N && r->max_tokens >= 0 && r->min_tokens >= 0);
	FUZZ_HOLDS(r->temperature >= 0 && r->temperature <= 2 && r->top_p > 0 && r->top_p <= 1 &&
		   r->top_k >= 0);
	FUZZ_HOLDS(r->min_p >= 0 && r->min_p <= 1 && r->repetition_penalty > 0 &&
		   r->num_stop <= CAIRN_MAX_STOPS);
	FUZZ_HOLDS(r->kind == CAIRN_API_DETOKENIZE || (r->num_prompts > 0) != (r->messages != NULL));
	for (i = 0; i < r->num_ids; i++)
		FUZZ_HOLDS(r->ids[i] >= 0 && r->ids[i] < limits->vocab_size);
	json_array_foreach(r->messages, i, m) FUZZ_HOLDS(json_is_string(json_object_get(m, "content")));
	if (!cairn_api_fit(r, limits, 5, &max_tokens, &e))
		FUZZ_HOLDS(max_tokens >= 1 && max_tokens <= limits->max_context - 5);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const models[] = { "m" };
	const struct cairn_api_limits limits = {
		.vocab_size = 1000,
		.max_context = 100,
		.models = models,
		.num_models = 1,
		.has_template = true,
	};
	struct cairn_api_request r;
	struct cairn_api_error e;

	if (!size)
		return 0;
	if (cairn_api_request_parse(data[0] % 4, (const char *)data + 1, size - 1, &limits, &r, &e)) {
		check_refused(&e);
		return 0;
	}
	check_accepted(&r, &limits);
	cairn_api_request_free(&r);
	return 0;
}

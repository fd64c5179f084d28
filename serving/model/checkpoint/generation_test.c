// SPDX-License-Identifier: Apache-2.0
/* generation_test - sampling defaults of generation_config.json; the JSON here has ' for " */
#include <limits.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/base/json_test.h"
#include "serving/model/checkpoint/generation.h"

/* Loads a directory whose generation_config.json is text; NULL: it has none. */
static int load(struct cairn_test *t, const char *text, struct cairn_generation *g)
{
	char path[PATH_MAX], *json = text ? cairn_json_text(text, NULL, text) : NULL;

	*g = (struct cairn_generation){ .temperature = 1, .top_p = 1, .repetition_penalty = 1, .top_k = 7 };
	if (json)
		cairn_tmpfile(t, path, sizeof(path), "generation_config.json", json, strlen(json));
	free(json);
	return cairn_generation_load(cairn_tmpdir(t), g);
}

static void values(struct cairn_test *t)
{
	struct cairn_generation g;

	EXPECT(t, !load(t, NULL, &g) && g.temperature == 1 && g.top_k == 7 && !g.set[0]);
	/* the embedded model's file: do_sample alone changes nothing */
	EXPECT(t, !load(t, "{'do_sample':false,'eos_token_id':511,'max_new_tokens':32}", &g) &&
			  g.temperature == 1 && g.top_p == 1 && g.top_k == 7 && !g.set[0]);
	EXPECT(t, !load(t, "{'do_sample':false,'temperature':0.6,'top_k':20,'top_p':0.95,'min_p':0.05,"
			   "'repetition_penalty':1.05,'transformers_version':'4.51.0'}", &g));
	EXPECT(t, g.temperature == 0.6 && g.top_k == 20 && g.top_p == 0.95 && g.min_p == 0.05 &&
			  g.repetition_penalty == 1.05);
	EXPECT(t, !strcmp(g.set, "temperature 0.6, top_k 20, top_p 0.95, min_p 0.05, "
				 "repetition_penalty 1.05"));
	EXPECT(t, !load(t, "{'temperature':0,'top_k':-1,'top_p':null}", &g) && g.temperature == 0 &&
			  g.top_k == 0 && g.top_p == 1);
	EXPECT(t, !load(t, "{'top_k':50.0}", &g) && g.top_k == 50 && !strcmp(g.set, "top_k 50"));
}

static void refused(struct cairn_test *t)
{
	static const struct {
		const char *text, *key;
	} rows[] = {
		{ "{'temperature':-0.1}", "temperature" }, { "{'temperature':2.1}", "temperature" },
		{ "{'temperature':'1'}", "temperature" },  { "{'top_k':1.5}", "top_k" },
		{ "{'top_k':-2}", "top_k" },		   { "{'top_k':1e300}", "top_k" },
		{ "{'top_p':0}", "top_p" },		   { "{'top_p':1.1}", "top_p" },
		{ "{'top_p':true}", "top_p" },		   { "{'min_p':2}", "min_p" },
		{ "{'repetition_penalty':0}", "repetition_penalty" },
		{ "{'temperature':0.5,'repetition_penalty':11}", "repetition_penalty" },
		{ "{'temperature':", "line 1" },	   { "[]", "an object" },
	};
	struct cairn_generation g;

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (!EXPECT(t, load(t, rows[i].text, &g) == -EINVAL))
			cairn_note(t, "%s", rows[i].text);
		EXPECT_CONTAINS(t, cairn_last_error(), "/generation_config.json: ");
		EXPECT_CONTAINS(t, cairn_last_error(), rows[i].key);
		EXPECT(t, g.temperature == 1 && !g.set[0]);
	}
}

static const struct cairn_unit units[] = { { "values", values }, { "refused", refused } };

const struct cairn_family cairn_generation_family = {
	.stage = "serving", .name = "generation", .units = units, .num_units = ARRAY_SIZE(units),
};

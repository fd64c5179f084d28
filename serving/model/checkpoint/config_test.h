/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_test - helpers for tests of config.json as text
 *
 * Include conformance/harness.h first.
 */
#ifndef CAIRN_CONFIG_TEST_H
#define CAIRN_CONFIG_TEST_H

#include <stdlib.h>
#include <string.h>

#include "serving/model/checkpoint/config.h"
#include "serving/base/json_test.h"

/* Parses the two files, given as C strings with ' for ". */
static inline int parse(const char *json, const char *generation, struct cairn_model_config *c)
{
	char *more = generation ? cairn_json_text("", NULL, generation) : NULL;
	char *text = cairn_json_text("", NULL, json);
	int ret = cairn_model_config_parse(text, strlen(text), more, more ? strlen(more) : 0, "dir",
					   c);

	free(text);
	free(more);
	return ret;
}

struct change {
	const char *from, *to;
	int err;
	const char *says;	/* expected error text after "dir/config.json: " */
};

/* Checks that each change of `whole` is refused with its error and leaves the config untouched. */
static inline void refused_of(struct cairn_test *t, const char *whole, const struct change *list, size_t num)
{
	for (size_t i = 0; i < num; i++) {
		char *text = cairn_json_text(whole, list[i].from, list[i].to);
		struct cairn_model_config c = { .hidden_size = -7 };

		if (!EXPECT(t, text != NULL))
			continue;
		if (!EXPECT(t, parse(text, NULL, &c) == -list[i].err) ||
		    !EXPECT_CONTAINS(t, cairn_last_error(), list[i].says))
			cairn_note(t, "\"%s\" for \"%s\": %s", list[i].to, list[i].from,
				   cairn_last_error());
		EXPECT(t, !strncmp(cairn_last_error(), "dir/config.json: ", 17));
		EXPECT(t, c.hidden_size == -7);
		free(text);
	}
}

#endif

// SPDX-License-Identifier: Apache-2.0
/* lists - reads and matches mustpass.txt, waivers.txt and catchers.txt */
#include "conformance/suite/lists.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"

int cairn_list_load(const char *path, int want_reason, struct cairn_list *out)
{
	struct cairn_list list = { 0, NULL };
	FILE *f = fopen(path, "r");
	char line[1024];
	int number = 0;

	if (!f)
		return cairn_error(EINVAL, "%s: %s", path, strerror(errno));
	while (fgets(line, sizeof(line), f)) {
		char *glob, *reason;
		void *rows;

		number++;
		line[strcspn(line, "#\n")] = 0;
		glob = strtok(line, " \t");
		if (!glob)
			continue;
		reason = strtok(NULL, "");
		if (!reason != !want_reason) {
			fclose(f);
			cairn_list_free(&list);
			return cairn_error(EINVAL, "%s:%d: %s", path, number,
					   want_reason ? "the reason, or the case, is missing" :
					   "more than one glob on a line");
		}
		rows = realloc(list.rows, (size_t)(list.num + 1) * sizeof(*list.rows));
		if (!rows)
			abort();
		list.rows = rows;
		list.rows[list.num].glob = strdup(glob);
		list.rows[list.num++].reason = strdup(reason ? reason : "");
	}
	if (ferror(f)) {
		int err = errno;

		fclose(f);
		cairn_list_free(&list);
		return cairn_error(EINVAL, "%s: %s", path, strerror(err));
	}
	fclose(f);
	*out = list;
	return 0;
}

const char *cairn_list_match(const struct cairn_list *list, const char *name)
{
	for (int i = 0; i < list->num; i++)
		if (!fnmatch(list->rows[i].glob, name, 0))
			return list->rows[i].reason;
	return NULL;
}

void cairn_list_free(struct cairn_list *list)
{
	for (int i = 0; i < list->num; i++) {
		free(list->rows[i].glob);
		free(list->rows[i].reason);
	}
	free(list->rows);
	memset(list, 0, sizeof(*list));
}

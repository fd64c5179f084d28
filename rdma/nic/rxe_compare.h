/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rxe_compare - compares two outputs of nic_semantics.c line by line; allows only differences that are listed
 * with a reason
 */
#ifndef CAIRN_RXE_COMPARE_H
#define CAIRN_RXE_COMPARE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LINES	128

struct lines {
	char *text, *at[MAX_LINES];
	int num;
};

static inline void split(struct lines *l, const char *text)
{
	char *save;

	l->num = 0;
	l->text = strdup(text);
	for (char *s = strtok_r(l->text, "\n", &save); s; s = strtok_r(NULL, "\n", &save))
		if (l->num < MAX_LINES)
			l->at[l->num++] = s;
}

/*
 * Returns 0 if the guest's table is the model's with exactly the listed lines replaced, and each listed
 * line has a reason; otherwise 1, with the first violation in `why`.
 */
static inline int compare(const char *model, const char *guest, const char *listed, char *why, size_t len)
{
	struct lines m, g, d;
	int used[MAX_LINES] = { 0 }, bad = 0, has_reason = 0;

	split(&m, model);
	split(&g, guest);
	split(&d, listed);
	for (int i = 0; i < d.num && !bad; i++) {
		if (d.at[i][0] == '#') {
			has_reason = 1;
			continue;
		}
		if (d.at[i][0] != '-' || i + 1 == d.num || d.at[i + 1][0] != '+') {
			snprintf(why, len, "list: not a '-' and a '+' line: %s", d.at[i]);
			bad = 1;
		} else if (!has_reason) {
			snprintf(why, len, "list: no reason for %s", d.at[i]);
			bad = 1;
		}
		has_reason = 0;
		i++;
	}
	for (int k = 0; k < m.num && !bad; k++) {
		const char *want = m.at[k], *got = k < g.num ? g.at[k] : "nothing";
		int is_listed = 0;

		for (int i = 0; i + 1 < d.num; i++)
			if (d.at[i][0] == '-' && !strcmp(d.at[i] + 1, m.at[k])) {
				want = d.at[i + 1] + 1;
				used[i] = is_listed = 1;
			}
		if (!strcmp(want, got))
			continue;
		snprintf(why, len, "%s\n  model %s\n  guest %s",
			 !is_listed ? "a difference that is not listed" :
			 strcmp(m.at[k], got) ? "another difference than the listed one" :
			 "a listed difference is not there any more", m.at[k], got);
		bad = 1;
	}
	if (!bad && g.num > m.num) {
		snprintf(why, len, "the guest prints more: %s", g.at[m.num]);
		bad = 1;
	}
	for (int i = 0; i < d.num && !bad; i++)
		if (d.at[i][0] == '-' && !used[i]) {
			snprintf(why, len, "list: the model has no such line: %s", d.at[i] + 1);
			bad = 1;
		}
	free(m.text);
	free(g.text);
	free(d.text);
	return bad;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lists - reads mustpass.txt, waivers.txt and catchers.txt: one glob per line, # starts a comment
 *
 * mustpass: a case that matches may not be skipped.
 * waivers:  a case that matches may fail; the rest of the line is the reason, which is printed.
 * catchers: a mutant that matches is first judged by the case that the rest of the line names.
 */
#ifndef CAIRN_LISTS_H
#define CAIRN_LISTS_H

struct cairn_list {
	int num;
	struct { char *glob, *reason; } *rows;
};

/*
 * Fills *out, which the caller frees. With want_reason, every line must have a reason; otherwise none may
 * have one.
 */
int cairn_list_load(const char *path, int want_reason, struct cairn_list *out);
/* The reason of the first row that matches name ("" if the list has no reasons), or NULL if none matches. */
const char *cairn_list_match(const struct cairn_list *list, const char *name);
void cairn_list_free(struct cairn_list *list);

#endif

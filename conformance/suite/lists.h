/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lists - mustpass.txt and waivers.txt: one glob of case names a line, # starts a comment
 *
 * mustpass: a case that matches may not be skipped on a device.
 * waivers:  a case that matches may fail; the rest of the line is the reason, printed with it.
 */
#ifndef CAIRN_LISTS_H
#define CAIRN_LISTS_H

struct cairn_list {
	int num;
	struct { char *glob, *reason; } *rows;
};

int cairn_list_load(const char *path, int want_reason, struct cairn_list *out);
/* The reason ("" if the list has none) if name matches, else NULL. */
const char *cairn_list_match(const struct cairn_list *list, const char *name);
void cairn_list_free(struct cairn_list *list);

#endif

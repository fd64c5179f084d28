/* SPDX-License-Identifier: Apache-2.0 */
/* attn_restore - sends the rows of a journal to the workers of a new epoch; private to attn_remote */
#ifndef CAIRN_REMOTE_ATTN_RESTORE_H
#define CAIRN_REMOTE_ATTN_RESTORE_H

#include "serving/remote/attention/attn_remote.h"
#include "serving/remote/attention/journal.h"

/* The journal must be drained, and no pass may be under way. *bytes: keys and values sent */
int attn_restore(struct cairn_attn_remote *r, const struct cairn_journal *j, const struct cairn_model *m,
		 const struct cairn_remote_limits *limits, int64_t *bytes);

#endif

// SPDX-License-Identifier: Apache-2.0
/* attention - options of commands whose attention runs in other processes (command.h) */
#include <stdio.h>

#include "primitives/base/error.h"
#include "serving/cli/command.h"
#include "serving/remote/attention/share.h"

const char *const cairn_attention_keys[] = { "previous", "all", NULL };

int cairn_check_attention(const struct cairn_attention_options *o)
{
	const char *needs = o->listen ? "workers-listen" : o->secret_file ? "secret-file" :
			    o->keys ? "attention-keys" : NULL;

	if (needs && !o->workers)
		return cairn_error(EINVAL, "--%s: needs --attention-workers", needs);
	return o->secret_file && !o->listen ? cairn_error(EINVAL, "--secret-file: needs --workers-listen; "
							  "workers of this machine inherit a secret") : 0;
}

int cairn_session_lead(struct cairn_session *s, const struct cairn_attention_options *o, const char *impl)
{
	static const char *const names[][2] = {
		{ "attention_workers", "attention-workers" }, { "workers_listen", "workers-listen" },
		{ "secret_file", "secret-file" }, { NULL, NULL },
	};
	const struct cairn_lead_options lo = {
		.attention = (int32_t)o->workers, .table = s->impl.name, .impl = impl, .listen = o->listen,
		.secret_file = o->secret_file,
	};

	return o->workers ? cairn_name_option(cairn_lead_create(&s->lead, &lo), names) : 0;
}

void cairn_session_say_attention(const struct cairn_session *s, const char *command, int64_t *lost)
{
	const int32_t heads = s->model->config.num_key_value_heads;
	struct cairn_lead_stats stats;
	int32_t workers;

	if (!s->lead)
		return;
	cairn_lead_stats(s->lead, &stats);
	workers = cairn_lead_attention(s->lead);
	if (stats.lost > *lost)
		fprintf(stderr, "cairn %s: %s; running answers are computed again\n", command,
			*stats.last_loss ? stats.last_loss : "a spare attention worker is lost");
	*lost = stats.lost;
	fprintf(stderr, "cairn %s: %d KV heads on %d attention workers, processes", command, heads, workers);
	for (int32_t i = 1; i <= workers; i++)
		fprintf(stderr, "%s%d", i > 1 ? ", " : " ", cairn_lead_pid(s->lead, i));
	if (heads % workers)
		fprintf(stderr, "; unequal groups leave %.1f%% of their time idle",
			100 * cairn_heads_waste(heads, workers));
	fputc('\n', stderr);
}

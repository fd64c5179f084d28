// SPDX-License-Identifier: Apache-2.0
/* attention - options of commands whose attention or prompts are computed by other processes (command.h) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "rdma/transport/transport.h"
#include "serving/base/clock.h"
#include "serving/cli/command.h"
#include "serving/remote/attention/share.h"
#include "serving/remote/member/model_digest.h"

const char *const cairn_attention_keys[] = { "previous", "all", NULL };
const char *const cairn_lanes_names[] = { "1", "2", "3", "auto", NULL };

int cairn_check_attention(const struct cairn_attention_options *o, const struct cairn_prefill_options *p)
{
	const char *needs = o->listen ? "workers-listen" : o->secret_file ? "secret-file" : NULL;
	const int64_t prefill = p ? p->workers : 0;

	const char *with = o->journal ? "kv-journal" : !cairn_lanes_names[o->lanes + 1] ? "lanes auto" : NULL;

	if (o->model_workers > 1 && with)
		return cairn_error(EOPNOTSUPP, "--model-workers: more than 1 exclude --%s so far", with);
	if (o->lanes && o->lanes + 1 < o->model_workers)
		return cairn_error(EINVAL, "--lanes: %d are too few for %lld --model-workers", o->lanes + 1,
				   (long long)o->model_workers);
	if (o->model_workers && !o->workers)
		return cairn_error(EINVAL, "--model-workers: needs --attention-workers");
	if (o->keys && !o->workers)
		return cairn_error(EINVAL, "--attention-keys: needs --attention-workers");
	if (o->journal && !o->workers)
		return cairn_error(EINVAL, "--kv-journal: needs --attention-workers");
	if (o->lanes && !o->workers)
		return cairn_error(EINVAL, "--lanes: needs --attention-workers");
	if (p && !prefill && (p->min_tokens || p->pages || p->stages))
		return cairn_error(EINVAL, "--prefill-%s: needs --prefill-workers",
				   p->min_tokens ? "min" : p->pages ? "pages" : "pp");
	if (o->workers && prefill)
		return cairn_error(EINVAL, "--prefill-workers: excludes --attention-workers, which hold the "
				   "cache");
	if (needs && !o->workers && !prefill)
		return cairn_error(EINVAL, "--%s: needs --attention-workers%s", needs,
				   p ? " or --prefill-workers" : "");
	return o->secret_file && !o->listen ? cairn_error(EINVAL, "--secret-file: needs --workers-listen; "
							  "workers of this machine inherit a secret") : 0;
}

void cairn_attention_environment(void)
{
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

/*
 * Chooses nvlink for the table cuda if the lead starts workers of one GPU each and the GPUs can reach each
 * other. Workers of several GPUs have their pages in host memory, and a worker of another host has to name
 * its transport itself.
 */
const char *cairn_prefill_transport(const struct cairn_impl *impl, const struct cairn_attention_options *o,
				    const struct cairn_prefill_options *p, int gpus_meet)
{
	const int on_cuda = !strcmp(impl->name, "cuda") || !strncmp(impl->name, "cuda:", 5);

	return p && p->workers && p->stages <= 1 && !o->listen && on_cuda && gpus_meet ? "nvlink" : NULL;
}

/* Lists the options that give the workers started by the lead its model and, if not NULL, their transport. */
static void list_options(struct cairn_session *s, const struct cairn_common_options *c, const char *shape,
			 int64_t seed, int64_t stages, const char *transport)
{
	const char **at = s->model_options;

	if (transport) {
		*at++ = "--transport";
		*at++ = transport;
	}
	if (stages > 1) {
		snprintf(s->stages, sizeof(s->stages), "%d", (int)stages);
		*at++ = "--pp";
		*at++ = s->stages;
	}

	if (shape) {
		snprintf(s->seed, sizeof(s->seed), "%lld", (long long)seed);
		*at++ = "--shape";
		*at++ = shape;
		*at++ = "--seed";
		*at++ = s->seed;
	} else if (c->model) {
		*at++ = "--model";
		*at++ = c->model;
	}
	*at++ = "--weights";
	*at++ = cairn_weights_names[c->weights];
	*at++ = "--kv";
	*at++ = cairn_kv_names[c->kv];
	*at = NULL;
}

void cairn_set_attention(struct cairn_engine_options *e, const struct cairn_attention_options *o,
			 struct cairn_lead *lead)
{
	e->attention = o->workers ? lead : NULL;
	e->attends_all = o->keys;
	e->kv_journal = o->journal << 30;
	e->lanes = cairn_lanes_names[o->lanes + 1] ? o->lanes + 1 : CAIRN_LANES_AUTO;
	if (!o->lanes && o->model_workers > 1)
		e->lanes = (int32_t)o->model_workers;
}

int cairn_session_lead(struct cairn_session *s, const struct cairn_attention_options *o,
		       const struct cairn_prefill_options *p, const struct cairn_common_options *c,
		       const char *shape, int64_t seed)
{
	static const char *const names[][2] = {
		{ "attention_workers", "attention-workers" }, { "prefill_workers", "prefill-workers" },
		{ "workers_listen", "workers-listen" }, { "secret_file", "secret-file" },
		{ "model_workers", "model-workers" }, { NULL, NULL },
	};
	struct cairn_lead_options lo = {
		.attention = (int32_t)o->workers, .prefill = p ? (int32_t)p->workers : 0,
		.table = s->impl.name, .impl = c->impl, .listen = o->listen, .secret_file = o->secret_file,
		.model = o->model_workers ? (int32_t)o->model_workers - 1 : 0,
		.config = cairn_share_digest(&s->model->config), .model_options = s->model_options,
	};

	if (!lo.attention && !lo.prefill)
		return 0;
	if (!(s->impl.flags & CAIRN_IMPL_HOST_MEM))	/* behind the model's GPU, in turn */
		lo.num_devices = cairn_transport_gpus();
	lo.first_device = (int32_t)c->device + 1;
	lo.prefill_devices = p ? (int32_t)p->stages : 0;
	list_options(s, c, shape, seed, p ? p->stages : 0,
		     cairn_prefill_transport(&s->impl, o, p, cairn_transport_gpus_meet()));
	if (lo.prefill || lo.model)
		CAIRN_TRY(cairn_model_digest(s->model, &lo.weights));
	return cairn_name_option(cairn_lead_create(&s->lead, &lo), names);
}

/* Writes the processes of the prefill workers that have a rank, ", " between two. Returns their number. */
static int list_prefill(const struct cairn_session *s, char *text, size_t len)
{
	const int32_t first = cairn_lead_attention(s->lead) + 1;
	size_t at = 0;
	int num = 0;

	text[0] = 0;
	for (int32_t i = first; i < first + cairn_lead_prefill(s->lead) && at < len; i++) {
		const int pid = cairn_lead_pid(s->lead, i);

		if (pid)
			at += (size_t)snprintf(text + at, len - at, "%s%d", num++ ? ", " : "", pid);
	}
	return num;
}

static double since(int64_t ns)
{
	return (double)(cairn_clock_ns() - ns) * 1e-9;
}

void cairn_session_say_prefill(const struct cairn_session *s, const char *command,
			       struct cairn_prefill_told *told)
{
	struct cairn_lead_stats now;
	char pids[sizeof(told->pids)];
	int num;

	if (!s->lead || !cairn_lead_prefill(s->lead))
		return;
	cairn_lead_stats(s->lead, &now);
	num = list_prefill(s, pids, sizeof(pids));
	if (now.lost > told->lost)
		fprintf(stderr, "cairn %s: %s; its prompts are computed here, for %.3f s so far\n", command,
			*now.last_loss ? now.last_loss : now.last_refused, since(now.noticed_ns));
	if (now.refused > told->refused)
		fprintf(stderr, "cairn %s: prefill workers: %s\n", command, now.last_refused);
	if (strcmp(pids, told->pids))
		fprintf(stderr, "cairn %s: %d prefill workers, processes %s\n", command, num,
			num ? pids : "none");
	told->lost = now.lost;
	told->refused = now.refused;
	memcpy(told->pids, pids, sizeof(pids));
}

void cairn_session_say_recoveries(const struct cairn_session *s, const char *command, int64_t recoveries)
{
	struct cairn_lead_stats stats;

	if (!recoveries)
		return;
	cairn_lead_stats(s->lead, &stats);
	fprintf(stderr, "cairn %s: %lld times, what the answer had was computed again; the last loss: %s\n",
		command, (long long)recoveries, stats.last_loss);
}

void cairn_session_say_attention(const struct cairn_session *s, const char *command, int64_t *lost)
{
	const int32_t heads = cairn_share_heads(&s->model->config);
	struct cairn_lead_stats stats;
	int32_t workers;

	if (!s->lead || !cairn_lead_attention(s->lead))
		return;
	cairn_lead_stats(s->lead, &stats);
	workers = cairn_lead_attention(s->lead);
	if (stats.lost > *lost)
		fprintf(stderr, "cairn %s: %s; %.3f s later, running answers are computed again\n",
			command, *stats.last_loss ? stats.last_loss : "a spare attention worker is lost",
			since(stats.noticed_ns));
	*lost = stats.lost;
	fprintf(stderr, "cairn %s: ", command);
	if (cairn_model_is_latent(s->model))
		fprintf(stderr, "latents");
	else
		fprintf(stderr, "%d KV heads", heads);
	if (workers > heads)
		fprintf(stderr, " in %d stripes", cairn_most_stripes(heads, workers));
	fprintf(stderr, " on %d attention workers, processes", workers);
	for (int32_t i = 1; i <= workers; i++)
		fprintf(stderr, "%s%d", i > 1 ? ", " : " ", cairn_lead_pid(s->lead, i));
	for (int32_t i = 1; i < cairn_lead_models(s->lead); i++)
		fprintf(stderr, "%s%d", i > 1 ? ", " : "; further model workers, processes ",
			cairn_lead_pid(s->lead, cairn_lead_model_rank(s->lead, i)));
	if (cairn_heads_waste(heads, workers) > 0)
		fprintf(stderr, "; unequal parts leave %.1f%% of their time idle",
			100 * cairn_heads_waste(heads, workers));
	fputc('\n', stderr);
}

// SPDX-License-Identifier: Apache-2.0
/* session_ranks - sessions of several ranks */
#include "serving/cli/session_ranks.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conformance/tables/program.h"
#include "primitives/base/error.h"
#include "serving/model/model_graph.h"
#include "serving/pipeline/pipeline.h"

/* Time-out of a wait in a pipeline, where a rank waits while another one computes a chunk. */
#define PIPELINE_MS	30000
#define HOST_CHUNK	64
#define MOST_ROWS	(1 << 20)
/*
 * A step of n stages has rows for CHUNKS * (n - 1) chunks, because filling and draining the pipeline takes
 * the time of n - 1 more.
 */
#define CHUNKS		8

int32_t cairn_num_ranks(const struct cairn_common_options *o)
{
	return (int32_t)(o->tp > 1 ? o->tp : o->cp > 1 ? o->cp : o->pp > 1 ? o->pp : 1);
}

const char *cairn_ranks_option(const struct cairn_common_options *o)
{
	return o->pp > 1 ? "--pp" : o->cp > 1 ? "--cp" : "--tp";
}

int cairn_check_ranks(struct cairn_common_options *o, const char *plan, const char *slices)
{
	const char *excluded = plan && (o->cp > 1 || o->pp > 1) ? "plan" : slices ? "slices" : NULL;
	struct cairn_rendezvous r = { .nodes = (int32_t)o->nodes, .node = (int32_t)o->node };

	if (o->pp > 1 && (o->tp > 1 || o->cp > 1))
		return cairn_error(EINVAL, "--pp: excludes %s", o->tp > 1 ? "--tp" : "--cp");
	if (o->tp > 1 && o->cp > 1 && o->tp != o->cp)
		return cairn_error(EINVAL, "--cp: is %lld, but --tp is %lld", (long long)o->cp,
				   (long long)o->tp);
	if (o->pp_chunk && o->pp < 2)
		return cairn_error(EINVAL, "--pp-chunk: needs --pp");
	if (cairn_num_ranks(o) > 1 && excluded)
		return cairn_error(EINVAL, "%s: excludes --%s", cairn_ranks_option(o), excluded);
	if (o->cp < 2 && (o->exchange || o->context_rows || o->context_keys || o->stripes))
		return cairn_error(EINVAL, "--cp-exchange, --cp-rows, --cp-keys, --cp-stripes: need --cp");
	if (o->stripes && o->context_keys)
		return cairn_error(EINVAL, "--cp-keys: excludes --cp-stripes, with which ranks share the "
				   "pages of all decoding passes");
	if (!o->rendezvous)
		return o->nodes || o->node >= 0 || o->rendezvous_key || o->rendezvous_s ?
		       cairn_error(EINVAL, "--nodes, --node-rank, --rendezvous-key-file and "
				   "--rendezvous-timeout: need --rendezvous") : 0;
	if (cairn_num_ranks(o) < 2)
		return cairn_error(EINVAL, "--rendezvous: needs --tp, --cp or --pp");
	if (!o->nodes != (o->node < 0))
		return cairn_error(EINVAL, "--nodes, --node-rank: give both or neither");
	CAIRN_TRY(cairn_rendezvous_from_env(&r, getenv));
	o->nodes = r.nodes;
	o->node = r.node;
	if (o->node >= o->nodes)
		return cairn_error(EINVAL, "--node-rank: is %lld, must be 0 to %lld", (long long)o->node,
				   (long long)o->nodes - 1);
	return 0;
}

int cairn_check_rank_drafts(const struct cairn_common_options *o, int method)
{
	const int has_head = method == CAIRN_SPECULATE_EAGLE3 || method == CAIRN_SPECULATE_MTP;

	return has_head && (o->tp > 1 || o->cp > 1) ?
	       cairn_error(EINVAL, "--speculative: eagle3 and mtp exclude --tp and --cp") : 0;
}

void cairn_set_rows(struct cairn_engine_options *eo, const struct cairn_common_options *o, int64_t max_rows,
		    int is_host)
{
	const int32_t usual_chunk = is_host ? HOST_CHUNK : CAIRN_PIPELINE_ROWS;
	const int32_t chunk = o->pp_chunk ? (int32_t)o->pp_chunk : usual_chunk;
	const int64_t usual = is_host ? 256 : 2048, rows = CHUNKS * (o->pp - 1) * chunk;

	eo->chunk_rows = o->pp > 1 ? chunk : 0;
	eo->max_rows = (int32_t)(max_rows ? max_rows : o->pp > 1 && rows > usual ? rows : usual);
	if (eo->max_rows > MOST_ROWS)
		eo->max_rows = MOST_ROWS;
}

int cairn_ranks_fork(struct cairn_tp **tp, const struct cairn_common_options *o)
{
	const int64_t usual_ms = o->pp > 1 ? PIPELINE_MS : CAIRN_COMM_TIMEOUT_MS;
	const int64_t collective_ms = o->collective_s ? o->collective_s * 1000 : usual_ms;
	const struct cairn_rendezvous r = {
		.address = o->rendezvous, .key_file = o->rendezvous_key, .nodes = (int32_t)o->nodes,
		.node = (int32_t)o->node,
		.timeout_ms = (int32_t)(o->rendezvous_s ? o->rendezvous_s * 1000 : collective_ms),
	};

	*tp = NULL;
	return cairn_num_ranks(o) > 1 ? cairn_tp_fork(tp, cairn_num_ranks(o), o->rendezvous ? &r : NULL,
						      (int32_t)collective_ms) : 0;
}

/* ---- the model's identity ---- */

static uint64_t hash(uint64_t h, const void *bytes, size_t num)
{
	const unsigned char *b = bytes;

	for (size_t i = 0; i < num; i++)
		h = (h ^ b[i]) * 0x100000001b3u;
	return h;
}

static uint64_t hash_file(uint64_t h, const char *path)
{
	unsigned char buf[4096];
	FILE *f = fopen(path, "rb");
	size_t n;

	while (f && (n = fread(buf, 1, sizeof(buf), f)))
		h = hash(h, buf, n);
	if (f)
		fclose(f);
	return h;
}

/* The sum does not depend on the order of the entries. Weights themselves are too many to be read twice. */
static uint64_t sum_sizes(const char *dir)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	struct stat st;
	uint64_t sum = 0;
	char path[8192];

	while (d && (e = readdir(d))) {
		snprintf(path, sizeof(path), "%.4000s/%.255s", dir, e->d_name);
		if (!strstr(e->d_name, ".safetensors") || stat(path, &st))
			continue;
		sum += hash(hash(0xcbf29ce484222325u, e->d_name, strlen(e->d_name)), &st.st_size,
			    sizeof(st.st_size));
	}
	if (d)
		closedir(d);
	return sum;
}

/* Writes the digest, the forms of weights and cache, and what is shared, for errors of ranks that differ. */
static void write_digest(const struct cairn_common_options *o, uint64_t h, char *to, size_t len)
{
	snprintf(to, len, "%010llx/%s/%s%s%s%s", (unsigned long long)(h & 0xffffffffffu),
		 cairn_weights_names[o->weights], cairn_kv_names[o->kv],
		 o->pp > 1 ? "/pp" : o->tp > 1 ? "/tp" : "", o->cp > 1 ? "/cp/" : "",
		 o->cp > 1 ? cairn_exchange_names[o->exchange] : "");
}

/* Writes a digest of config.json and the names and sizes of the weights' files, or of shape and seed. */
static void model_digest(const struct cairn_common_options *o, const char *shape, uint64_t seed, char *to,
			 size_t len)
{
	uint64_t h = hash(0xcbf29ce484222325u, &seed, sizeof(seed));
	char dir[4096], path[4200];

	if (shape) {
		write_digest(o, hash(h, shape, strlen(shape)), to, len);
		return;
	}
	if (o->model)
		snprintf(dir, sizeof(dir), "%s", o->model);
	else
		snprintf(dir, sizeof(dir), "%s/serving/embedded", cairn_data_dir());
	snprintf(path, sizeof(path), "%s/config.json", dir);
	h = hash_file(0xcbf29ce484222325u, path) + sum_sizes(dir);
	write_digest(o, h, to, len);
}

/* ---- sessions ---- */

int cairn_session_start_rank(struct cairn_session *s, const struct cairn_common_options *o,
			     struct cairn_tp *tp, const char *shape, uint64_t seed)
{
	int ret = cairn_session_start(s, o->impl, (int)o->device + (tp ? cairn_tp_local_rank(tp) : 0));
	char model[64];

	if (ret && (s->impl.flags & CAIRN_IMPL_HOST_MEM))	/* all ranks of a host table have device 0 */
		ret = cairn_session_start(s, o->impl, (int)o->device);
	CAIRN_TRY(ret);
	s->weights = (enum cairn_weights)o->weights;
	s->kv = (enum cairn_kv_form)o->kv;
	if (!tp)
		return 0;
	s->rank = cairn_tp_rank(tp);
	s->ranks = cairn_tp_ranks(tp);
	s->is_context = o->cp > 1 && o->tp < 2;
	s->has_context = o->cp > 1 && o->tp > 1;
	s->is_pipeline = o->pp > 1;
	s->exchange = (enum cairn_exchange)o->exchange;
	model_digest(o, shape, seed, model, sizeof(model));
	return cairn_tp_table(tp, &s->impl, model);
}

/* Sets the exchange that fits the keys of the model, which are those of a rank of tensor parallelism. */
static int choose_exchange(struct cairn_session *s)
{
	const int latent = s->model->config.latent.kv_lora_rank > 0;

	if (s->exchange > CAIRN_EXCHANGE_HEADS && !latent)
		return cairn_error(EINVAL, "--cp-exchange: %s does not go with --tp, whose ranks have some "
				   "KV heads each", cairn_exchange_names[s->exchange]);
	if (s->exchange == CAIRN_EXCHANGE_AUTO)
		s->exchange = latent ? CAIRN_EXCHANGE_RING : CAIRN_EXCHANGE_HEADS;
	return 0;
}

int cairn_session_load_rank(struct cairn_session *s, cairn_progress progress, void *ctx)
{
	if (s->is_pipeline)
		return cairn_model_load_stage(&s->model, &s->impl, s->dir, s->rank, s->ranks, s->weights,
					      s->kv, progress, ctx);
	if (s->is_context)
		return cairn_model_load_context(&s->model, &s->impl, s->dir, s->rank, s->ranks, s->exchange,
						s->weights, s->kv, progress, ctx);
	CAIRN_TRY(cairn_model_load_rank(&s->model, &s->impl, s->dir, s->rank, s->ranks, s->weights, s->kv,
					progress, ctx));
	if (!s->has_context)
		return 0;
	CAIRN_TRY(choose_exchange(s));
	return cairn_model_load_context(&s->context, &s->impl, s->dir, s->rank, s->ranks, s->exchange,
					s->weights, s->kv, NULL, NULL);
}

int cairn_session_random_rank(struct cairn_session *s, const struct cairn_model_config *config, uint64_t seed)
{
	if (s->is_pipeline)
		return cairn_model_random_stage(&s->model, &s->impl, config, s->rank, s->ranks, s->weights,
						s->kv, seed);
	if (s->is_context)
		return cairn_model_random_context(&s->model, &s->impl, config, s->rank, s->ranks, s->exchange,
						  s->weights, s->kv, seed);
	CAIRN_TRY(cairn_model_random_rank(&s->model, &s->impl, config, s->ranks, s->weights, s->kv, seed));
	if (!s->has_context)
		return 0;
	CAIRN_TRY(choose_exchange(s));
	return cairn_model_random_context(&s->context, &s->impl, config, s->rank, s->ranks, s->exchange,
					  s->weights, s->kv, seed);
}

int cairn_share_option(const struct cairn_common_options *o, const char *shape,
		       struct cairn_model_config *config)
{
	int32_t kv_shares;

	return o->tp < 2 ? 0 : cairn_model_share_config(config, o->model ? o->model : shape,
							(int32_t)o->tp, 0, &kv_shares);
}

int cairn_session_end_rank(struct cairn_session *s, struct cairn_tp *tp, int ret)
{
	const int is_other = tp && cairn_tp_rank(tp);
	char why[1024];

	if (tp && (ret || (is_other && cairn_tp_wait(tp))))
		cairn_tp_fail(tp);
	snprintf(why, sizeof(why), "%s", cairn_last_error());
	cairn_tp_close(tp);
	cairn_session_close(s);
	if (is_other)
		_exit(ret ? CAIRN_EXIT_FAILED : CAIRN_EXIT_OK);
	return ret ? cairn_error(-ret, "%s", why) : 0;
}

void cairn_session_lead_ranks(const struct cairn_session *s, const struct cairn_common_options *o,
			      struct cairn_tp *tp, struct cairn_engine_options *eo)
{
	eo->tap = tp ? cairn_tp_tap(tp) : NULL;
	eo->context = s->context;
	eo->context_rows = (int32_t)o->context_rows;
	eo->context_keys = o->context_keys;
	eo->stripes = o->stripes;
}

int cairn_session_follow(const struct cairn_common_options *o, struct cairn_tp *tp, const char *shape,
			 uint64_t seed, const char *plan, const char *command)
{
	struct cairn_session s = { 0 };
	int ret = cairn_session_start_rank(&s, o, tp, shape, seed);

	if (!ret)
		ret = shape ? cairn_session_shape(&s, shape, seed) : cairn_session_load(&s, o->model);
	if (!ret)
		ret = cairn_tp_follow(tp, s.model, s.context, cairn_session_plans(&s, plan, command));
	if (ret && (ret != -ECONNRESET || o->node > 0))		/* else rank 0 tells why it has ended */
		fprintf(stderr, "cairn %s: rank %d: %s\n", command, cairn_tp_rank(tp), cairn_last_error());
	if (ret && ret != -ECONNRESET)
		cairn_tp_fail(tp);
	cairn_tp_close(tp);
	cairn_session_close(&s);
	return ret ? CAIRN_EXIT_FAILED : CAIRN_EXIT_OK;
}

// SPDX-License-Identifier: Apache-2.0
/*
 * worker_context - passes whose rows ranks share out (context parallelism), beside others
 *
 * A pass with many rows is limited by computation, and ranks that share its rows exchange fewer bytes than
 * ranks that share the weights. A decoding pass is limited by reading weights, of which ranks of tensor
 * parallelism read a part each. With options.context a rank has both its share of the weights and the whole
 * model, and takes the one or the other for each pass. Both use the same cache, in which the rank has the
 * keys of its heads, or all latents.
 *
 * All ranks choose in the same way, from what the plan of the pass says.
 */
#include "serving/engine/worker_impl.h"

int worker_context_create(struct cairn_worker *w)
{
	const struct cairn_model *m = w->model, *c = w->opt.context;

	if (!w->opt.context_rows)
		w->opt.context_rows = (w->opt.max_rows + 1) / 2;
	if (!c)
		return 0;
	if (w->by_steps)
		return cairn_error(EOPNOTSUPP, "context: %s has no operation list for this model",
				   w->impl->name);
	if (w->opt.trees || w->opt.nano || w->opt.slices || w->opt.attention || w->opt.taps)
		return cairn_error(EINVAL, "context: not with trees, nano, slices, attention and taps");
	if (c->context_ranks != m->ranks || cairn_model_key_bytes(c) != cairn_model_key_bytes(m))
		return cairn_error(EINVAL, "context: %d ranks would have other keys than those of the model, "
				   "%d ranks", c->context_ranks, m->ranks);
	return cairn_scratch_create(&w->context_scratch, c, w->opt.max_rows, w->opt.max_batch);
}

struct cairn_model *worker_pass_model(const struct cairn_worker *w)
{
	return w->shares ? w->opt.context : w->model;
}

struct cairn_scratch *worker_pass_scratch(const struct cairn_worker *w)
{
	return w->shares ? w->context_scratch : w->scratch;
}

int worker_context_prepare(struct cairn_worker *w)
{
	const struct cairn_model *m = w->opt.context ? w->opt.context : w->model;
	const int rings = m->context_ranks > 1 && m->exchange != CAIRN_EXCHANGE_HEADS;

	/* rows of chained parts see keys that other ranks would compute in the same pass */
	if (w->chained || w->batch.num_rows < w->opt.context_rows || (!rings && !w->opt.context))
		return 0;
	w->shares = w->opt.context != NULL;
	w->stats.context_passes++;
	return rings ? worker_ring_prepare(w) : 0;
}

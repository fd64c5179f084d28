// SPDX-License-Identifier: Apache-2.0
/* nano_ablation - passes over made-up requests, sequential and as nano-batches, in turns (nano_ablation.h) */
#include "serving/profile/nano_ablation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "primitives/base/error.h"
#include "serving/model/forward/forward_impl.h"
#include "serving/nano/nano.h"
#include "serving/profile/lockstep.h"

enum { MOST_TURNS = 15, MOST_PASSES = 4096, PROMPT_ROWS = 128 };

/* A way to run the pass, with index arrays of its own. */
struct way {
	struct cairn_nano *nano;	/* NULL: sequential */
	struct cairn_batch batch;
	struct cairn_nano_pass pass;
	int32_t *dev;
	double ms[MOST_TURNS];
	int passes;			/* of a turn */
};

struct bench {
	const struct cairn_model *m;
	const struct nano_ablation_options *opt;
	const struct cairn_plan_file_entry *e;
	int32_t decode, batch;		/* decoding requests, and all */
	int32_t pages[2], num_pages;	/* of a decoding request, of the prompt; all together */
	struct cairn_kv_store kv;
	struct cairn_scratch *scratch;
	struct way ways[NANO_ABLATION_HOWS];
	struct cairn_nvml *card;
	struct cairn_energy no_card;
	struct lockstep lockstep;
	void *stream, *begin, *end;
};

/* ---- index arrays ---- */

struct arrays {
	int32_t *ids, *positions, *qo_indptr, *kv_indptr, *last_page_len;
	struct cairn_nano_index nano[CAIRN_NANO_BATCHES];
	int32_t *kv_indices;
};

static size_t count_numbers(const struct bench *b)
{
	size_t lists = 3 * (size_t)b->batch + 2;

	return 2 * (size_t)b->e->rows + lists * (CAIRN_NANO_BATCHES + 1) +
	       (size_t)b->num_pages + CAIRN_NANO_BATCHES * (size_t)(b->pages[0] + b->pages[1]);
}

static void lay_out(const struct bench *b, int32_t *at, struct arrays *a)
{
	int32_t n = b->batch;

	a->ids = at;
	a->positions = a->ids + b->e->rows;
	a->qo_indptr = a->positions + b->e->rows;
	a->kv_indptr = a->qo_indptr + n + 1;
	a->last_page_len = a->kv_indptr + n + 1;
	at = a->last_page_len + n;
	for (int i = 0; i < CAIRN_NANO_BATCHES; i++, at += 3 * n + 2)
		a->nano[i] = (struct cairn_nano_index){ at, at + n + 1, at + 2 * n + 2 };
	a->kv_indices = at;
}

static void add_request(const struct bench *b, struct arrays *a, int32_t r, int32_t rows, int32_t keys)
{
	int32_t size = b->kv.page_size, pages = (keys + size - 1) / size, row = a->qo_indptr[r];
	int32_t *list = a->kv_indices + a->kv_indptr[r];

	for (int32_t i = 0; i < rows; i++) {
		a->ids[row + i] = (7 * r + 5 * i + 3) % b->m->config.vocab_size;
		a->positions[row + i] = keys - rows + i;
	}
	/* the pages of decoding requests are scattered */
	for (int32_t k = 0; k < pages; k++)
		list[k] = r < b->decode ? k * b->decode + r : b->pages[0] * b->decode + k;
	a->qo_indptr[r + 1] = row + rows;
	a->kv_indptr[r + 1] = a->kv_indptr[r] + pages;
	a->last_page_len[r] = keys - (pages - 1) * size;
}

static void fill_arrays(const struct bench *b, struct arrays *a)
{
	int32_t prompt = b->e->rows - b->decode;

	a->qo_indptr[0] = a->kv_indptr[0] = 0;
	for (int32_t r = 0; r < b->decode; r++)
		add_request(b, a, r, 1, b->e->context);
	if (prompt)
		add_request(b, a, b->decode, prompt, prompt);
}

static struct cairn_batch whole_batch(const struct bench *b, const struct arrays *dev)
{
	int32_t prompt = b->e->rows - b->decode, longest = b->decode ? b->e->context : 1, bound = 1;
	int expands = prompt >= PROMPT_ROWS;	/* as the engine decides it */

	longest = prompt > longest ? prompt : longest;
	while (bound < longest)
		bound *= 2;
	return (struct cairn_batch){
		.ids = dev->ids, .positions = dev->positions, .qo_indptr = dev->qo_indptr,
		.kv_indptr = dev->kv_indptr, .kv_indices = dev->kv_indices,
		.kv_last_page_len = dev->last_page_len, .num_rows = b->e->rows, .batch = b->batch,
		.max_qo_len = prompt > 1 ? prompt : 1, .max_kv_len = bound, .num_prompts = expands,
		.prompt_rows = expands ? prompt : 0,
	};
}

/* Puts the rows of a pass into the places that the plan's cuts give them. */
static int split(const struct bench *b, struct way *w, struct arrays *host, const struct arrays *dev)
{
	struct cairn_nano_cuts cuts;
	size_t rows = (size_t)b->e->rows, pages = (size_t)b->num_pages;
	int32_t *old = malloc((2 * rows + pages) * sizeof(*old));
	struct cairn_nano_host in = {
		.qo_indptr = host->qo_indptr, .kv_indptr = host->kv_indptr,
		.last_page_len = host->last_page_len, .page_size = b->kv.page_size,
	};
	int ret;

	if (!old)
		return cairn_error(ENOMEM, "nano_ablation: no memory");
	in.kv_indices = old;
	memcpy(old, host->kv_indices, pages * sizeof(*old));
	memcpy(old + pages, host->ids, 2 * rows * sizeof(*old));	/* ids, then positions */
	ret = cairn_nano_cut(&cuts, cairn_nano_plan_of(w->nano), host->qo_indptr, b->batch, b->e->rows,
			     b->decode);
	for (int32_t r = 0; !ret && r < b->e->rows; r++) {
		int32_t to = cairn_nano_row(&cuts, r);

		host->ids[to] = old[pages + (size_t)r];
		host->positions[to] = old[pages + rows + (size_t)r];
	}
	if (!ret)
		ret = cairn_nano_split(&w->pass, host->nano, host->kv_indices, dev->nano, &in, &w->batch,
				       &cuts);
	free(old);
	return ret;
}

static int upload(struct bench *b, struct way *w)
{
	const struct cairn_impl *impl = b->m->impl;
	size_t bytes = count_numbers(b) * sizeof(int32_t);
	int32_t *block = calloc(1, bytes);
	struct arrays host, dev;
	void *p = NULL;
	int ret = block ? CAIRN_TABLE(impl, mem_alloc, &p, bytes) :
		  cairn_error(ENOMEM, "nano_ablation: no memory");

	if (ret) {
		free(block);
		return ret;
	}
	w->dev = p;
	lay_out(b, block, &host);
	lay_out(b, w->dev, &dev);
	fill_arrays(b, &host);
	w->batch = whole_batch(b, &dev);
	if (w->nano)
		ret = split(b, w, &host, &dev);
	if (!ret)
		ret = CAIRN_TABLE(impl, mem_copy, w->dev, block, bytes, CAIRN_COPY_TO_DEVICE, b->stream);
	if (!ret)
		ret = CAIRN_TABLE(impl, stream_sync, b->stream);
	free(block);
	return ret;
}

/* ---- memory ---- */

/* Allocates the cache, of one layer only if all do not fit, and fills it with the model's weights. */
static int create_cache(struct bench *b, int *shared)
{
	const struct cairn_impl *impl = b->m->impl;
	struct cairn_device_info info = { .size = sizeof(info) };
	size_t half = (size_t)b->num_pages * (size_t)b->opt->page_size * cairn_model_key_bytes(b->m);
	size_t layers = (size_t)b->m->config.num_hidden_layers, bytes, n;
	void *p;

	half = (half + 255) / 256 * 256;
	b->kv = (struct cairn_kv_store){ .num_pages = b->num_pages, .page_size = b->opt->page_size };
	b->kv.v_offset = cairn_model_is_latent(b->m) ? 0 : half;
	b->kv.layer_bytes = cairn_model_is_latent(b->m) ? half : 2 * half;
	CAIRN_TRY(CAIRN_TABLE(impl, device_info, &info));
	bytes = b->kv.layer_bytes * layers;
	*shared = info.mem_bytes > 0 && (double)bytes + (double)b->m->bytes > 0.85 * (double)info.mem_bytes;
	if (*shared)
		bytes = b->kv.layer_bytes;
	CAIRN_TRY(CAIRN_TABLE(impl, mem_alloc, &p, bytes));
	b->kv.base = p;
	if (*shared)
		b->kv.layer_bytes = 0;
	for (size_t done = 0; done < bytes; done += n) {
		n = bytes - done < b->m->bytes ? bytes - done : b->m->bytes;
		CAIRN_TRY(CAIRN_TABLE(impl, mem_copy, b->kv.base + done, b->m->base, n, CAIRN_COPY_ON_DEVICE,
				      b->stream));
	}
	return 0;
}

static int add_way(struct bench *b, struct nano_ablation *out, const char *name,
		   const struct cairn_nano_plan *plan)
{
	struct way *w = &b->ways[out->num];

	out->hows[out->num++].name = name;
	return plan ? cairn_nano_create(&w->nano, b->scratch, plan) : 0;
}

static int add_ways(struct bench *b, struct nano_ablation *out, const struct cairn_nano_plan *plan)
{
	struct cairn_nano_plan cut = *plan, streams = *plan;
	int plain = 1;

	cut.num_lanes = 1;
	cut.places = NULL;
	cut.num_places = 0;
	memset(cut.lanes, 0, sizeof(cut.lanes));
	for (int32_t l = 0; l < plan->num_lanes; l++)
		plain &= !plan->lanes[l].sms && !plan->lanes[l].priority;
	memset(streams.lanes, 0, sizeof(streams.lanes));
	CAIRN_TRY(add_way(b, out, "sequential", NULL));
	CAIRN_TRY(add_way(b, out, "split", &cut));
	CAIRN_TRY(add_way(b, out, "streams", &streams));
	return plain ? 0 : add_way(b, out, "plan", plan);
}

static int open_bench(struct bench *b, struct nano_ablation *out, const struct cairn_nano_plan *plan)
{
	const struct cairn_impl *impl = b->m->impl;
	int32_t size = b->opt->page_size, prompt;

	for (int32_t i = 0; i < b->e->nanos; i++)
		b->decode += b->e->decode[i];
	prompt = b->e->rows - b->decode;
	b->batch = b->decode + (prompt > 0);
	b->pages[0] = (b->e->context + size - 1) / size;
	b->pages[1] = (prompt + size - 1) / size;
	b->num_pages = b->pages[0] * b->decode + b->pages[1];
	CAIRN_TRY(CAIRN_TABLE(impl, stream_create, &b->stream));
	CAIRN_TRY(CAIRN_TABLE(impl, event_create, &b->begin));
	CAIRN_TRY(CAIRN_TABLE(impl, event_create, &b->end));
	CAIRN_TRY(lockstep_open(&b->lockstep, impl, b->m->ranks));
	CAIRN_TRY(cairn_scratch_create(&b->scratch, b->m, b->e->rows, 1));
	CAIRN_TRY(add_ways(b, out, plan));
	CAIRN_TRY(create_cache(b, &out->shared_cache));
	for (int i = 0; i < out->num; i++)
		CAIRN_TRY(upload(b, &b->ways[i]));
	return 0;
}

static void close_bench(struct bench *b)
{
	const struct cairn_impl *impl = b->m->impl;

	if (b->stream)
		impl->stream_sync(b->stream);
	for (int i = 0; i < NANO_ABLATION_HOWS; i++) {
		cairn_nano_destroy(b->ways[i].nano);
		if (b->ways[i].dev)
			impl->mem_free(b->ways[i].dev);
	}
	lockstep_close(&b->lockstep);
	cairn_scratch_destroy(b->scratch);
	if (b->kv.base)
		impl->mem_free(b->kv.base);
	if (b->begin)
		impl->event_destroy(b->begin);
	if (b->end)
		impl->event_destroy(b->end);
	if (b->stream)
		impl->stream_destroy(b->stream);
	cairn_nvml_close(b->card);
}

/* ---- turns ---- */

static int run_pass(struct bench *b, struct way *w)
{
	return w->nano ? cairn_nano_forward(w->nano, &b->kv, &w->pass, b->stream) :
	       cairn_forward(b->scratch, &b->kv, &w->batch, b->stream);
}

static int reserve(struct bench *b, struct way *w)
{
	int moved;

	return w->nano ? cairn_nano_reserve(w->nano, &b->kv, &w->pass, b->stream, &moved) :
	       cairn_scratch_reserve(b->scratch, &b->kv, &w->batch, b->stream, &moved);
}

static int run_passes(struct bench *b, struct way *w, int passes)
{
	CAIRN_TRY(CAIRN_TABLE(b->m->impl, event_record, b->begin, b->stream));
	for (int i = 0; i < passes; i++)
		CAIRN_TRY(run_pass(b, w));
	return CAIRN_TABLE(b->m->impl, event_record, b->end, b->stream);
}

/* Sets *ms to the time of a pass. energy NULL: it is not measured. */
static int take_turn(struct bench *b, struct way *w, int passes, struct cairn_energy *energy, double *ms)
{
	struct cairn_meter *meter = NULL;
	float all = 0;
	int ret;

	if (energy && b->card)
		CAIRN_TRY(cairn_meter_start(&meter, b->card, CAIRN_ENERGY_NS));
	ret = run_passes(b, w, passes);
	if (!ret)
		ret = CAIRN_TABLE(b->m->impl, event_sync, b->end);
	if (meter)
		cairn_meter_stop(meter, energy);
	if (!ret)
		ret = CAIRN_TABLE(b->m->impl, event_elapsed, &all, b->begin, b->end);
	*ms = (double)all / passes;
	return ret;
}

static int by_value(const void *x, const void *y)
{
	double a = *(const double *)x, b = *(const double *)y;

	return (a > b) - (a < b);
}

/* The first turn loads code, chooses algorithms, and says how many passes a turn has. */
static int take_first(struct bench *b, struct way *w)
{
	double ms = 0, passes;

	CAIRN_TRY(reserve(b, w));
	CAIRN_TRY(take_turn(b, w, 1, NULL, &ms));
	CAIRN_TRY(take_turn(b, w, 2, NULL, &ms));
	CAIRN_TRY(lockstep_agree(&b->lockstep, &ms, 1));
	passes = ms > 0 ? b->opt->seconds * 1e3 / ms : MOST_PASSES;
	w->passes = passes < 1 ? 1 : passes > MOST_PASSES ? MOST_PASSES : (int)passes;
	return 0;
}

static int take_turns(struct bench *b, struct nano_ablation *out)
{
	for (int i = 0; i < out->num; i++) {
		out->hows[i].energy = b->no_card;
		CAIRN_TRY(take_first(b, &b->ways[i]));
	}
	for (int turn = 0; turn < b->opt->turns; turn++)
		for (int i = 0; i < out->num; i++) {
			int last = turn == b->opt->turns - 1;

			CAIRN_TRY(take_turn(b, &b->ways[i], b->ways[i].passes,
					    last ? &out->hows[i].energy : NULL, &b->ways[i].ms[turn]));
		}
	for (int i = 0; i < out->num; i++) {
		qsort(b->ways[i].ms, (size_t)b->opt->turns, sizeof(double), by_value);
		out->hows[i].ms = b->ways[i].ms[b->opt->turns / 2];
	}
	return 0;
}

int nano_ablation_run(struct nano_ablation *out, const struct cairn_model *m, struct cairn_plan_file *file,
		      int32_t entry, const struct nano_ablation_options *opt)
{
	struct bench b = { .m = m, .opt = opt, .e = &file->entries[entry] };
	struct cairn_search_pipeline pipeline;
	struct cairn_plan_lanes lanes;
	int ret;

	memset(out, 0, sizeof(*out));
	if (opt->turns < 1 || opt->turns > MOST_TURNS)
		return cairn_error(EINVAL, "nano_ablation: turns: %d is not 1 to %d", opt->turns, MOST_TURNS);
	CAIRN_TRY(cairn_search_pipeline(&pipeline, &m->config));
	if (strcmp(pipeline.shape, file->shape))
		return cairn_error(EINVAL, "nano_ablation: the plan is for %s, not for %s", file->shape,
				   pipeline.shape);
	CAIRN_TRY(cairn_plan_lanes_make(&lanes, file, entry, &pipeline));
	if (cairn_power_open(&b.card, m->impl))
		cairn_energy_unknown(&b.no_card);
	ret = open_bench(&b, out, &lanes.plan);
	if (!ret)
		ret = take_turns(&b, out);
	close_bench(&b);
	cairn_plan_lanes_free(&lanes);
	if (!ret) {
		file->entries[entry].measured_sequential_ms = out->hows[0].ms;
		file->entries[entry].measured_ms = out->hows[out->num - 1].ms;
	}
	return ret;
}

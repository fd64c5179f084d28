// SPDX-License-Identifier: Apache-2.0
#include "command.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../conformance/registry.h"
#include "../primitives/dtype.h"
#include "../primitives/error.h"

int cairn_option_int(const char *option, const char *text, int64_t lo, int64_t hi, int64_t *value)
{
	long long v;
	char *end;

	errno = 0;
	v = strtoll(text, &end, 10);
	if (errno || end == text || *end || v < lo || v > hi)
		return cairn_error(EINVAL, "%s: '%.64s' is not a whole number from %lld to %lld", option,
				   text, (long long)lo, (long long)hi);
	*value = v;
	return 0;
}

int cairn_option_float(const char *option, const char *text, double lo, double hi, float *value)
{
	char *end;
	double v = strtod(text, &end);

	if (end == text || *end || !(v >= lo && v <= hi))
		return cairn_error(EINVAL, "%s: '%.64s' is not a number from %g to %g", option, text, lo, hi);
	*value = (float)v;
	return 0;
}

double cairn_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

int cairn_session_start(struct cairn_session *s, const char *name, int device)
{
	int ret;

	memset(s, 0, sizeof(*s));
	if (!name) {
		if (!cairn_impl_open("cuda", &s->impl) && !cairn_impl_start(&s->impl, device)) {
			s->started = 1;
			return 0;
		}
		cairn_clear_error();
		name = "cpu";
		device = 0;
	}
	CAIRN_TRY(cairn_impl_open(name, &s->impl));
	ret = cairn_impl_start(&s->impl, device);
	if (ret)
		return cairn_table_error(&s->impl, ret, "cannot start");
	s->started = 1;
	return 0;
}

struct progress {
	double start;
	int percent;
};

/* On a terminal one line that counts up; elsewhere nothing until the end. */
static void show_progress(void *ctx, int64_t done, int64_t total)
{
	struct progress *p = ctx;
	int percent = (int)(100 * (double)done / (double)total);

	if (percent == p->percent || !isatty(STDERR_FILENO))
		return;
	p->percent = percent;
	fprintf(stderr, "\rloading %3d%% of %.2f GB", percent, (double)total * 1e-9);
	if (done == total)
		fprintf(stderr, "\r\033[K");
	fflush(stderr);
}

static void show_loaded(const struct cairn_session *s, const char *what, double seconds)
{
	const struct cairn_model *m = s->model;
	struct cairn_device_info info = { .size = sizeof(info) };

	if (s->impl.device_info(&info))
		info.name[0] = 0;
	fprintf(stderr, "%s: %d layers, %.4g GB of %s on %s%s%s%s, loaded in %.2f s\n", what,
		m->config.num_hidden_layers, (double)m->bytes * 1e-9, cairn_dtype_name(m->dtype),
		s->impl.name, info.name[0] ? " (" : "", info.name, info.name[0] ? ")" : "", seconds);
}

int cairn_session_load(struct cairn_session *s, const char *dir)
{
	struct progress p = { .start = cairn_now(), .percent = -1 };

	if (dir)
		snprintf(s->dir, sizeof(s->dir), "%s", dir);
	else
		snprintf(s->dir, sizeof(s->dir), "%s/serving/embedded", cairn_data_dir());
	CAIRN_TRY(cairn_tokenizer_open(s->dir, &s->tokenizer));
	CAIRN_TRY(cairn_model_load(&s->model, &s->impl, s->dir, show_progress, &p));
	if (cairn_tokenizer_size(s->tokenizer) > s->model->config.vocab_size)
		return cairn_error(EINVAL,
				   "%s/tokenizer.json: has %d tokens, vocab_size of config.json is %d",
				   s->dir, cairn_tokenizer_size(s->tokenizer), s->model->config.vocab_size);
	show_loaded(s, s->dir, cairn_now() - p.start);
	return 0;
}

int cairn_session_shape(struct cairn_session *s, const char *shape, uint64_t seed)
{
	struct cairn_model_config config;
	double start = cairn_now();

	CAIRN_TRY(cairn_model_shape(shape, &config));
	CAIRN_TRY(cairn_model_random(&s->model, &s->impl, &config, seed));
	show_loaded(s, shape, cairn_now() - start);
	return 0;
}

void cairn_session_close(struct cairn_session *s)
{
	cairn_tokenizer_free(s->tokenizer);
	cairn_model_free(s->model);
	if (s->started)
		cairn_impl_stop(&s->impl);
	memset(s, 0, sizeof(*s));
}

static double time_reads(const struct cairn_impl *impl, const struct cairn_stream_args *args, void *stream,
			 void *events[2])
{
	double best = 0;
	float ms;

	for (int i = 0; i < 6; i++) {
		if (impl->event_record(events[0], stream) || impl->stream(args, stream) ||
		    impl->event_record(events[1], stream) || impl->stream_sync(stream) ||
		    impl->event_elapsed(&ms, events[0], events[1]))
			return 0;
		if (i && ms > 0)	/* the first loads code */
			best = fmax(best, (double)args->bytes / (ms * 1e6));
	}
	return best;
}

double cairn_session_read_gbps(const struct cairn_session *s)
{
	const struct cairn_impl *impl = &s->impl;
	struct cairn_stream_args args = {
		.size = sizeof(args), .op = CAIRN_STREAM_READ,
		.bytes = impl->flags & CAIRN_IMPL_HOST_MEM ? 256 << 20 : (int64_t)4 << 30,
	};
	size_t sums = (size_t)cairn_stream_num_blocks(args.bytes) * sizeof(*args.sum);
	void *src = NULL, *sum = NULL, *stream = NULL, *events[2] = { NULL, NULL };
	double gbps = 0;

	if (!impl->stream)
		return 0;
	/* written to, so that host pages exist */
	if (impl->stream_create(&stream) || impl->mem_alloc(&src, (size_t)args.bytes) ||
	    impl->mem_alloc(&sum, sums) || impl->mem_set(src, 1, (size_t)args.bytes, stream) ||
	    impl->event_create(&events[0]) || impl->event_create(&events[1]))
		goto out;
	args.src = src;
	args.sum = sum;
	gbps = time_reads(impl, &args, stream, events);
out:
	for (int i = 0; i < 2; i++) {
		if (events[i])
			impl->event_destroy(events[i]);
	}
	if (sum)
		impl->mem_free(sum);
	if (src)
		impl->mem_free(src);
	if (stream)
		impl->stream_destroy(stream);
	return gbps;
}

void cairn_session_record(const struct cairn_session *s, char *json, size_t len)
{
	struct cairn_device_info info = { .size = sizeof(info) };

	if (s->impl.device_info(&info))
		memset(&info, 0, sizeof(info));
	snprintf(json, len,
		 "\"impl\":\"%s\",\"impl_version\":\"%s\",\"sm_mhz\":%d,\"gpu\":\"%s\","
		 "\"driver\":\"%s\",\"source\":\"%s\"",
		 s->impl.name, s->impl.version, info.clock_mhz, info.name, info.driver,
		 cairn_source_digest());
}

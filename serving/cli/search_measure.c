// SPDX-License-Identifier: Apache-2.0
#include "serving/cli/search_measure.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "conformance/tables/program.h"
#include "primitives/base/error.h"
#include "serving/cli/session_ranks.h"
#include "serving/profile/nano_ablation.h"

struct measuring {
	struct cairn_model_config config;	/* of the whole model */
	struct cairn_search_pipeline pipeline;	/* of a rank's share */
	const struct cairn_measure_options *opt;
	struct cairn_common_options ranks;
	struct cairn_tp *tp;		/* NULL: there is one rank */
	struct cairn_session session;
	struct cairn_plan_file *file;
	FILE *json;			/* of rank 0; NULL: none */
};

static int32_t decoding_rows(const struct cairn_plan_file_entry *e)
{
	int32_t n = 0;

	for (int32_t i = 0; i < e->nanos; i++)
		n += e->decode[i];
	return n;
}

static void write_row(struct measuring *m, const struct cairn_plan_file_entry *e,
		      const struct nano_ablation *a, const struct nano_ablation_how *how)
{
	int plan = how == &a->hows[a->num - 1];
	double predicted = plan ? e->predicted_ms : how == a->hows ? e->sequential_ms : 0;
	char energy[CAIRN_ENERGY_MEMBERS] = "", record[512];

	cairn_session_record(&m->session, CAIRN_DECODE_AUTO,
			     how->energy.sm_mhz > 0 ? how->energy.sm_mhz : 0, record, sizeof(record));
	if (m->session.impl.pci_bus_id)
		cairn_energy_members(&how->energy, how->ms * 1e-3, energy, sizeof(energy));
	fprintf(m->json,
		"{\"v\":1,\"op\":\"nano_ablation\",\"case\":\"%.32s_rows%d_dec%d_kv%d_%s\",\"ok\":true,"
		"\"how\":\"%s\",\"rows\":%d,\"decode\":%d,\"context\":%d,\"nanos\":%d,\"ms\":%.4f,"
		"\"gain\":%.4f", m->file->shape, e->rows, e->decode_eighths, e->context, how->name, how->name,
		e->rows, decoding_rows(e), e->context, e->nanos, how->ms, a->hows[0].ms / how->ms);
	if (predicted > 0)
		fprintf(m->json, ",\"predicted_ms\":%.4f,\"predicted_error_pct\":%.2f", predicted,
			100 * (how->ms / predicted - 1));
	if (plan)
		fprintf(m->json, ",\"predicted_gain\":%.4f", e->sequential_ms / e->predicted_ms);
	fprintf(m->json, ",\"shared_cache\":%s,\"kernels\":\"%s\"%s,%s}\n",
		a->shared_cache ? "true" : "false", m->file->kernels, energy, record);
}

static int measure_entry(struct measuring *m, int32_t i)
{
	const struct nano_ablation_options options = {
		.seconds = (double)m->opt->seconds, .turns = (int)m->opt->turns,
		.page_size = m->session.impl.flags & CAIRN_IMPL_HOST_MEM ? 16 : 64,
	};
	const struct cairn_plan_file_entry *e = &m->file->entries[i];
	struct nano_ablation a;

	if (m->session.rank)
		return nano_ablation_run(&a, m->session.model, m->file, i, &options);
	printf("%d rows, %d of them decoding, context %d\n", e->rows, decoding_rows(e), e->context);
	CAIRN_TRY(nano_ablation_run(&a, m->session.model, m->file, i, &options));
	for (int k = 0; k < a.num; k++) {
		const struct nano_ablation_how *how = &a.hows[k];

		printf("  %-10s %9.3f ms  %.3fx", how->name, how->ms, a.hows[0].ms / how->ms);
		if (how->energy.watts > 0)
			printf("  %4.0f W  %.2f J", how->energy.watts, how->energy.watts * how->ms * 1e-3);
		printf("\n");
		if (m->json)
			write_row(m, e, &a, how);
	}
	printf("  predicted: sequential %.3f ms, plan %.3f ms, %.3fx%s\n", e->sequential_ms, e->predicted_ms,
	       e->sequential_ms / e->predicted_ms,
	       cairn_plan_file_has_gain(e) ? "" : "; an engine will run such passes sequentially");
	return cairn_plan_file_write(m->file, m->opt->plan);
}

static int measure_all(struct measuring *m)
{
	const struct cairn_measure_options *o = m->opt;
	struct cairn_device_info info = { .size = sizeof(info) };
	char table[128];
	struct cairn_plan_file_for here = { .gpu = info.name, .impl = table, .kernels = cairn_kernel_digest(),
					    .shape = m->pipeline.shape, .ranks = m->pipeline.ranks };

	if (o->json && (!m->tp || !cairn_tp_rank(m->tp)) && !(m->json = fopen(o->json, "a")))
		return cairn_error(EIO, "--json: %s: cannot be written", o->json);
	CAIRN_TRY(cairn_session_start_rank(&m->session, &m->ranks, m->tp, o->shape, 1));
	cairn_session_table(&m->session, CAIRN_DECODE_AUTO, table, sizeof(table));
	CAIRN_TRY(CAIRN_TABLE(&m->session.impl, device_info, &info));
	CAIRN_TRY(cairn_plan_file_read(&m->file, o->plan, &here));
	/* the values of weights do not matter, only that they are no zeros */
	if (m->tp)
		CAIRN_TRY(cairn_session_random_rank(&m->session, &m->config, 1));
	else
		CAIRN_TRY(cairn_model_random(&m->session.model, &m->session.impl, &m->config, 1));
	for (int32_t i = 0; i < m->file->num_entries; i++)
		CAIRN_TRY(measure_entry(m, i));
	return 0;
}

int cairn_search_measure(const struct cairn_measure_options *o)
{
	struct measuring m = {
		.opt = o,
		.ranks = { .impl = o->impl, .model = o->model, .device = o->device, .tp = o->tp, .node = -1,
			   .collective_s = CAIRN_MEASURE_S },
	};
	struct cairn_model_config share;
	int ret;

	CAIRN_TRY(cairn_config_option(o->model, o->shape, &m.config));
	share = m.config;
	CAIRN_TRY(cairn_share_option(&m.ranks, o->shape, &share));
	CAIRN_TRY(cairn_search_pipeline(&m.pipeline, &share));
	CAIRN_TRY(cairn_ranks_fork(&m.tp, &m.ranks));
	ret = measure_all(&m);
	if (m.json && fclose(m.json) && !ret)
		ret = cairn_error(EIO, "--json: %s: cannot be written", o->json);
	cairn_plan_file_free(m.file);
	return cairn_session_end_rank(&m.session, m.tp, ret);
}

// SPDX-License-Identifier: Apache-2.0
/* convert_slices - cuts the forward pass of a model at its attention operators; `cairn convert-slices` */
#include "serving/cli/commands.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "primitives/base/error.h"
#include "serving/cli/command.h"
#include "serving/model/model_graph.h"
#include "serving/slices/slices.h"

static const char usage[] =
	"usage: cairn convert-slices --model DIR | --shape NAME [--out FILE]\n"
	"\n"
	"Cuts the forward pass of a model at each attention operator, so that attention can run\n"
	"on other machines. Each cut saves as few bytes as possible; a flow proves it. The slices are\n"
	"written as JSON (serving/slices/README.md).\n"
	"  --model DIR   a checkpoint; only its config.json is read\n"
	"  --shape NAME  a published shape, as llama3-8b\n"
	"  --out FILE    writes to FILE instead of standard output, and prints a summary\n"
	"\n"
	"Exit status: 0 success, 1 a file could not be read or written, 2 bad usage or input.\n";

static void summarise(const struct cairn_slices *s, const char *path)
{
	int64_t least = INT64_MAX, most = 0;

	for (int32_t i = 0; i + 1 < s->num_slices; i++) {
		least = s->slices[i].save_bytes < least ? s->slices[i].save_bytes : least;
		most = s->slices[i].save_bytes > most ? s->slices[i].save_bytes : most;
	}
	printf("%s: %d slices; a cut saves %lld to %lld bytes for each token\n", path, s->num_slices,
	       (long long)least, (long long)most);
}

static int write_to(const char *path, const struct cairn_slices *s, const struct cairn_op_graph *g,
		    const struct cairn_pass_sizes *sizes)
{
	FILE *file = fopen(path, "we");
	struct stat st;
	int ret, regular;

	if (!file)
		return cairn_error(EIO, "--out: %s: %s", path, strerror(errno));
	regular = !fstat(fileno(file), &st) && S_ISREG(st.st_mode);
	ret = cairn_slices_write(s, g, sizes, file);
	if (fclose(file) && !ret)
		ret = cairn_error(EIO, "--out: %s: %s", path, strerror(errno));
	if (ret && regular)
		remove(path);
	if (!ret)
		summarise(s, path);
	return ret;
}

static int convert(const struct cairn_model_config *config, const char *path)
{
	/* a configuration without a dtype has weights of 16 bits as a rule */
	const uint8_t bytes = config->dtype < 0 ? 2 : (uint8_t)cairn_dtype_bytes(config->dtype);
	int32_t dims[CAIRN_NUM_DIMS];
	const int32_t one = 1;
	const struct cairn_pass_sizes sizes = {		/* of one token */
		.dims = dims, .qo_len = &one, .kv_len = &one, .num_requests = 1, .num_tokens = 1,
		.num_logits = 1,
		.element = { [CAIRN_ROLE_ACTIVATION] = bytes, [CAIRN_ROLE_WEIGHT] = bytes,
			     [CAIRN_ROLE_MATRIX] = bytes, [CAIRN_ROLE_CACHE] = bytes,
			     [CAIRN_ROLE_LOGITS] = 4, [CAIRN_ROLE_INDEX] = 4 },
	};
	struct cairn_slices *slices = NULL;
	struct cairn_op_graph *graph = NULL;
	int ret;

	cairn_model_dims(config, dims);
	ret = cairn_model_graph(&graph, config);
	if (!ret)
		ret = cairn_slices_create(&slices, graph, &sizes);
	if (!ret)
		ret = path ? write_to(path, slices, graph, &sizes) :
		      cairn_slices_write(slices, graph, &sizes, stdout);
	if (!ret && fflush(stdout))
		ret = cairn_error(EIO, "standard output: %s", strerror(errno));
	cairn_slices_destroy(slices);
	cairn_op_graph_destroy(graph);
	return ret;
}

int cairn_cmd_convert_slices(int argc, char **argv)
{
	const char *model = NULL, *shape = NULL, *path = NULL;
	const struct cairn_option options[] = {
		{ .name = "model", .kind = CAIRN_OPT_TEXT, .to = &model },
		{ .name = "shape", .kind = CAIRN_OPT_TEXT, .to = &shape },
		{ .name = "out", .kind = CAIRN_OPT_TEXT, .to = &path },
	};
	struct cairn_model_config config;
	int ret = cairn_parse_options(argc, argv, NULL, options, 3, usage);

	if (ret > 0)
		return CAIRN_EXIT_OK;
	if (!ret)
		ret = cairn_config_option(model, shape, &config);
	if (!ret)
		ret = convert(&config, path);
	if (!ret)
		return CAIRN_EXIT_OK;
	if (*cairn_last_error())
		fprintf(stderr, "cairn convert-slices: %s\n", cairn_last_error());
	return ret == -EIO || ret == -ENOMEM ? CAIRN_EXIT_FAILED : CAIRN_EXIT_USAGE;
}

// SPDX-License-Identifier: Apache-2.0
/* convert_slices - cuts a model at its attention operators; `cairn convert-slices` */
#include "serving/cli/commands.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "primitives/base/error.h"
#include "serving/cli/command.h"
#include "serving/model/model_graph.h"
#include "serving/pt2/pt2_expect.h"
#include "serving/slices/slices.h"

static const char usage[] =
	"usage: cairn convert-slices --model DIR | --shape NAME | --pt2 FILE [--out FILE]\n"
	"\n"
	"Cuts the forward pass of a model at each attention operator, so that attention can run\n"
	"on other machines. Each cut saves as few bytes as possible; a flow proves it. The slices are\n"
	"written as JSON (serving/slices/README.md).\n"
	"  --model DIR   a checkpoint; only its config.json is read\n"
	"  --shape NAME  a published shape, as llama3-8b\n"
	"  --pt2 FILE    a program that torch.export.save() wrote; no pickle in it is opened. Bytes are\n"
	"                those of the exported example; a note says if other sizes have other cuts\n"
	"  --expect FILE computes the program, whole and in slices, and compares it with PyTorch's\n"
	"                results in FILE (tools/export_pt2.py)\n"
	"  --out FILE    writes to FILE instead of standard output, and prints a summary\n"
	"\n"
	"Exit status: 0 success, 1 a file could not be read or written, 2 bad usage or input.\n";

/* What is converted: a graph of ours, or a program. */
struct source {
	const struct cairn_op_graph *graph;
	const struct cairn_pass_sizes *sizes;
	const struct cairn_slices *slices;
	const struct cairn_pt2 *program;
	const int64_t *symbols;
	const struct cairn_pt2_slices *program_slices;
};

static void summarise(const struct source *from, const char *path)
{
	const struct cairn_slice *s = from->graph ? from->slices->slices : from->program_slices->slices;
	int32_t num = from->graph ? from->slices->num_slices : from->program_slices->num_slices;
	int64_t least = INT64_MAX, most = 0;

	for (int32_t i = 0; i + 1 < num; i++) {
		least = s[i].save_bytes < least ? s[i].save_bytes : least;
		most = s[i].save_bytes > most ? s[i].save_bytes : most;
	}
	printf("%s: %d slices; a cut saves %lld to %lld bytes for %s\n", path, num, (long long)least,
	       (long long)most, from->graph ? "each token" : "the example");
}

static int write_slices(const struct source *from, FILE *file)
{
	return from->graph ? cairn_slices_write(from->slices, from->graph, from->sizes, file) :
	       cairn_pt2_slices_write(from->program_slices, from->program, from->symbols, file);
}

static int write_file(const char *path, const struct source *from)
{
	FILE *file = fopen(path, "we");
	struct stat st;
	int ret, regular;

	if (!file)
		return cairn_error(EIO, "--out: %s: %s", path, strerror(errno));
	regular = !fstat(fileno(file), &st) && S_ISREG(st.st_mode);
	ret = write_slices(from, file);
	if (fclose(file) && !ret)
		ret = cairn_error(EIO, "--out: %s: %s", path, strerror(errno));
	if (ret && regular)
		remove(path);
	if (!ret)
		summarise(from, path);
	return ret;
}

/* path: NULL for standard output. */
static int write_to(const char *path, const struct source *from)
{
	int ret = path ? write_file(path, from) : write_slices(from, stdout);

	if (!ret && fflush(stdout))
		ret = cairn_error(EIO, "standard output: %s", strerror(errno));
	return ret;
}

/* Says on standard error if the cuts depend on a size. */
static int note_variants(const struct source *from)
{
	int32_t cut, symbol;
	int64_t at;

	CAIRN_TRY(cairn_pt2_slices_vary(from->program_slices, from->program, from->symbols, &cut, &symbol,
					&at));
	if (cut >= 0)
		fprintf(stderr, "cairn convert-slices: cut %d saves other values at %s = %lld\n", cut,
			from->program->exprs.symbols[symbol].name, (long long)at);
	return 0;
}

static int expect(const struct source *from, const char *path)
{
	double worst;

	CAIRN_TRY(cairn_pt2_expect(from->program, from->program_slices, path, &worst));
	fprintf(stderr, "cairn convert-slices: %s: differs by at most %.1e of the largest result; "
		"the slices give the same bits\n", path, worst);
	return 0;
}

static int convert_program(const char *pt2, const char *expected, const char *path)
{
	struct cairn_pt2_slices *slices = NULL;
	struct cairn_pt2 *program;
	int64_t symbols[CAIRN_PT2_SYMBOLS];
	struct source from = { .symbols = symbols };
	int ret;

	CAIRN_TRY(cairn_pt2_open(&program, pt2));
	cairn_pt2_symbols(program, symbols);
	ret = cairn_pt2_slices_create(&slices, program, symbols);
	from.program = program;
	from.program_slices = slices;
	if (!ret)
		ret = note_variants(&from);
	if (!ret && expected)
		ret = expect(&from, expected);
	if (!ret)
		ret = write_to(path, &from);
	cairn_pt2_slices_destroy(slices);
	cairn_pt2_close(program);
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
	struct source from = { .sizes = &sizes };
	struct cairn_slices *slices = NULL;
	struct cairn_op_graph *graph = NULL;
	int ret;

	cairn_model_dims(config, dims);
	ret = cairn_model_graph(&graph, config);
	if (!ret)
		ret = cairn_slices_create(&slices, graph, &sizes);
	from.graph = graph;
	from.slices = slices;
	if (!ret)
		ret = write_to(path, &from);
	cairn_slices_destroy(slices);
	cairn_op_graph_destroy(graph);
	return ret;
}

int cairn_cmd_convert_slices(int argc, char **argv)
{
	const char *model = NULL, *shape = NULL, *pt2 = NULL, *expected = NULL, *path = NULL;
	const struct cairn_option options[] = {
		{ .name = "model", .kind = CAIRN_OPT_TEXT, .to = &model },
		{ .name = "shape", .kind = CAIRN_OPT_TEXT, .to = &shape },
		{ .name = "pt2", .kind = CAIRN_OPT_TEXT, .to = &pt2 },
		{ .name = "expect", .kind = CAIRN_OPT_TEXT, .to = &expected },
		{ .name = "out", .kind = CAIRN_OPT_TEXT, .to = &path },
	};
	struct cairn_model_config config;
	int ret = cairn_parse_options(argc, argv, NULL, options, 5, usage);

	if (ret > 0)
		return CAIRN_EXIT_OK;
	if (!ret && pt2 && (model || shape))
		ret = cairn_error(EINVAL, "--pt2: excludes --model and --shape");
	if (!ret && expected && !pt2)
		ret = cairn_error(EINVAL, "--expect: needs --pt2");
	if (!ret && !pt2)
		ret = cairn_config_option(model, shape, &config);
	if (!ret)
		ret = pt2 ? convert_program(pt2, expected, path) : convert(&config, path);
	if (!ret)
		return CAIRN_EXIT_OK;
	if (*cairn_last_error())
		fprintf(stderr, "cairn convert-slices: %s\n", cairn_last_error());
	return ret == -EIO || ret == -ENOMEM ? CAIRN_EXIT_FAILED : CAIRN_EXIT_USAGE;
}

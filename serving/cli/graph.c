// SPDX-License-Identifier: Apache-2.0
/* graph - prints the graph of a model's forward pass; `cairn graph` */
#include "serving/cli/commands.h"

#include <stdio.h>

#include "primitives/base/error.h"
#include "serving/cli/command.h"
#include "serving/model/model_graph.h"

static const char usage[] =
	"usage: cairn graph --model DIR | --shape NAME\n"
	"\n"
	"Prints the forward pass of a model as a graph: a line for each value, then one for each operation,\n"
	"as result = kind(values; weights). RESULT@VALUE means that the result overwrites VALUE.\n"
	"  --model DIR   a checkpoint; only its config.json is read\n"
	"  --shape NAME  a published shape, as llama3-8b\n";

int cairn_cmd_graph(int argc, char **argv)
{
	const char *model = NULL, *shape = NULL;
	const struct cairn_option options[] = {
		{ .name = "model", .kind = CAIRN_OPT_TEXT, .to = &model },
		{ .name = "shape", .kind = CAIRN_OPT_TEXT, .to = &shape },
	};
	struct cairn_model_config config;
	struct cairn_op_graph *graph;
	int ret = cairn_parse_options(argc, argv, NULL, options, 2, usage);

	if (ret > 0)
		return CAIRN_EXIT_OK;
	if (!ret)
		ret = cairn_config_option(model, shape, &config);
	if (!ret)
		ret = cairn_model_graph(&graph, &config);
	if (ret) {
		if (*cairn_last_error())
			fprintf(stderr, "cairn graph: %s\n", cairn_last_error());
		return ret == -EIO || ret == -ENOMEM ? CAIRN_EXIT_FAILED : CAIRN_EXIT_USAGE;
	}
	cairn_op_graph_print(graph, stdout);
	cairn_op_graph_destroy(graph);
	return CAIRN_EXIT_OK;
}

// SPDX-License-Identifier: Apache-2.0
#include "conformance/doctor/doctor.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "conformance/doctor/doctor_find.h"
#include "conformance/tables/program.h"
#include "primitives/base/error.h"
#include "serving/cli/command.h"

static const char usage[] =
	"usage: cairn doctor [OPTION]...\n"
	"\n"
	"Tells what this machine has and lacks for Cairn: GPU, driver, CUDA, optional libraries, limits;\n"
	"what each lack costs, and what to type. A library that crashes or hangs is reported, too.\n"
	"\n"
	"  --require-gpu   exit status 1 if there is no usable GPU\n"
	"  --json          one JSON object instead of text\n"
	"\n"
	"Exit status: 0 the CPU table runs, 1 it does not, 2 bad usage.\n";

static const char *const states[] = {
	[DOCTOR_OK] = "ok", [DOCTOR_MISSING] = "missing", [DOCTOR_BROKEN] = "broken", [DOCTOR_LOW] = "low",
	[DOCTOR_UNUSED] = "unused",
};

static int needs_help(const struct doctor_finding *f)
{
	return f->state != DOCTOR_OK && f->state != DOCTOR_UNUSED;
}

static void print_text(const struct doctor_findings *all)
{
	printf("cairn %s, source %s\n\n", CAIRN_VERSION, cairn_source_digest());
	for (int i = 0; i < all->num; i++) {
		const struct doctor_finding *f = &all->list[i];

		printf("%-8s %-11s %s\n", states[f->state], f->name, f->found);
		if (needs_help(f) && f->costs)
			printf("%21scosts: %s\n", "", f->costs);
		if (needs_help(f) && f->type)
			printf("%21sfix:   %s\n", "", f->type);
	}
	printf("\n%s\n", all->usable_gpus ? "The kernels run on the GPU." : all->cpu_runs ?
	       "There is no usable GPU. Everything runs on the CPU table, slowly." : "Nothing runs here.");
}

static int print_json(const struct doctor_findings *all)
{
	json_t *list = json_array(), *root;
	int ret = 0;

	for (int i = 0; i < all->num; i++) {
		const struct doctor_finding *f = &all->list[i];
		int help = needs_help(f);

		ret |= json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s?, s:s?}", "name", f->name,
				"state", states[f->state], "found", f->found, "costs", help ? f->costs : NULL,
				"fix", help ? f->type : NULL));
	}
	root = json_pack("{s:s, s:s, s:b, s:i, s:o}", "version", CAIRN_VERSION, "source",
			 cairn_source_digest(), "cpu_table", all->cpu_runs, "usable_gpus", all->usable_gpus,
			 "findings", list);
	if (ret || !root || json_dumpf(root, stdout, JSON_COMPACT))
		ret = cairn_error(ENOMEM, "the report cannot be written");
	printf("\n");
	json_decref(root);
	return ret;
}

int cairn_cmd_doctor(int argc, char **argv)
{
	int require_gpu = 0, json = 0, ret;
	const struct cairn_option options[] = {
		{ "require-gpu", CAIRN_OPT_FLAG, &require_gpu, 0, 0, NULL },
		{ "json", CAIRN_OPT_FLAG, &json, 0, 0, NULL },
	};
	static struct doctor_findings all;

	ret = cairn_parse_options(argc, argv, NULL, options, sizeof(options) / sizeof(options[0]), usage);
	if (ret > 0)
		return CAIRN_EXIT_OK;
	if (ret) {
		if (*cairn_last_error())
			fprintf(stderr, "cairn doctor: %s\n", cairn_last_error());
		return CAIRN_EXIT_USAGE;
	}
	doctor_look_cpu(&all);
	doctor_look_gpus(&all);
	doctor_look_libraries(&all);
	doctor_look_limits(&all);
	if (!json)
		print_text(&all);
	else if (print_json(&all)) {
		fprintf(stderr, "cairn doctor: %s\n", cairn_last_error());
		return CAIRN_EXIT_FAILED;
	}
	return all.cpu_runs && (all.usable_gpus || !require_gpu) ? CAIRN_EXIT_OK : CAIRN_EXIT_FAILED;
}

// SPDX-License-Identifier: Apache-2.0
/*
 * attn_variant - the command `cairn attn-variant`
 *
 * check and bench run the cases text_* of the family attn_variant_text, which read the file and its scalars
 * from the environment, because cases run in processes of their own.
 */
#include "conformance/cli/attn_variant.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/suite/runner.h"
#include "fused/attention/variant/text/attn_variant_compile.h"
#include "fused/attention/variant/text/attn_variant_create.h"
#include "fused/attention/variant/text/attn_variant_scan.h"
#include "serving/cli/command.h"

#define MOST_BYTES	(8 << 20)

static const char usage[] =
	"usage: cairn attn-variant build FILE --out X.cubin [--dtype bf16|f16] [--head-dim 64|128]\n"
	"       cairn attn-variant check FILE [--p V,V,...] [--impl NAME|PATH]...\n"
	"       cairn attn-variant bench FILE [--p V,V,...] [--impl NAME|PATH]...\n"
	"\n"
	"FILE is a text in C with the hooks of fused/attention/variant/attn_variant.h, or a file that build\n"
	"wrote. It is trusted like a plug-in: it runs in this process and on the GPU.\n"
	"\n"
	"  build   compiles a text for the GPU by NVRTC, without a GPU\n"
	"  check   judges the text's kernels by a reference in double, which the C compiler (cc) makes of\n"
	"          the same text\n"
	"  bench   times it, after the judgement, beside attention without a hook\n"
	"\n"
	"  --out FILE       build: the compiled kernels\n"
	"  --dtype TYPE     build: bf16 or f16 (bf16)\n"
	"  --head-dim N     build: 64 or 128 (128)\n"
	"  --p V,V,...      the scalars p[0] to p[7] (20, 40, 0.25, 0.5, 1, 1, 1, 1); the arrays t[0] to\n"
	"                   t[3] hold 4096 random numbers from 1/64 to 1\n"
	"  --impl NAME|PATH  as of cairn check; may be repeated (check: cpu and cuda; bench: cuda)\n"
	"\n"
	"Compiled kernels are kept in $CAIRN_CACHE, $XDG_CACHE_HOME/cairn or ~/.cache/cairn.\n"
	"Exit status: 0 success, 1 something failed, 2 bad usage or a text that does not compile.\n";

static const struct option options[] = {
	{ "out", required_argument, NULL, 'o' }, { "dtype", required_argument, NULL, 'd' },
	{ "head-dim", required_argument, NULL, 'n' }, { "p", required_argument, NULL, 'p' },
	{ "impl", required_argument, NULL, 'i' }, { NULL, 0, NULL, 0 },
};

struct request {
	const char *action, *file, *out, *p;
	int32_t dtype, head_dim;
	struct cairn_options opt;
	int to_build, to_run;		/* an option of build, of the other actions, was given */
};

static int complain(const char *what)
{
	fprintf(stderr, "cairn attn-variant: %s\n", what);
	return 2;
}

static int read_scalars(const char *text)
{
	const char *at = text;
	int n = 0;

	while (*at) {
		char *end;
		float v = strtof(at, &end);

		if (end == at || !(v - v == 0) || ++n > 8 || (*end && *end != ',') || (*end && !end[1])) {
			fprintf(stderr, "cairn attn-variant: --p: '%s' is not a list of up to 8 numbers\n",
				text);
			return 2;
		}
		at = end + (*end == ',');
	}
	return n ? 0 : complain("--p: '' is not a list of up to 8 numbers");
}

/* Reads an option. Returns 0, or the exit status. */
static int take_option(struct request *r, int c)
{
	switch (c) {
	case 'o':
		r->out = optarg;
		r->to_build = 1;
		return 0;
	case 'd':
		r->dtype = strcmp(optarg, "f16") ? strcmp(optarg, "bf16") ? -1 : CAIRN_BF16 : CAIRN_F16;
		r->to_build = 1;
		return r->dtype < 0 ? complain("--dtype: must be bf16 or f16") : 0;
	case 'n':
		r->head_dim = strcmp(optarg, "64") ? strcmp(optarg, "128") ? -1 : 128 : 64;
		r->to_build = 1;
		return r->head_dim < 0 ? complain("--head-dim: must be 64 or 128") : 0;
	case 'p':
		r->p = optarg;
		r->to_run = 1;
		return read_scalars(optarg);
	case 'i':
		r->to_run = 1;
		if (r->opt.num_impls == CAIRN_MAX_IMPLS)
			return complain("--impl: given too often");
		r->opt.impls[r->opt.num_impls++] = optarg;
		return 0;
	}
	return 2;
}

static int read_options(int argc, char **argv, struct request *r)
{
	int c, build;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		int status = take_option(r, c);

		if (status)
			return status;
	}
	if (argc - optind != 2)
		return complain("takes an action and a file; --help describes them");
	r->action = argv[optind];
	r->file = argv[optind + 1];
	build = !strcmp(r->action, "build");
	if (!build && strcmp(r->action, "check") && strcmp(r->action, "bench")) {
		fprintf(stderr, "cairn attn-variant: '%s' is neither build, check nor bench\n", r->action);
		return 2;
	}
	if (build ? r->to_run : r->to_build)
		return complain(build ? "--p, --impl: are no options of build" :
				"--out, --dtype, --head-dim: are options of build alone");
	return build && !r->out ? complain("build: --out is missing") : 0;
}

/* Returns the contents of the file with a zero after them, which the caller frees, or NULL. */
static char *read_file(const char *path, size_t *bytes)
{
	FILE *f = fopen(path, "rb");
	char *data = malloc(MOST_BYTES + 1);

	if (!f || !data) {
		fprintf(stderr, "cairn attn-variant: %s: %s\n", path, strerror(errno));
		if (f)
			fclose(f);
		free(data);
		return NULL;
	}
	errno = 0;
	*bytes = fread(data, 1, MOST_BYTES, f);
	if (ferror(f)) {
		fprintf(stderr, "cairn attn-variant: %s: %s\n", path, strerror(errno));
		fclose(f);
		free(data);
		return NULL;
	}
	fclose(f);
	data[*bytes] = 0;
	return data;
}

static int say_last_error(void)
{
	fprintf(stderr, "cairn attn-variant: %s\n", cairn_last_error());
	return 2;
}

static int build(const struct request *r, const char *text, size_t bytes)
{
	if (attn_variant_is_image(text, bytes))
		return complain("build: the file is compiled already");
	if (cairn_attn_variant_build(text, r->file, r->dtype, r->head_dim, r->out))
		return say_last_error();
	printf("%s: %s for %s, head_dim %d\n", r->out, r->file, cairn_dtype_name(r->dtype), r->head_dim);
	return 0;
}

/* Compiles the text for host and GPU, so that an error is reported once, and names its hooks. */
static int compile(const struct request *r, const void *data, size_t bytes)
{
	const struct attn_variant_text *t;
	struct attn_variant_image image;
	int32_t variant;
	int ret;

	if (cairn_attn_variant_create(data, bytes, r->file, &variant))
		return say_last_error();
	t = attn_variant_text(variant);
	printf("# %s:", r->file);
	for (int h = 0; h < ATTN_NUM_HOOKS; h++)
		if (t->hooks >> h & 1)
			printf(" %s", attn_variant_hook_name(h));
	printf("\n");
	if (!t->tables[1])
		printf("# no C compiler (cc): there is no reference to judge by\n");
	ret = attn_variant_is_image(data, bytes) ? 0 :
	      attn_variant_compile_device(t->text, r->file, CAIRN_BF16, 128, &image);
	if (!ret && !attn_variant_is_image(data, bytes))
		attn_variant_image_free(&image);
	else if (ret == -EOPNOTSUPP)
		printf("# %s\n", cairn_last_error());
	cairn_attn_variant_destroy(variant);
	return ret && ret != -EOPNOTSUPP ? say_last_error() : 0;
}

static int run(struct request *r)
{
	static char *const cases[] = { "fused.attn_variant_text.text_*" };
	static char *const rows[] = {
		"fused.attn_variant_text.text_h*", "fused.attn_variant.plain_h16_d128_b16_*",
		"fused.attn_variant.plain_h32_d64_b4_*",
	};
	int bench = !strcmp(r->action, "bench");

	if (setenv("CAIRN_ATTN_VARIANT", r->file, 1) || (r->p && setenv("CAIRN_ATTN_P", r->p, 1)))
		return complain("no memory");
	if (!r->opt.num_impls) {
		r->opt.impls[r->opt.num_impls++] = bench ? "cuda" : "cpu";
		if (!bench)
			r->opt.impls[r->opt.num_impls++] = "cuda";
	}
	r->opt.globs = bench ? rows : cases;
	r->opt.num_globs = bench ? 3 : 1;
	r->opt.verbose = 1;
	return bench ? cairn_cmd_bench(&r->opt) : cairn_cmd_check(&r->opt);
}

int cairn_cmd_attn_variant(int argc, char **argv, const char *program)
{
	struct request r = {
		.dtype = CAIRN_BF16, .head_dim = 128,
		.opt = { .seed = 1, .repeat = 1, .program = program },
	};
	size_t bytes;
	char *data;
	int status;

	if (argc < 2 || !strcmp(argv[1], "--help")) {
		fputs(usage, stdout);
		return argc < 2 ? 2 : 0;
	}
	if (!strcmp(argv[1], "--help=options")) {
		cairn_print_options(options);
		return 0;
	}
	status = read_options(argc, argv, &r);
	if (status)
		return status;
	data = read_file(r.file, &bytes);
	if (!data)
		return 2;
	status = strcmp(r.action, "build") ? compile(&r, data, bytes) : build(&r, data, bytes);
	free(data);
	return status || !strcmp(r.action, "build") ? status : run(&r);
}

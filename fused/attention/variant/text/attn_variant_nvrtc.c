// SPDX-License-Identifier: Apache-2.0
/*
 * attn_variant_nvrtc - compiles a text for the GPU with NVRTC, which it looks up at run time
 *
 * NVRTC gets the kernel's headers from memory and no include path. The text is in a namespace of its own, so
 * that its names do not collide with others, and its functions become device functions.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fused/attention/variant/text/attn_variant_compile.h"
#include "fused/attention/variant/text/attn_variant_headers.h"
#include "fused/attention/variant/text/attn_variant_scan.h"
#include "primitives/base/dtype.h"
#include "primitives/base/error.h"
#include "primitives/base/optional.h"

#define MOST_HEADERS	32

typedef struct nvrtc_program *program;

struct nvrtc {
	int (*version)(int *major, int *minor);
	int (*create)(program *p, const char *source, const char *name, int num_headers,
		      const char *const *headers, const char *const *names);
	int (*destroy)(program *p);
	int (*compile)(program p, int num_options, const char *const *options);
	int (*log_size)(program p, size_t *bytes);
	int (*log)(program p, char *log);
	int (*cubin_size)(program p, size_t *bytes);
	int (*cubin)(program p, char *cubin);
	const char *(*error)(int result);
};

static const char *const options[] = {
	"--gpu-architecture=sm_90a", "--std=c++17", "--device-as-default-execution-space",
};
#define NUM_OPTIONS	((int)(sizeof(options) / sizeof(options[0])))

static int open_nvrtc(struct nvrtc *n)
{
	static const char *const names[] = {
		"nvrtcVersion", "nvrtcCreateProgram", "nvrtcDestroyProgram", "nvrtcCompileProgram",
		"nvrtcGetProgramLogSize", "nvrtcGetProgramLog", "nvrtcGetCUBINSize", "nvrtcGetCUBIN",
		"nvrtcGetErrorString",
	};
	void *library = cairn_optional_open(CAIRN_OPTIONAL_NVRTC), **to = (void **)n;

	_Static_assert(sizeof(*n) == sizeof(names) / sizeof(names[0]) * sizeof(void *), "functions");
	if (!library)
		return cairn_error(EOPNOTSUPP, "attn_variant: NVRTC (libnvrtc.so.13 or .12) is missing, "
				   "which texts of callers need on a GPU");
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		to[i] = dlsym(library, names[i]);
		if (!to[i])
			return cairn_error(EOPNOTSUPP, "attn_variant: NVRTC has no %s", names[i]);
	}
	return 0;
}

#define ARGS \
	"(const __grid_constant__ struct attn_variant_call a,\n" \
	"\tconst __grid_constant__ struct attn_dense_plan plan"

/* A kernel that attends. The numbers are its threads, dtype and head dimension. */
#define ATTENDS(name, kind) \
	"extern \"C\" __global__ __launch_bounds__(%d, 1) void " name "\n" \
	ARGS ",\n" \
	"\tconst __grid_constant__ struct attn_dense_maps maps)\n" \
	"{\n" \
	"\textern __shared__ __align__(1024) uint8_t s_all[];\n" \
	"\tattn_variant_run<%d, %d, struct attn_user_hooks, " kind ">(a, plan, maps, s_all);\n" \
	"}\n"

/* Returns the source of the kernels of an instance, which the caller frees, or NULL. */
static char *make_source(const char *text, unsigned int hooks, int32_t dtype, int32_t head_dim)
{
	static const char form[] =
		"#include \"fused/attention/variant/attn_variant_kernel.cuh\"\n"
		"namespace attn_user {\n"
		"#line 1 \"text\"\n%s\n#line 1 \"instance\"\n"
		"}\n"
		"#define ATTN_TEXT attn_user\n"
		"#define ATTN_HOOKS attn_user_hooks\n%s"
		"#include \"fused/attention/variant/attn_variant_hooks.cuh\"\n"
		ATTENDS("attn_variant_kernel", "VARIANT_WHOLE")
		ATTENDS("attn_variant_slice_kernel", "VARIANT_SLICE")
		"#ifdef ATTN_KEY\n"
		ATTENDS("attn_variant_in_place_kernel", "VARIANT_IN_PLACE")
		"extern \"C\" __global__ __launch_bounds__(ATTN_KEY_THREADS) void attn_variant_keys_kernel\n"
		ARGS ")\n"
		"{\n"
		"\tattn_variant_rotate_keys<%d, %d, struct attn_user_hooks>(a, plan);\n"
		"}\n"
		"#endif\n"
		"extern \"C\" __global__ __launch_bounds__(ATTN_MERGERS) void attn_variant_merge_kernel\n"
		ARGS ")\n"
		"{\n"
		"\t__shared__ struct attn_row_tile tiles[ATTN_MERGERS / 32];\n"
		"\tattn_variant_merge<%d, %d, struct attn_user_hooks>(a, plan, tiles);\n"
		"}\n";
	size_t most = sizeof(form) + strlen(text) + 1024;
	char defines[512], *source = malloc(most);
	const int threads = head_dim == 64 ? 512 : 384;

	attn_variant_define(hooks, defines);
	if (source)
		snprintf(source, most, form, text, defines, threads, dtype, head_dim, threads, dtype,
			 head_dim, 384, dtype, head_dim, dtype, head_dim, dtype, head_dim);
	return source;
}

static int make_key(const struct nvrtc *n, const char *source, char key[ATTN_VARIANT_HASH])
{
	char headers[ATTN_VARIANT_HASH];
	SHA2_CTX s;
	int version[2] = { 0, 0 };

	if (n->version(&version[0], &version[1]))
		return cairn_error(EIO, "attn_variant: NVRTC does not tell its version");
	SHA256Init(&s);
	SHA256Update(&s, (const uint8_t *)version, sizeof(version));
	for (int i = 0; i < NUM_OPTIONS; i++)
		attn_variant_hash_text(&s, options[i]);
	attn_variant_hash_headers(headers);
	attn_variant_hash_text(&s, headers);
	attn_variant_hash_text(&s, source);
	SHA256End(&s, key);
	return 0;
}

/* Sets the error text to the first error of NVRTC's log, with the line of the text. */
static int say_error(const char *log, const char *name)
{
	const char *error = strstr(log, "error: "), *begin = error;
	int line = 0, len;

	if (!error)
		return cairn_error(EIO, "%s: NVRTC: %.300s", name, log);
	while (begin > log && begin[-1] != '\n')
		begin--;
	len = (int)strcspn(error + 7, "\n");
	if (sscanf(begin, "text(%d)", &line) == 1)
		return cairn_error(EINVAL, "%s:%d: %.*s", name, line, len, error + 7);
	return cairn_error(EINVAL, "%s: NVRTC: %.*s", name, (int)strcspn(begin, "\n"), begin);
}

static int take_cubin(const struct nvrtc *n, program p, struct attn_variant_image *image)
{
	if (n->cubin_size(p, &image->cubin_bytes) || !image->cubin_bytes)
		return cairn_error(EIO, "attn_variant: NVRTC made no cubin");
	image->cubin = malloc(image->cubin_bytes);
	if (!image->cubin)
		return cairn_error(ENOMEM, "attn_variant: no memory for %zu bytes", image->cubin_bytes);
	return n->cubin(p, image->cubin) ? cairn_error(EIO, "attn_variant: NVRTC made no cubin") : 0;
}

static int compile(const struct nvrtc *n, const char *source, const char *name,
		   struct attn_variant_image *image)
{
	const char *texts[MOST_HEADERS], *names[MOST_HEADERS];
	size_t bytes = 0;
	int result, ret = 0;
	char *log = NULL;
	program p;

	for (int i = 0; i < attn_variant_num_headers; i++) {
		texts[i] = attn_variant_headers[i].text;
		names[i] = attn_variant_headers[i].name;
	}
	result = n->create(&p, source, "attn_variant.cu", attn_variant_num_headers, texts, names);
	if (result)
		return cairn_error(EIO, "attn_variant: NVRTC: %s", n->error(result));
	result = n->compile(p, NUM_OPTIONS, options);
	if (result && !n->log_size(p, &bytes) && (log = calloc(1, bytes + 1)) != NULL)
		n->log(p, log);
	if (result)
		ret = say_error(log ? log : n->error(result), name);
	else
		ret = take_cubin(n, p, image);
	free(log);
	n->destroy(&p);
	return ret;
}

int attn_variant_cache_key(const char *text, int32_t dtype, int32_t head_dim, char key[ATTN_VARIANT_HASH])
{
	unsigned int hooks;
	struct nvrtc n;
	char *source;
	int ret;

	CAIRN_TRY(attn_variant_scan(text, "text", &hooks));
	CAIRN_TRY(open_nvrtc(&n));
	source = make_source(text, hooks, dtype, head_dim);
	ret = source ? make_key(&n, source, key) : cairn_error(ENOMEM, "attn_variant: no memory");
	free(source);
	return ret;
}

int attn_variant_compile_device(const char *text, const char *name, int32_t dtype, int32_t head_dim,
				struct attn_variant_image *image)
{
	char key[ATTN_VARIANT_HASH];
	unsigned int hooks;
	struct nvrtc n;
	char *source;
	int ret;

	memset(image, 0, sizeof(*image));
	CAIRN_TRY(attn_variant_scan(text, name, &hooks));
	CAIRN_TRY(open_nvrtc(&n));
	source = make_source(text, hooks, dtype, head_dim);
	ret = source ? make_key(&n, source, key) : cairn_error(ENOMEM, "attn_variant: no memory");
	if (!ret && !attn_variant_cache_find(key, image)) {
		image->dtype = dtype;
		image->head_dim = head_dim;
		image->text = strdup(text);
		ret = image->text ? compile(&n, source, name, image) :
		      cairn_error(ENOMEM, "attn_variant: no memory");
		if (!ret)
			attn_variant_cache_put(key, image);	/* without a cache only time is lost */
	}
	free(source);
	if (ret)
		attn_variant_image_free(image);
	return ret;
}

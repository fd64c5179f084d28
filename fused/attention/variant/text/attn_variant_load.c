// SPDX-License-Identifier: Apache-2.0
/*
 * attn_variant_load - loads the kernels of a text through the driver, whose functions it looks up at run time
 *
 * A kernel of cuLibraryGetKernel() is valid in all contexts, and the runtime launches it as one of its own.
 */
#include "fused/attention/variant/text/attn_variant_load.h"

#include <cuda.h>
#include <pthread.h>

#include "fused/attention/variant/text/attn_variant_compile.h"
#include "primitives/base/dtype.h"
#include "primitives/base/launch.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef CUresult load_fn(CUlibrary *, const void *, CUjit_option *, void **, unsigned int, CUlibraryOption *,
			 void **, unsigned int);
typedef CUresult kernel_fn(CUkernel *, CUlibrary, const char *);
typedef CUresult unload_fn(CUlibrary);

static int find(const char *name, void **fn)
{
	enum cudaDriverEntryPointQueryResult found;

	*fn = NULL;
	CAIRN_CUDA(cudaGetDriverEntryPointByVersion(name, fn, 12000, cudaEnableDefault, &found));
	return *fn ? 0 : cairn_error(EOPNOTSUPP, "attn_variant: the driver has no %s", name);
}

static void unload(void *loaded)
{
	void *fn;

	if (!find("cuLibraryUnload", &fn))
		((unload_fn *)fn)(loaded);
}

static CUresult find_kernels(CUlibrary library, kernel_fn *get_kernel, int rotates_keys,
			     struct attn_variant_kernels *kernels)
{
	CUresult res = get_kernel((CUkernel *)&kernels->whole, library, "attn_variant_kernel");

	kernels->in_place = kernels->keys = NULL;
	if (res == CUDA_SUCCESS)
		res = get_kernel((CUkernel *)&kernels->slice, library, "attn_variant_slice_kernel");
	if (res == CUDA_SUCCESS && rotates_keys)
		res = get_kernel((CUkernel *)&kernels->in_place, library, "attn_variant_in_place_kernel");
	if (res == CUDA_SUCCESS && rotates_keys)
		res = get_kernel((CUkernel *)&kernels->keys, library, "attn_variant_keys_kernel");
	if (res == CUDA_SUCCESS)
		res = get_kernel((CUkernel *)&kernels->merge, library, "attn_variant_merge_kernel");
	return res;
}

static int load(const void *cubin, struct attn_variant_text *t, struct attn_variant_instance *instance)
{
	void *load_data, *get_kernel;
	struct attn_variant_kernels kernels;
	CUlibrary library;
	CUresult res;

	CAIRN_TRY(find("cuLibraryLoadData", &load_data));
	CAIRN_TRY(find("cuLibraryGetKernel", &get_kernel));
	res = ((load_fn *)load_data)(&library, cubin, NULL, NULL, 0, NULL, NULL, 0);
	if (res != CUDA_SUCCESS)
		return cairn_error(EIO, "attn_variant: %s: cuLibraryLoadData: %d", t->name, (int)res);
	res = find_kernels(library, (kernel_fn *)get_kernel, t->hooks >> ATTN_HOOK_KEY & 1, &kernels);
	if (res != CUDA_SUCCESS) {
		unload(library);
		return cairn_error(EIO, "attn_variant: %s: cuLibraryGetKernel: %d", t->name, (int)res);
	}
	t->unload = unload;
	instance->loaded = library;
	instance->kernels = kernels;
	__atomic_store_n(&instance->ready, 1, __ATOMIC_RELEASE);
	return 0;
}

static int compile_and_load(struct attn_variant_text *t, int32_t dtype, int32_t head_dim,
			    struct attn_variant_instance *instance)
{
	struct attn_variant_image image;
	int ret;

	if (instance->cubin)
		return load(instance->cubin, t, instance);
	CAIRN_TRY(attn_variant_compile_device(t->text, t->name, dtype, head_dim, &image));
	ret = load(image.cubin, t, instance);
	attn_variant_image_free(&image);
	return ret;
}

int attn_variant_load(int32_t variant, int32_t dtype, int32_t head_dim, struct attn_variant_kernels *kernels)
{
	struct attn_variant_text *t = attn_variant_text(variant);
	struct attn_variant_instance *instance = &t->instances[dtype == CAIRN_BF16][head_dim == 128];
	int ret = 0;

	if (!__atomic_load_n(&instance->ready, __ATOMIC_ACQUIRE)) {
		pthread_mutex_lock(&lock);
		if (!instance->ready)
			ret = compile_and_load(t, dtype, head_dim, instance);
		pthread_mutex_unlock(&lock);
	}
	if (!ret)
		*kernels = instance->kernels;
	return ret;
}

// SPDX-License-Identifier: Apache-2.0
#include "conformance/tables/tables.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "conformance/tables/plugin.h"
#include "primitives/base/error.h"

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

#ifndef CONFIG_CUDA
void cairn_profiler(int on)
{
	(void)on;
}
#endif

int cairn_impl_open(const char *name, struct cairn_impl *out)
{
	static const struct cairn_impl *const builtin[] = {
		&cairn_impl_ref, &cairn_impl_cpu,
#ifdef CONFIG_CUDA
		&cairn_impl_cuda, &cairn_impl_peers, &cairn_impl_flashinfer, &cairn_impl_unfused,
		&cairn_impl_ladder[0], &cairn_impl_ladder[1], &cairn_impl_ladder[2], &cairn_impl_ladder[3],
		&cairn_impl_ladder[4],
#endif
	};

	if (strchr(name, '/'))
		return cairn_plugin_open(name, out);
#ifdef CONFIG_CUDA
	if (cairn_impl_with_step(name, out))
		return cairn_impl_add_runtime(out);
#endif
	for (size_t i = 0; i < ARRAY_SIZE(builtin); i++) {
		if (strcmp(builtin[i]->name, name))
			continue;
		*out = *builtin[i];
		return cairn_impl_add_runtime(out);
	}
#ifndef CONFIG_CUDA
	if (!strcmp(name, "cuda") || !strcmp(name, "peers") || !strcmp(name, "flashinfer") ||
	    !strcmp(name, "unfused") || !strncmp(name, "ladder", 6) || !strncmp(name, "cuda:ladder", 11))
		return cairn_error(ENODEV, "%s: this build has no CUDA", name);
#endif
	if (name[0] && !access(name, F_OK))
		return cairn_error(EINVAL, "--impl: '%s': the path of a plug-in has a '/': write ./%s", name,
				   name);
	return cairn_error(EINVAL,
			   "--impl: '%s' is none of ref, cpu, cuda, peers, flashinfer, unfused, ladder1 to "
			   "ladder5, cuda:ladder1 to cuda:ladder4, nor a path with a '/'", name);
}

int cairn_impl_bits_vary(const struct cairn_impl *impl, size_t op)
{
#ifdef CONFIG_CUDA
	return op == offsetof(struct cairn_impl, attn_bwd) && impl->attn_bwd == cairn_impl_peers.attn_bwd;
#else
	(void)impl;
	(void)op;
	return 0;
#endif
}

int cairn_impl_has_own_rules(const struct cairn_impl *impl, size_t op)
{
#ifdef CONFIG_CUDA
	const struct cairn_impl *fi = &cairn_impl_flashinfer;

	return (op == offsetof(struct cairn_impl, rmsnorm) && impl->rmsnorm == fi->rmsnorm) ||
	       (op == offsetof(struct cairn_impl, sample) && impl->sample == fi->sample) ||
	       (op == offsetof(struct cairn_impl, mla_decode) && impl->mla_decode == fi->mla_decode) ||
	       (op == offsetof(struct cairn_impl, gemm_w4) && impl->gemm_w4 == cairn_impl_unfused.gemm_w4);
#else
	(void)impl;
	(void)op;
	return 0;
#endif
}

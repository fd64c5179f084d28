/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport_nccl - libnccl, opened at run time (libnccl.so.2 in the loader's search path)
 *
 * Building it needs NCCL's headers (CONFIG_NCCL). NVLink multicast is never used: NCCL_NVLS_ENABLE=0 is
 * set in the environment before the library is loaded, overriding any previous value.
 */
#ifndef CAIRN_TRANSPORT_NCCL_H
#define CAIRN_TRANSPORT_NCCL_H

#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NCCL_FUNCTIONS(F)	\
	F(GetVersion) F(GetUniqueId) F(GetErrorString) F(CommInitRankConfig) F(CommInitAll)	\
	F(CommGetAsyncError)								\
	F(CommAbort) F(CommDestroy) F(GroupStart) F(GroupEnd) F(Send) F(Recv)

struct nccl_functions {
#define F(name) __typeof__(nccl##name) *name;
	NCCL_FUNCTIONS(F)
#undef F
	void *lib;		/* for functions that not every version has */
};

/* Returns -ENODEV with a text if the library is not found. */
int nccl_load(const struct nccl_functions **out);
int nccl_failed(const struct nccl_functions *n, ncclResult_t result, const char *what);

#ifdef __cplusplus
}
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* fhbn_provider - internals shared by the files of fhbn's host side; the public contract is fhbn.h */
#ifndef CAIRN_FHBN_PROVIDER_H
#define CAIRN_FHBN_PROVIDER_H

#include "rdma/fhbn/fhbn.h"

/* A queue pair as the provider laid it out; host addresses, or GPU addresses if `local`. */
struct fhbn_layout {
	void *sq, *record, *cq, *cq_record;	/* record: the send queue's word */
	uint64_t *reg[2];
	size_t reg_bytes;			/* bytes from reg[0] on that a poster may store to */
	uint32_t num_blocks, num_cqes, qpn;
	int local, reg_is_io;			/* reg_is_io: pages of a device, not of memory */
};

/* The provider allocates its own card and queue objects; callers treat them as opaque. */
struct fhbn_ops {
	int (*open)(const struct cairn_fhbn_open_args *args, void **card);
	void (*close)(void *card);
	int (*add_key)(void *card, void *addr, size_t bytes, int is_gpu, uint32_t *lkey, uint32_t *rkey);
	int (*remove_key)(void *card, uint32_t lkey);
	int (*create)(void *card, const struct cairn_fhbn_qp_args *args, void **qp, struct fhbn_layout *out);
	int (*address)(void *card, void *qp, struct cairn_fhbn_address *out);
	int (*connect)(void *card, void *qp, const struct cairn_fhbn_address *peer);
	void (*destroy)(void *card, void *qp);
};

extern const struct fhbn_ops fhbn_bare_ops, fhbn_verbs_ops;

struct cairn_nic_bare;
/* Returns the model's table, opening its library unless it is preloaded; NULL with an error set. */
const struct cairn_nic_bare *fhbn_model(void);
/* Builds the path of a file in the program's directory; returns 0 if there is no such file. */
int fhbn_beside(const char *name, char *path, size_t len);

#ifdef __cplusplus
extern "C" {
#endif

/* In fhbn_memory.cu. They return -ENODEV without a GPU. */
int fhbn_gpu_alloc(size_t bytes, void **out);		/* zeroed */
void fhbn_gpu_free(void *p);
int fhbn_gpu_is(const void *p);				/* returns whether p is GPU memory */
/* Copies between host and GPU memory in any direction; complete on return. Uses its own stream, because
 * kernels may be running. */
int fhbn_gpu_copy(void *to, const void *from, size_t bytes);
/*
 * Copies in the order of this thread's calls, and may return early. fhbn_gpu_settle() waits for the copies.
 */
int fhbn_gpu_copy_async(void *to, const void *from, size_t bytes);
int fhbn_gpu_settle(void);
/* Maps host pages for the GPU. Mappings are counted, because several objects may share a page. *out: the
 * GPU's address. */
int fhbn_gpu_map(void *addr, size_t bytes, int is_io, void **out);
void fhbn_gpu_unmap(void *addr);

#ifdef __cplusplus
}
#endif
#endif

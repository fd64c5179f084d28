/* SPDX-License-Identifier: Apache-2.0 */
/* fhbn_provider - what the parts of fhbn's host side share; not for anyone else. The contract is fhbn.h. */
#ifndef CAIRN_FHBN_PROVIDER_H
#define CAIRN_FHBN_PROVIDER_H

#include "rdma/fhbn/fhbn.h"

/* A queue pair as the provider laid it out; addresses of the host, or of GPU memory if `local`. */
struct fhbn_layout {
	void *sq, *record, *cq, *cq_record;	/* record: send word */
	uint64_t *reg[2];
	size_t reg_bytes;			/* from reg[0] on, that a poster may store to */
	uint32_t num_blocks, num_cqes, qpn;
	int local, reg_is_io;			/* reg_is_io: pages of a device, not of memory */
};

/* A provider's own parts of a card and of a queue begin with nothing: it allocates them. */
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
/* The model's table, its library opened if it was not preloaded; NULL with an error set. */
const struct cairn_nic_bare *fhbn_model(void);
/* A path beside the program; 0 if there is no such file. */
int fhbn_beside(const char *name, char *path, size_t len);

#ifdef __cplusplus
extern "C" {
#endif

/* fhbn_memory.cu; -ENODEV without a GPU */
int fhbn_gpu_alloc(size_t bytes, void **out);		/* zeroed */
void fhbn_gpu_free(void *p);
int fhbn_gpu_is(const void *p);				/* memory of a GPU? */
/* Host or GPU, either way, done on return; on a stream of its own: kernels may be running. */
int fhbn_gpu_copy(void *to, const void *from, size_t bytes);
/* In order of this thread's calls, and maybe under way; done when fhbn_gpu_settle() has returned. */
int fhbn_gpu_copy_async(void *to, const void *from, size_t bytes);
int fhbn_gpu_settle(void);
/* Pages of the host for the GPU; counted, as several things may share a page. *out: the GPU's address. */
int fhbn_gpu_map(void *addr, size_t bytes, int is_io, void **out);
void fhbn_gpu_unmap(void *addr);

#ifdef __cplusplus
}
#endif
#endif

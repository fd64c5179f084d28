/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors - maps the weights of a Hugging Face checkpoint without copying them
 *
 *   file:   u64 header_bytes, little-endian | header, JSON | data
 *   header: { "name": { "dtype": "BF16", "shape": [4096, 4096], "data_offsets": [begin, end] }, ...
 *             "__metadata__": { string: string } }
 *   data:   tensors in C order, little-endian; [begin, end) counts from the end of the header.
 *
 * A file is accepted only if all of the following holds. Otherwise -EINVAL; the text names file and tensor.
 *   - header_bytes <= 100,000,000 and inside the file; the first byte of the header is '{'; the header is
 *     UTF-8 JSON without duplicate keys;
 *   - every tensor has a known dtype and a shape of at most 8 non-negative sizes, whose product times the
 *     bits of the dtype neither overflows nor leaves a fraction of a byte, and end - begin is exactly that;
 *   - sorted by offset, the tensors cover the data from its first to its last byte: no overlap, no hole,
 *     nothing before or after. Tensors of zero size may be anywhere between two others.
 *
 * A directory contains model.safetensors, or else model.safetensors.index.json, whose weight_map gives the
 * shard of each tensor. Shards are plain names of files in that directory, never paths. A tensor must be in
 * the shard that the index gives and in no other, and a shard has no tensor that the index omits.
 *
 * Alignment:  data is aligned as the file has it. Writers pad headers to 8 bytes and sort tensors by dtype,
 *             but the format guarantees nothing: check, or copy with memcpy.
 * Lifetime:   tensors, names and data live until cairn_safetensors_close(). Memory given to
 *             cairn_safetensors_open_mem() must live as long.
 * Threads:    everything after opening is read-only and may be shared.
 * Not checked: a file that shrinks while it is mapped kills the process (SIGBUS), as with any mapping.
 * Errors:     -EINVAL, -EIO (a file cannot be opened, read or mapped), -ENOMEM.
 * Source:     the format description of huggingface/safetensors.
 */
#ifndef CAIRN_SAFETENSORS_H
#define CAIRN_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#define CAIRN_SAFETENSORS_MAX_RANK	8
#define CAIRN_SAFETENSORS_MAX_HEADER	100000000

/* All element types of the format. Sub-byte types are packed; a tensor still fills whole bytes. */
enum cairn_st_dtype {
	CAIRN_ST_BOOL, CAIRN_ST_U8, CAIRN_ST_I8,
	CAIRN_ST_F4, CAIRN_ST_F6_E2M3, CAIRN_ST_F6_E3M2,
	CAIRN_ST_F8_E5M2, CAIRN_ST_F8_E4M3, CAIRN_ST_F8_E8M0,
	CAIRN_ST_F8_E4M3FNUZ, CAIRN_ST_F8_E5M2FNUZ,
	CAIRN_ST_I16, CAIRN_ST_U16, CAIRN_ST_F16, CAIRN_ST_BF16,
	CAIRN_ST_I32, CAIRN_ST_U32, CAIRN_ST_F32,
	CAIRN_ST_I64, CAIRN_ST_U64, CAIRN_ST_F64, CAIRN_ST_C64,
	CAIRN_ST_NUM_DTYPES
};

struct cairn_tensor {
	const char *name;
	const char *file;		/* file of the tensor, for messages */
	const void *data;		/* num_bytes, read-only; never NULL */
	size_t num_bytes;
	int64_t shape[CAIRN_SAFETENSORS_MAX_RANK];
	int32_t rank;			/* 0: a scalar */
	enum cairn_st_dtype dtype;
};

struct cairn_safetensors;

/* Opens a checkpoint directory or a single .safetensors file. */
int cairn_safetensors_open(const char *path, struct cairn_safetensors **out);
/* Opens one file that is already in memory. name: used in messages. */
int cairn_safetensors_open_mem(const void *bytes, size_t num_bytes, const char *name,
			       struct cairn_safetensors **out);
void cairn_safetensors_close(struct cairn_safetensors *st);	/* NULL is legal */

size_t cairn_safetensors_count(const struct cairn_safetensors *st);
/* Returns the bytes of all tensors together. */
size_t cairn_safetensors_bytes(const struct cairn_safetensors *st);
/* Returns tensor i in ascending order of name (strcmp); NULL: i >= count. */
const struct cairn_tensor *cairn_safetensors_at(const struct cairn_safetensors *st, size_t i);
/* Returns NULL if there is no such tensor. */
const struct cairn_tensor *cairn_safetensors_find(const struct cairn_safetensors *st,
						  const char *name);
/* Finds a tensor with exactly this shape; otherwise -EINVAL, naming checkpoint and tensor. */
int cairn_safetensors_get(const struct cairn_safetensors *st, const char *name, int32_t rank,
			  const int64_t *shape, const struct cairn_tensor **tensor);

const char *cairn_st_dtype_name(enum cairn_st_dtype dtype);	/* "BF16" */
unsigned cairn_st_dtype_bits(enum cairn_st_dtype dtype);
/* Returns the corresponding enum cairn_dtype (primitives/base/dtype.h), or -1. */
int cairn_st_to_dtype(enum cairn_st_dtype dtype);

#endif

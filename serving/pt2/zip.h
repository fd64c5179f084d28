/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zip - reads archives whose files are stored without compression, as PyTorch writes them
 *
 * The archive is mapped, and files are found in its central directory. Archives of more than 4 GiB (zip64)
 * are read, too. An archive is accepted only if its directory is whole, every file lies inside the archive
 * and has the same name in front of its data as in the directory, and no name occurs twice. Compressed and
 * encrypted files, and archives in several parts, are refused.
 *
 * Errors: -EINVAL (content), -EIO, -ENOMEM; the text names the archive, and the file if it is about one.
 * Source: PKWARE, .ZIP File Format Specification 6.3.10, sections 4.3 and 4.5.3.
 */
#ifndef CAIRN_ZIP_H
#define CAIRN_ZIP_H

#include <stddef.h>
#include <stdint.h>

struct cairn_zip;

/* Valid as long as the archive. */
struct cairn_zip_file {
	const char *name;		/* UTF-8 as stored; no NUL inside */
	const void *data;		/* [num_bytes], not aligned */
	size_t num_bytes;
	uint32_t crc;
};

int cairn_zip_open(struct cairn_zip **out, const char *path);
/* name: for error texts. The bytes must outlive the archive. */
int cairn_zip_open_mem(struct cairn_zip **out, const void *bytes, size_t num_bytes, const char *name);
void cairn_zip_close(struct cairn_zip *z);	/* NULL is legal */
size_t cairn_zip_count(const struct cairn_zip *z);
/* Returns file i in ascending order of names; NULL: i >= count. */
const struct cairn_zip_file *cairn_zip_at(const struct cairn_zip *z, size_t i);
/* Returns NULL if there is no such file. */
const struct cairn_zip_file *cairn_zip_find(const struct cairn_zip *z, const char *name);
/* Compares the checksum of the data with that in the directory. */
int cairn_zip_verify(const struct cairn_zip *z, const struct cairn_zip_file *f);

#endif

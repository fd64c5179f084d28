// SPDX-License-Identifier: Apache-2.0
/* fuzz_safetensors - any bytes as a file of weights; every tensor of one that opens lies inside it */
#include <string.h>

#include "fuzz.h"
#include "safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct cairn_safetensors *st = NULL;
	uint64_t length = size;
	unsigned sum = 0;
	uint8_t *file;

	/* the header's length is known here, so that every input may be a file */
	file = malloc(size + 8);
	if (!file)
		return 0;
	for (size_t i = 0; i + 1 < size; i++)
		if (data[i] == 0) {
			length = i;
			break;
		}
	memcpy(file, &length, 8);
	memcpy(file + 8, data, size);
	if (!cairn_safetensors_open_mem(file, size + 8, "fuzz", &st)) {
		for (size_t i = 0; i < cairn_safetensors_count(st); i++) {
			const struct cairn_tensor *t = cairn_safetensors_at(st, i);

			FUZZ_HOLDS(cairn_safetensors_find(st, t->name) == t &&
				   t->rank <= CAIRN_SAFETENSORS_MAX_RANK);
			for (size_t k = 0; k < t->num_bytes; k++)
				sum += ((const uint8_t *)t->data)[k];
		}
		cairn_safetensors_close(st);
	}
	free(file);
	return sum == 0xffffffffu;
}

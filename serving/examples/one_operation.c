// SPDX-License-Identifier: Apache-2.0
/*
 * one_operation - calls one operation of the table: a norm of two rows, on the host or on a GPU
 *
 *   cc one_operation.c $(pkg-config --cflags --libs cairn) && ./a.out [cuda|cpu|ref]
 *
 * All memory and streams come through the table, so the same lines run on every table.
 */
#include <cairn.h>
#include <stdio.h>

enum { ROWS = 2, DIM = 8 };

static int fail(const struct cairn_impl *table, const char *what)
{
	fprintf(stderr, "%s: %s\n", what, table ? table->last_error() : cairn_last_error());
	return 1;
}

int main(int argc, char **argv)
{
	const float x[ROWS][DIM] = { { 1, 2, 3, 4, 5, 6, 7, 8 }, { 1, -1, 1, -1, 1, -1, 1, -1 } };
	const float weight[DIM] = { 1, 1, 1, 1, 2, 2, 2, 2 };
	const char *name = argc > 1 ? argv[1] : "cpu";
	const struct cairn_impl *table = cairn_table(name, CAIRN_ABI_VERSION);
	void *stream, *in, *scale, *out;
	float result[ROWS][DIM];

	if (!table || table->init(0))
		return fail(table, name);
	if (table->stream_create(&stream) || table->mem_alloc(&in, sizeof(x)) ||
	    table->mem_alloc(&scale, sizeof(weight)) || table->mem_alloc(&out, sizeof(result)))
		return fail(table, "memory");
	const struct cairn_rmsnorm_args args = {
		.size = sizeof(args), .out = out, .x = in, .weight = scale, .rows = ROWS, .dim = DIM,
		.dtype = CAIRN_F32, .eps = 1e-6f,
	};
	if (table->mem_copy(in, x, sizeof(x), CAIRN_COPY_TO_DEVICE, stream) ||
	    table->mem_copy(scale, weight, sizeof(weight), CAIRN_COPY_TO_DEVICE, stream) ||
	    table->rmsnorm(&args, stream) ||
	    table->mem_copy(result, out, sizeof(result), CAIRN_COPY_TO_HOST, stream) ||
	    table->stream_sync(stream))
		return fail(table, "rmsnorm");
	printf("%s, table %s\n", cairn_version(), name);
	for (int i = 0; i < ROWS * DIM; i++)
		printf("%.4f%c", result[i / DIM][i % DIM], i % DIM < DIM - 1 ? ' ' : '\n');
	table->mem_free(in);
	table->mem_free(scale);
	table->mem_free(out);
	table->stream_destroy(stream);
	table->fini();
	return 0;
}

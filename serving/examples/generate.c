// SPDX-License-Identifier: Apache-2.0
/*
 * generate - continues a prompt: a checkpoint, its tokenizer and the engine
 *   cc generate.c $(pkg-config --cflags --libs cairn) && ./a.out DIR 'What is 12 + 30?' [cuda|cpu]
 */
#include <cairn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int print_token(void *ctx, int32_t index, const struct cairn_token *token)
{
	const char *text;
	size_t len;

	(void)index;
	if (cairn_token_stream_push(ctx, token->id, &text, &len))
		return 1;	/* ends the answer */
	return fwrite(text, 1, len, stdout) != len;
}

int main(int argc, char **argv)
{
	const struct cairn_engine_options options = { .max_batch = 1, .max_context = 512 };
	struct cairn_request request = { .id = 1, .max_new_tokens = 64, .on_token = print_token };
	struct cairn_tokenizer *tokenizer = NULL;
	struct cairn_token_stream *text = NULL;
	struct cairn_engine *engine = NULL;
	struct cairn_model *model = NULL;
	const struct cairn_impl *table = cairn_table(argc > 3 ? argv[3] : "cpu", CAIRN_ABI_VERSION);
	int32_t *ids = NULL;
	size_t num_ids = 0;
	int ret = 1;

	if (argc < 3) {
		fprintf(stderr, "usage: %s DIR PROMPT [cuda|cpu]\n", argv[0]);
		return 2;
	}
	if (!table || table->init(0) || cairn_tokenizer_open(argv[1], &tokenizer) ||
	    cairn_tokenizer_encode(tokenizer, argv[2], strlen(argv[2]), CAIRN_ENCODE_ADD_SPECIAL, &ids,
				   &num_ids) ||
	    cairn_token_stream_new(tokenizer, true, &text) ||
	    cairn_model_load(&model, table, argv[1], NULL, NULL) ||
	    cairn_engine_create(&engine, model, &options))
		goto out;
	request.prompt = ids;
	request.num_prompt = (int32_t)num_ids;
	request.ctx = text;
	ret = cairn_engine_submit(engine, &request) || cairn_engine_run(engine);
	printf("\n");
out:
	if (ret)
		fprintf(stderr, "%s: %s\n", argv[0], cairn_last_error());
	cairn_engine_destroy(engine);
	cairn_model_free(model);
	cairn_token_stream_free(text);
	cairn_tokenizer_free(tokenizer);
	free(ids);
	return ret;
}

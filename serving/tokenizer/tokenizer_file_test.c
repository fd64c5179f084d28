/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_file - invalid files are rejected with one line that names file and field */
#include <stdlib.h>
#include <string.h>

#include "conformance/harness.h"
#include "serving/base/json_test.h"
#include "serving/tokenizer/tokenizer.h"

/* A complete tokenizer: a, b, ab and one added token. Each test changes one member. */
static const char good[] =
	"{'version':'1.0','truncation':null,'padding':null,'added_tokens':[{'id':3,'content':'<s>',"
	"'single_word':false,'lstrip':false,'rstrip':false,'normalized':false,'special':true}],"
	"'normalizer':{'type':'Sequence','normalizers':[{'type':'NFC'},{'type':'Replace',"
	"'pattern':{'String':'c'},'content':'b'}]},"
	"'pre_tokenizer':{'type':'Split','pattern':{'Regex':'x+'},'behavior':'Isolated','invert':"
	"false},"
	"'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'<s>',"
	"'type_id':0}},"
	"{'Sequence':{'id':'A','type_id':0}}],'pair':[],'special_tokens':{'<s>':{'id':'<s>','ids':"
	"[3],"
	"'tokens':['<s>']}}},'decoder':{'type':'Fuse'},"
	"'model':{'type':'BPE','dropout':null,'unk_token':null,'vocab':{'a':0,'b':1,'ab':2},"
	"'merges':['a b']}}";

struct change {
	const char *from, *to;	/* from NULL: to is the whole file */
	int err;
	const char *field, *says;	/* both must occur in the error message */
};

static const struct change changes[] = {
	/* vocabulary and merges */
	{ "'ab':2", "'ab':3", EINVAL, "model.vocab", "gap" },
	{ "'ab':2", "'ab':1", EINVAL, "model.vocab", "another token" },
	{ "'ab':2", "'ab':-1", EINVAL, "model.vocab", "integer" },
	{ "'ab':2", "'ab':2.0", EINVAL, "model.vocab", "integer" },
	{ "'ab':2", "'ab':99999999999999999999", EINVAL, "line 1", "JSON" },
	{ "'ab':2", "'a':2", EINVAL, "line 1", "duplicate" },
	{ "{'a':0,'b':1,'ab':2}", "{}", EINVAL, "model.vocab", "0 tokens" },
	{ "{'a':0,'b':1,'ab':2}", "[]", EINVAL, "model.vocab", "an object" },
	{ "'a b'", "'a c'", EINVAL, "model.merges[0]", "\"c\"" },
	{ "'a b'", "'c b'", EINVAL, "model.merges[0]", "\"c\"" },
	{ "'a b'", "'b a'", EINVAL, "model.merges[0]", "\"ba\"" },
	{ "'a b'", "'ab a'", EINVAL, "model.merges[0]", "\"aba\"" },
	{ "'a b'", "'a b a'", EINVAL, "model.merges[0]", "two tokens" },
	{ "'a b'", "'ab'", EINVAL, "model.merges[0]", "two tokens" },
	{ "'a b'", "7", EINVAL, "model.merges[0]", "two tokens" },
	{ "'a b'", "['a']", EINVAL, "model.merges[0]", "two tokens" },
	{ "'a b'", "'a b',['a','b']", EINVAL, "model.merges[1]", "two tokens" },
	{ "'merges':['a b']", "'merges':{}", EINVAL, "model.merges", "an array" },
	{ "'merges'", "'nothing'", EINVAL, "model.merges", "missing" },
	{ "'vocab'", "'nothing'", EINVAL, "model.vocab", "missing" },
	{ "'BPE'", "'Unigram'", EOPNOTSUPP, "model.type", "Unigram" },
	{ "'dropout':null", "'dropout':0.1", EOPNOTSUPP, "model.dropout", "training" },
	{ "'dropout':null", "'end_of_word_suffix':'</w>'", EOPNOTSUPP, "model.end_of_word_suffix",
	  "" },
	{ "'dropout':null", "'continuing_subword_prefix':'##'", EOPNOTSUPP,
	  "continuing_subword_prefix", "" },
	{ "'dropout':null", "'fuse_unk':1", EINVAL, "model.fuse_unk", "true or false" },
	{ "'unk_token':null", "'unk_token':0", EINVAL, "model.unk_token", "a string" },
	/* added tokens */
	{ "'id':3,", "'id':4,", EINVAL, "added_tokens[0].id", "must be 3" },
	{ "'id':3,", "'id':'3',", EINVAL, "added_tokens[0].id", "an integer" },
	{ "'content':'<s>'", "'content':'ab'", EINVAL, "added_tokens[0].id", "must be 2" },
	{ "'content':'<s>'", "'content':''", EINVAL, "added_tokens[0].content", "0 bytes" },
	{ "'lstrip':false,", "", EINVAL, "added_tokens[0].lstrip", "missing" },
	{ "'special':true}],", "'special':true},7],", EINVAL, "added_tokens[1]", "an object" },
	{ "'special':true}],",
	  "'special':true},{'id':4,'content':'<s>','single_word':false,'lstrip':false,'rstrip':"
	  "false,'normalized':false,'special':true}],",
	  EINVAL, "added_tokens", "both match" },
	/* components */
	{ "{'type':'NFC'}", "{'type':'Lowercase'}", EOPNOTSUPP, "normalizer.normalizers[0].type",
	  "Lowercase" },
	{ "{'type':'NFC'}", "{'type':'Precompiled'}", EOPNOTSUPP, "normalizer.normalizers[0].type",
	  "Precompiled" },
	{ "{'type':'NFC'}", "{}", EINVAL, "normalizer.normalizers[0].type", "missing" },
	{ "{'type':'NFC'}", "null", EINVAL, "normalizer.normalizers[0]", "an object" },
	{ "{'String':'c'}", "{'String':''}", EINVAL, "normalizer.normalizers[1].pattern", "empty" },
	{ "{'String':'c'}", "'c'", EINVAL, "normalizer.normalizers[1].pattern", "an object" },
	{ "{'String':'c'}", "{'Glob':'c'}", EINVAL, "normalizer.normalizers[1].pattern", "Regex" },
	{ "'type':'Split'", "'type':'BertPreTokenizer'", EOPNOTSUPP, "pre_tokenizer.type",
	  "BertPreTokenizer" },
	{ "'Isolated'", "'isolated'", EINVAL, "pre_tokenizer.behavior", "isolated" },
	{ "'invert':false", "'invert':0", EINVAL, "pre_tokenizer.invert", "true or false" },
	{ "'x+'", "'(x'", EINVAL, "pre_tokenizer.pattern", "parenthes" },
	{ "'x+'", "'[x'", EINVAL, "pre_tokenizer.pattern", "bracket" },
	{ "'x+'", "''", EINVAL, "pre_tokenizer.pattern", "0 bytes" },
	{ "'x+'", "'\\\\bx'", EOPNOTSUPP, "pre_tokenizer.pattern", "\\\\b" },
	{ "'x+'", "'[a-z&&[^x]]'", EOPNOTSUPP, "pre_tokenizer.pattern", "intersection" },
	{ "'x+'", "'(*NO_JIT)x'", EOPNOTSUPP, "pre_tokenizer.pattern", "verb" },
	{ "'x+'", "'(x)\\\\1'", EOPNOTSUPP, "pre_tokenizer.pattern", "escape" },
	{ "'x+'", "'x{2}+'", EOPNOTSUPP, "pre_tokenizer.pattern", "interval" },
	{ "'x+'", "'\\\\p{Klingon}'", EINVAL, "pre_tokenizer.pattern", "property" },
	{ "{'type':'Split','pattern':{'Regex':'x+'},'behavior':'Isolated','invert':false}",
	  "{'type':'Metaspace','replacement':'__','prepend_scheme':'first'}", EINVAL,
	  "pre_tokenizer.replacement", "one character" },
	{ "{'type':'Split','pattern':{'Regex':'x+'},'behavior':'Isolated','invert':false}",
	  "{'type':'Metaspace','replacement':'_','prepend_scheme':'last'}", EINVAL,
	  "prepend_scheme", "last" },
	{ "{'type':'Split','pattern':{'Regex':'x+'},'behavior':'Isolated','invert':false}",
	  "{'type':'Metaspace','replacement':'_','add_prefix_space':false}", EINVAL,
	  "add_prefix_space", "contradicts" },
	{ "{'type':'Split','pattern':{'Regex':'x+'},'behavior':'Isolated','invert':false}",
	  "{'type':'Metaspace','replacement':'_','prepend_scheme':'first'}", EOPNOTSUPP,
	  "normalizer", "first" },
	{ "{'type':'Fuse'}", "{'type':'WordPiece'}", EOPNOTSUPP, "decoder.type", "WordPiece" },
	{ "{'type':'Fuse'}", "{'type':'Strip','content':' ','start':-1,'stop':0}", EINVAL,
	  "decoder.start", "0 to" },
	{ "'TemplateProcessing'", "'BertProcessing'", EOPNOTSUPP, "post_processor.type",
	  "BertProcessing" },
	{ "'ids':[3]", "'ids':[4]", EINVAL, "post_processor.special_tokens", "0 to 3" },
	{ "'ids':[3]", "'ids':3", EINVAL, "post_processor.special_tokens", "no ids" },
	{ "{'id':'A',", "{'id':'B',", EOPNOTSUPP, "post_processor.single[1]", "Sequence A" },
	{ "{'Sequence':{'id':'A','type_id':0}}", "{}", EINVAL, "post_processor.single[1]",
	  "Sequence" },
	{ ",{'Sequence':{'id':'A','type_id':0}}", "", EOPNOTSUPP, "post_processor.single",
	  "without" },
	/* the file as a whole */
	{ "'1.0'", "'2.0'", EOPNOTSUPP, "version", "2.0" },
	{ "'model'", "'modell'", EINVAL, "model", "missing" },
	{ NULL, "", EINVAL, "line 1", "JSON" },
	{ NULL, "[]", EINVAL, "", "an object" },
	{ NULL, "{} {}", EINVAL, "line 1", "end of file" },
	{ NULL, "{'a\xff':1}", EINVAL, "line 1", "0xff" },
	{ NULL, "\xef\xbb\xbf{}", EINVAL, "line 1", "JSON" },
	{ NULL, "{'version': 1}", EINVAL, "version", "a string" },
};

static void refused(struct cairn_test *t)
{
	for (size_t i = 0; i < ARRAY_SIZE(changes); i++) {
		const struct change *c = &changes[i];
		struct cairn_tokenizer *tok = NULL;
		char *text = cairn_json_text(good, c->from, c->to);

		if (!EXPECT(t, text != NULL))
			continue;
		if (!EXPECT(t, cairn_tokenizer_open_mem(text, strlen(text), "dir/tokenizer.json",
							&tok) == -c->err) ||
		    !EXPECT_CONTAINS(t, cairn_last_error(), "dir/tokenizer.json") ||
		    !EXPECT_CONTAINS(t, cairn_last_error(), c->field) ||
		    !EXPECT_CONTAINS(t, cairn_last_error(), c->says))
			cairn_note(t, "\"%s\" for \"%s\": \"%s\"", c->to,
				   c->from ? c->from : "everything", cairn_last_error());
		EXPECT(t, tok == NULL);
		EXPECT(t, !strchr(cairn_last_error(), '\n'));
		cairn_tokenizer_free(tok);
		free(text);
	}
}

/* The unchanged file is accepted and encodes as specified. */
static void accepted(struct cairn_test *t)
{
	struct cairn_tokenizer *tok = NULL;
	size_t num_ids = 0, len = 0;
	int32_t *ids = NULL;
	char *text = cairn_json_text("", NULL, good);
	int ret;

	ret = cairn_tokenizer_open_mem(text, strlen(text), "x", &tok);
	free(text);
	if (!EXPECT(t, !ret))
		return;
	EXPECT(t, cairn_tokenizer_size(tok) == 4);
	EXPECT(t, !cairn_tokenizer_encode(tok, "acxxzab", 7, CAIRN_ENCODE_ADD_SPECIAL, &ids,
					  &num_ids));
	EXPECT(t, num_ids == 3 && ids[0] == 3 && ids[1] == 2 &&
			  ids[2] == 2); /* x and z are not in the vocabulary */
	EXPECT(t, !cairn_tokenizer_decode(tok, ids, num_ids, true, &text, &len) &&
			  !strcmp(text, "abab"));
	free(text);
	free(ids);
	cairn_tokenizer_free(tok);
}

/* A file truncated at any byte is rejected. */
static void truncated(struct cairn_test *t)
{
	char *whole = cairn_json_text("", NULL, good);

	for (size_t n = 0; n + 1 < sizeof(good); n++) {
		struct cairn_tokenizer *tok = NULL;
		char *text =
			malloc(n + !n); /* exact size, so that ASan reports a read past the end */

		if (!EXPECT(t, whole && text))
			break;
		memcpy(text, whole, n);
		EXPECT(t, cairn_tokenizer_open_mem(text, n, "cut.json", &tok) == -EINVAL && !tok);
		EXPECT_CONTAINS(t, cairn_last_error(), "cut.json: line 1");
		free(text);
	}
	free(whole);
}

static void files(struct cairn_test *t)
{
	struct cairn_tokenizer *tok = NULL;
	char path[4096], *text = cairn_json_text("", NULL, good);

	EXPECT(t, cairn_tokenizer_open("/nonexistent/tokenizer.json", &tok) == -EIO);
	EXPECT_CONTAINS(t, cairn_last_error(), "/nonexistent/tokenizer.json: No such file");
	EXPECT(t, cairn_tokenizer_open(cairn_tmpdir(t), &tok) == -EIO);
	EXPECT_CONTAINS(t, cairn_last_error(), "/tokenizer.json: No such file");
	EXPECT(t, cairn_tokenizer_open("/dev/zero", &tok) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "regular file");
	cairn_tmpfile(t, path, sizeof(path), "tokenizer.json", text, strlen(text));
	free(text);
	EXPECT(t, !cairn_tokenizer_open(path, &tok));
	cairn_tokenizer_free(tok);
	EXPECT(t, !cairn_tokenizer_open(cairn_tmpdir(t), &tok));
	cairn_tokenizer_free(tok);
}

/* A model without the unk it names loads, but a text that needs it is an error, as in the library. */
static void missing_unk(struct cairn_test *t)
{
	struct cairn_tokenizer *tok = NULL;
	char *text = cairn_json_text(good, "'unk_token':null", "'unk_token':'<unk>'");
	size_t num_ids = 0;
	int32_t *ids = NULL;

	if (!EXPECT(t, text && !cairn_tokenizer_open_mem(text, strlen(text), "x.json", &tok)))
		goto out;
	EXPECT(t, !cairn_tokenizer_encode(tok, "abc", 3, 0, &ids, &num_ids) && num_ids == 2);
	free(ids);
	EXPECT(t, cairn_tokenizer_encode(tok, "abz", 3, 0, &ids, &num_ids) == -EINVAL);
	EXPECT_CONTAINS(t, cairn_last_error(), "x.json: model.unk_token");
	cairn_tokenizer_free(tok);
out:
	free(text);
}

static const struct cairn_unit units[] = {
	{ "accepted", accepted }, { "refused", refused }, { "truncated", truncated },
	{ "files", files }, { "missing_unk", missing_unk },
};

const struct cairn_family cairn_tokenizer_file_family = {
	.stage = "serving",
	.name = "tokenizer_file",
	.units = units,
	.num_units = ARRAY_SIZE(units),
};

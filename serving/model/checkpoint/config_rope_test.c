// SPDX-License-Identifier: Apache-2.0
/* config_rope_test - rotary embeddings whose frequencies depend on the length: longrope and dynamic */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "conformance/harness.h"
#include "serving/model/checkpoint/config_test.h"

static const char mistral[] =
	"{'architectures':['MistralForCausalLM'],'head_dim':8,'hidden_size':64,'intermediate_size':64,"
	"'max_position_embeddings':8192,'model_type':'mistral','num_attention_heads':8,'num_hidden_layers':1,"
	"'num_key_value_heads':8,'original_max_position_embeddings':1024,"
	"'rope_scaling':{'long_factor':[1,2,4,8.5],'short_factor':[1,1.25,1.5,1.75],'type':'longrope'},"
	"'sliding_window':null,'vocab_size':32000}";

#define ROPE	"'rope_scaling':{'long_factor':[1,2,4,8.5],'short_factor':[1,1.25,1.5,1.75]," \
		"'type':'longrope'}"
#define LENGTH	"'original_max_position_embeddings':1024"

static void expect_divided(struct cairn_test *t, const struct cairn_model_config *c, const double *by)
{
	float freq[4];

	cairn_rope_frequencies(c, freq);
	for (int i = 0; i < 4; i++)
		EXPECT(t, fabs((double)freq[i] * by[i] * pow(10, i) - 1) < 1e-6);
}

/* The long list applies if the context exceeds the trained length. cos, sin: sqrt(1 + ln 8 / ln 1024). */
static void longrope(struct cairn_test *t)
{
	struct cairn_model_config c = { 0 };
	char *text;

	if (!EXPECT(t, !parse(mistral, NULL, &c)))
		return;
	EXPECT(t, c.rope.scaling == CAIRN_ROPE_LONGROPE && c.rope.original_max_position_embeddings == 1024);
	EXPECT(t, fabs(c.rope.attention_factor - sqrt(1.3)) < 1e-12);
	EXPECT(t, fabs(cairn_softmax_scale(&c) * sqrt(8) - 1.3) < 1e-12);
	expect_divided(t, &c, (const double[]){ 1, 2, 4, 8.5 });

	text = cairn_json_text(mistral, "'max_position_embeddings':8192", "'max_position_embeddings':1024");
	if (EXPECT(t, text && !parse(text, NULL, &c))) {
		EXPECT(t, c.rope.attention_factor == 1);
		expect_divided(t, &c, (const double[]){ 1, 1.25, 1.5, 1.75 });
	}
	free(text);
	text = cairn_json_text(mistral, "'type':'longrope'", "'type':'longrope','factor':32");
	EXPECT(t, text && !parse(text, NULL, &c) && fabs(c.rope.attention_factor - sqrt(1.5)) < 1e-12);
	free(text);
	text = cairn_json_text(mistral, "'type':'longrope'", "'type':'longrope','attention_factor':1.5");
	EXPECT(t, text && !parse(text, NULL, &c) && fabs(cairn_softmax_scale(&c) * sqrt(8) - 2.25) < 1e-12);
	free(text);
	text = cairn_json_text(mistral, LENGTH "," ROPE, "'rope_parameters':{'long_factor':[1,2,4,8.5],"
			       "'short_factor':[1,1,1,1],'rope_type':'longrope','rope_theta':10000,"
			       LENGTH "}");
	if (EXPECT(t, text && !parse(text, NULL, &c)))
		expect_divided(t, &c, (const double[]){ 1, 2, 4, 8.5 });
	free(text);
}

/* Dynamic scaling begins beyond max_position_embeddings, which no sequence exceeds. */
static void dynamic(struct cairn_test *t)
{
	struct cairn_model_config c = { 0 };
	char *text = cairn_json_text(mistral, ROPE, "'rope_scaling':{'rope_type':'dynamic','factor':4}");

	if (EXPECT(t, text && !parse(text, NULL, &c))) {
		EXPECT(t, c.rope.scaling == CAIRN_ROPE_NONE && c.rope.attention_factor == 1);
		expect_divided(t, &c, (const double[]){ 1, 1, 1, 1 });
	}
	free(text);
}

static const struct change changes[] = {
	{ "[1,2,4,8.5]", "[1,2,4]", EINVAL, "rope_scaling.long_factor: must have 4 numbers, one for each" },
	{ "[1,1.25,1.5,1.75]", "[1,1.25,1.5,1.75,2]", EINVAL, "rope_scaling.short_factor: must have 4" },
	{ "[1,2,4,8.5]", "[1,2,'4',8.5]", EINVAL, "rope_scaling.long_factor[2]: must be a number above 0" },
	{ "[1,2,4,8.5]", "[0,2,4,8.5]", EINVAL, "rope_scaling.long_factor[0]: must be a number above 0" },
	{ "'long_factor':[1,2,4,8.5],", "", EINVAL, "rope_scaling.long_factor: is missing" },
	{ "'short_factor':[1,1.25,1.5,1.75],", "", EINVAL, "rope_scaling.short_factor: is missing" },
	{ LENGTH ",", "", EINVAL, "original_max_position_embeddings: is missing" },
	{ "'type':'longrope'", "'type':'longrope','original_max_position_embeddings':2048", EINVAL,
	  "original_max_position_embeddings: 1024, but rope_scaling.original_max_position_embeddings is "
	  "2048" },
	{ "'type':'longrope'", "'type':'longrope','attention_factor':0", EINVAL,
	  "rope_scaling.attention_factor: must be above 0" },
	{ ROPE, "'rope_scaling':{'rope_type':'dynamic'}", EINVAL, "rope_scaling.factor: is missing" },
	{ ROPE, "'rope_scaling':{'rope_type':'dynamic','factor':0}", EINVAL, "rope_scaling.factor: must be" },
};

static void refused(struct cairn_test *t)
{
	refused_of(t, mistral, changes, ARRAY_SIZE(changes));
}

static const struct cairn_unit units[] = {
	{ "longrope", longrope }, { "dynamic", dynamic }, { "refused", refused },
};

const struct cairn_family cairn_config_rope_family = {
	.stage = "serving", .name = "config_rope", .units = units, .num_units = ARRAY_SIZE(units),
};

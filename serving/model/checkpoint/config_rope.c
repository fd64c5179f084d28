// SPDX-License-Identifier: Apache-2.0
/*
 * config_rope - reads the rotary embedding from config.json and computes frequencies and softmax scale
 *
 * YaRN (Peng et al. 2023) slows down elements that turn less than beta_slow times within the trained length,
 * keeps those that turn more than beta_fast times, and blends between the two by a ramp over the elements. It
 * also multiplies cos and sin by a factor. If mscale_all_dim is given, DeepSeek's code also multiplies the
 * softmax scale by the square of 1 + 0.1 mscale_all_dim ln(factor), and divides the factor of cos and sin by
 * 1 + 0.1 mscale_all_dim ln(factor), which would otherwise count twice.
 *
 * LongRoPE (Ding et al. 2024) divides each frequency by a divisor of its own. A checkpoint has two lists of
 * divisors, for sequences within the trained length and for longer ones. transformers selects the list by the
 * current length of a sequence, so that when a sequence outgrows the trained length its cached keys keep the
 * wrong rotation. Here, as in vLLM, all sequences use the long list if max_position_embeddings exceeds the
 * trained length.
 *
 * "dynamic" changes frequencies only for sequences longer than max_position_embeddings, and there are none.
 */
#include "serving/model/checkpoint/config_impl.h"

#include <math.h>

#include "primitives/base/error.h"

static int get_llama3(const json_t *obj, struct cairn_json_at at, struct cairn_rope_config *rope)
{
	CAIRN_TRY(cairn_json_number(obj, at, "low_freq_factor", true, 0, 1e6,
				    &rope->low_freq_factor));
	CAIRN_TRY(cairn_json_number(obj, at, "high_freq_factor", true, 0, 1e6,
				    &rope->high_freq_factor));
	if (!(rope->low_freq_factor < rope->high_freq_factor))
		return cairn_error(EINVAL, "%s: %slow_freq_factor: %g must be below high_freq_factor %g",
				   at.file, at.where, rope->low_freq_factor, rope->high_freq_factor);
	rope->scaling = CAIRN_ROPE_LLAMA3;
	return 0;
}

static double yarn_mscale(double factor, double mscale)
{
	return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

static int get_yarn(const json_t *obj, struct cairn_json_at at, struct cairn_model_config *c)
{
	struct cairn_rope_config *rope = &c->rope;
	bool truncates = true;
	double mscale = 0;

	rope->beta_fast = 32;
	rope->beta_slow = 1;
	CAIRN_TRY(cairn_json_number(obj, at, "beta_fast", false, 0, 1e6, &rope->beta_fast));
	CAIRN_TRY(cairn_json_number(obj, at, "beta_slow", false, 0, 1e6, &rope->beta_slow));
	if (!(rope->beta_slow < rope->beta_fast))
		return cairn_error(EINVAL, "%s: %sbeta_slow: %g must be below beta_fast %g", at.file,
				   at.where, rope->beta_slow, rope->beta_fast);
	CAIRN_TRY(cairn_json_bool(obj, at, "truncate", false, &truncates));
	rope->untruncated = !truncates;
	CAIRN_TRY(cairn_json_number(obj, at, "mscale", false, 0, 1e3, &mscale));
	CAIRN_TRY(cairn_json_number(obj, at, "mscale_all_dim", false, 0, 1e3, &rope->mscale_all_dim));
	if ((mscale > 0) != (rope->mscale_all_dim > 0))		/* implementations disagree on this case */
		return cairn_error(EOPNOTSUPP, "%s: %smscale: is not supported without mscale_all_dim, nor "
				   "the reverse", at.file, at.where);
	rope->attention_factor = mscale > 0 ? yarn_mscale(rope->factor, mscale) /
		yarn_mscale(rope->factor, rope->mscale_all_dim) : yarn_mscale(rope->factor, 1);
	CAIRN_TRY(cairn_json_number(obj, at, "attention_factor", false, 0, 1e3, &rope->attention_factor));
	/* Only part of a latent head is rotated, so the scores cannot absorb a factor of cos and sin. */
	if (c->latent.kv_lora_rank && rope->attention_factor != 1)
		return cairn_error(EOPNOTSUPP, "%s: %smscale: with latent attention cos and sin must have "
				   "the factor 1 (mscale equal to mscale_all_dim), not %g", at.file, at.where,
				   rope->attention_factor);
	rope->scaling = CAIRN_ROPE_YARN;
	return 0;
}

/* Reads a list of one number for each frequency. */
static int get_divisors(const json_t *obj, struct cairn_json_at at, const char *key, int num, float *divisors)
{
	json_t *list;

	CAIRN_TRY(cairn_json_child(obj, at, key, true, JSON_ARRAY, &list));
	if (json_array_size(list) != (size_t)num)
		return cairn_error(EINVAL, "%s: %s%s: must have %d numbers, one for each frequency, has %zu",
				   at.file, at.where, key, num, json_array_size(list));
	for (int i = 0; i < num; i++) {
		double v = json_number_value(json_array_get(list, (size_t)i));

		if (!json_is_number(json_array_get(list, (size_t)i)) || !(v > 0 && v <= 1e6))
			return cairn_error(EINVAL, "%s: %s%s[%d]: must be a number above 0 and at most 1e+06",
					   at.file, at.where, key, i);
		divisors[i] = (float)v;
	}
	return 0;
}

static int get_longrope(const json_t *root, struct cairn_json_at above, const json_t *obj,
			struct cairn_json_at at, struct cairn_model_config *c)
{
	static const char *const key = "original_max_position_embeddings";
	struct cairn_rope_config *rope = &c->rope;
	const int num = cairn_rope_dim(c) / 2;
	float unused[CAIRN_MAX_HEAD_DIM / 2];
	int32_t length = -1, beside = -1;
	double factor;
	int is_long;

	if (json_object_get(obj, key))
		CAIRN_TRY(cairn_config_size(obj, at, key, CAIRN_MAX_POSITIONS, &length));
	if (json_object_get(root, key) || length < 0)
		CAIRN_TRY(cairn_config_size(root, above, key, CAIRN_MAX_POSITIONS, &beside));
	if (length > 0 && beside > 0 && length != beside)
		return cairn_error(EINVAL, "%s: %s: %d, but %s%s is %d", at.file, key, beside, at.where, key,
				   length);
	length = length > 0 ? length : beside;
	is_long = c->max_position_embeddings > length;
	CAIRN_TRY(get_divisors(obj, at, "long_factor", num, is_long ? rope->divisors : unused));
	CAIRN_TRY(get_divisors(obj, at, "short_factor", num, is_long ? unused : rope->divisors));
	factor = (double)c->max_position_embeddings / length;
	CAIRN_TRY(cairn_json_number(obj, at, "factor", false, 0, 1e6, &factor));
	rope->attention_factor = factor > 1 && length > 1 ? sqrt(1 + log(factor) / log(length)) : 1;
	CAIRN_TRY(cairn_json_number(obj, at, "attention_factor", false, 0, 1e3, &rope->attention_factor));
	if (c->latent.kv_lora_rank && rope->attention_factor != 1)
		return cairn_error(EOPNOTSUPP, "%s: %sattention_factor: %g is not supported with latent "
				   "attention (1 is)", at.file, at.where, rope->attention_factor);
	rope->original_max_position_embeddings = length;
	rope->scaling = CAIRN_ROPE_LONGROPE;
	return 0;
}

/* Reads the trained length. If the key is also outside the rope object, transformers 5 prefers that value and
 * 4 ignores it, so a different value there is refused. */
static int get_original_length(const json_t *root, struct cairn_json_at above, const json_t *obj,
			       struct cairn_json_at at, struct cairn_model_config *c)
{
	const char *const key = "original_max_position_embeddings";
	int32_t length = c->max_position_embeddings, beside;

	CAIRN_TRY(cairn_config_size(obj, at, key, CAIRN_MAX_POSITIONS, &length));
	beside = length;
	CAIRN_TRY(cairn_config_size(root, above, key, CAIRN_MAX_POSITIONS, &beside));
	if (beside != length)
		return cairn_error(EOPNOTSUPP, "%s: %s: %d is not supported, as %s%s is %d", at.file, key,
				   beside, at.where, key, length);
	c->rope.original_max_position_embeddings = length;
	return 0;
}

/* Reads the kind of scaling and its parameters from rope_scaling or rope_parameters. */
static int get_scaling(const json_t *root, struct cairn_json_at above, const json_t *obj,
		       struct cairn_json_at at, struct cairn_model_config *c)
{
	enum { DEFAULT, LINEAR, LLAMA3, YARN, LONGROPE, DYNAMIC, NUM_KINDS };
	static const char *const kinds[NUM_KINDS] = {
		"default", "linear", "llama3", "yarn", "longrope", "dynamic",
	};
	struct cairn_rope_config *rope = &c->rope;
	double stretch = 1;
	int kind = -1;

	CAIRN_TRY(cairn_config_choice(obj, at, "rope_type", kinds, NUM_KINDS, &kind));
	if (kind < 0)
		CAIRN_TRY(cairn_config_choice(obj, at, "type", kinds, NUM_KINDS, &kind));
	if (kind < 0 && json_object_get(obj, "factor"))
		return cairn_error(EINVAL, "%s: %srope_type: is missing", at.file, at.where);
	if (kind <= DEFAULT)
		return 0;
	if (kind == LONGROPE)
		return get_longrope(root, above, obj, at, c);
	if (kind == DYNAMIC)
		return cairn_json_number(obj, at, "factor", true, 0, 1e6, &stretch);
	CAIRN_TRY(cairn_json_number(obj, at, "factor", true, 0, 1e6, &rope->factor));
	if (kind == LINEAR) {
		rope->scaling = CAIRN_ROPE_LINEAR;
		return 0;
	}
	CAIRN_TRY(get_original_length(root, above, obj, at, c));
	if (kind == YARN && rope->theta <= 1)
		return cairn_error(EINVAL, "%s: rope_theta: must be above 1 with yarn, is %g", at.file,
				   rope->theta);
	return kind == LLAMA3 ? get_llama3(obj, at, rope) : get_yarn(obj, at, c);
}

static int whole_rotation(const json_t *obj, struct cairn_json_at at)
{
	double part = 1;

	CAIRN_TRY(cairn_json_number(obj, at, "partial_rotary_factor", false, 0, 1, &part));
	if (part != 1)
		return cairn_error(EOPNOTSUPP,
				   "%s: %spartial_rotary_factor: %g is not supported (1 is)",
				   at.file, at.where, part);
	return 0;
}

int cairn_config_rope(const json_t *root, struct cairn_json_at at, struct cairn_model_config *c)
{
	struct cairn_json_at in = { at.file, "rope_scaling." };
	json_t *obj = NULL, *value;
	const char *key;

	c->rope.factor = 1;
	c->rope.attention_factor = 1;
	CAIRN_TRY(whole_rotation(root, at));
	CAIRN_TRY(cairn_json_number(root, at, "rope_theta", false, 0, 1e12, &c->rope.theta));
	CAIRN_TRY(cairn_json_child(root, at, "rope_scaling", false, JSON_OBJECT, &obj));
	if (!json_object_size(obj)) {
		in.where = "rope_parameters.";
		CAIRN_TRY(cairn_json_child(root, at, "rope_parameters", false, JSON_OBJECT, &obj));
	}
	if (!obj)
		return 0;
	json_object_foreach(obj, key, value)
		if (json_is_object(value))
			return cairn_error(EOPNOTSUPP, "%s: %s%s: per-layer rotations are not "
					   "supported", at.file, in.where, CAIRN_QUOTED(key));
	CAIRN_TRY(whole_rotation(obj, in));
	CAIRN_TRY(cairn_json_number(obj, in, "rope_theta", false, 0, 1e12, &c->rope.theta));
	return get_scaling(root, at, obj, in, c);
}

int32_t cairn_rope_dim(const struct cairn_model_config *c)
{
	return c->latent.kv_lora_rank ? c->latent.rope_dim : c->head_dim;
}

double cairn_softmax_scale(const struct cairn_model_config *c)
{
	const enum cairn_rope_scaling kind = c->rope.scaling;
	double m = kind == CAIRN_ROPE_YARN || kind == CAIRN_ROPE_LONGROPE ? c->rope.attention_factor : 1;

	if (c->latent.kv_lora_rank && kind == CAIRN_ROPE_YARN)
		m = yarn_mscale(c->rope.factor, c->rope.mscale_all_dim);
	return m * m / sqrt(c->query_scalar > 0 ? c->query_scalar : c->head_dim);
}

/* Returns the (fractional) index of the element pair that turns `turns` times within the trained length. */
static double yarn_element(const struct cairn_rope_config *rope, int32_t dim, double turns)
{
	double length = rope->original_max_position_embeddings;

	return dim * log(length / (turns * 2 * M_PI)) / (2 * log(rope->theta));
}

static float llama3_frequency(const struct cairn_rope_config *rope, float f)
{
	const float low = (float)rope->low_freq_factor, high = (float)rope->high_freq_factor;
	const float old_len = (float)rope->original_max_position_embeddings, factor = (float)rope->factor;
	float wavelen = (float)(2 * M_PI) / f, smooth;

	if (wavelen > (float)(rope->original_max_position_embeddings / rope->low_freq_factor))
		return f / factor;
	if (wavelen < (float)(rope->original_max_position_embeddings / rope->high_freq_factor))
		return f;
	smooth = (old_len / wavelen - low) / (high - low);
	return (1.0f - smooth) * f / factor + smooth * f;
}

/* Each operation rounds to float, in the order of transformers' modeling_rope_utils.py. */
void cairn_rope_frequencies(const struct cairn_model_config *c, float *inv_freq)
{
	const struct cairn_rope_config *rope = &c->rope;
	const int32_t dim = cairn_rope_dim(c);
	double low = 0, high = 0;

	if (rope->scaling == CAIRN_ROPE_YARN) {
		low = yarn_element(rope, dim, rope->beta_fast);
		high = yarn_element(rope, dim, rope->beta_slow);
		low = fmax(rope->untruncated ? low : floor(low), 0);
		high = fmin(rope->untruncated ? high : ceil(high), dim - 1);
		high += high == low ? 0.001 : 0;
	}
	for (int32_t i = 0; i < dim / 2; i++) {
		float turn = powf((float)rope->theta, (float)(2 * i) / (float)dim), f = 1.0f / turn, ramp;

		if (rope->scaling == CAIRN_ROPE_LINEAR) {
			f /= (float)rope->factor;
		} else if (rope->scaling == CAIRN_ROPE_LLAMA3) {
			f = llama3_frequency(rope, f);
		} else if (rope->scaling == CAIRN_ROPE_LONGROPE) {
			f = 1.0f / (rope->divisors[i] * turn);
		} else if (rope->scaling == CAIRN_ROPE_YARN) {
			ramp = fminf(fmaxf(((float)i - (float)low) / (float)(high - low), 0), 1);
			f = 1.0f / ((float)rope->factor * turn) * ramp + f * (1.0f - ramp);
		}
		inv_freq[i] = f;
	}
}

// SPDX-License-Identifier: Apache-2.0
/* pipeline_stage - the config of a stage */
#include "serving/pipeline/pipeline.h"

#include <string.h>

#include "primitives/base/error.h"
#include "serving/model/load/model_impl.h"

/* The windows of layers from first on move to the places of layers from 0 on. */
static void move_windows(struct cairn_model_config *c, int32_t first)
{
	uint8_t all[sizeof(c->windowed)];

	memcpy(all, c->windowed, sizeof(all));
	memset(c->windowed, 0, sizeof(c->windowed));
	for (int32_t i = 0; i < c->num_hidden_layers; i++)
		if (all[(first + i) / 8] >> (first + i) % 8 & 1)
			c->windowed[i / 8] |= (uint8_t)(1 << i % 8);
}

int cairn_model_stage_config(struct cairn_model_config *c, const char *dir, int32_t stage, int32_t stages)
{
	const int32_t layers = c->num_hidden_layers;
	const int32_t first = cairn_stage_first(layers, stage, stages);
	struct cairn_experts_config *x = &c->experts;

	if (stages > layers)
		return cairn_error(EOPNOTSUPP, "%s/config.json: num_hidden_layers: %d layers are too few for "
				   "%d stages", dir, layers, stages);
	c->stage = stage;
	c->stages = stages;
	c->first_layer = first;
	c->whole_layers = layers;
	c->num_hidden_layers = cairn_stage_first(layers, stage + 1, stages) - first;
	move_windows(c, first);
	x->dense_layers = x->dense_layers > first ? x->dense_layers - first : 0;
	if (x->dense_layers >= c->num_hidden_layers)	/* no layer of the stage has experts */
		*x = (struct cairn_experts_config){ 0 };
	return 0;
}

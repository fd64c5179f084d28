// SPDX-License-Identifier: Apache-2.0
#include "conformance/peers/cudnn_graph.h"

#include <string.h>

#include "conformance/peers/cudnn_lib.h"
#include "primitives/base/error.h"

#define FIRST_VIRTUAL	1000	/* numbers of virtual tensors and values begin here */

static int ok(struct cudnn_graph *g, int status, const char *what)
{
	if (status != CUDNN_SUCCESS && !g->ret)
		g->ret = cairn_cudnn_error(g->op, status, what);
	return !g->ret;
}

static void *create(struct cudnn_graph *g, int type, const char *what)
{
	void *desc = NULL;

	if (g->ret)
		return NULL;
	if (g->num_descs == CUDNN_MAX_DESCS) {
		g->ret = cairn_error(EIO, "%s: cuDNN: more than %d descriptors", g->op, CUDNN_MAX_DESCS);
		return NULL;
	}
	if (!ok(g, cairn_cudnn.cudnnBackendCreateDescriptor(type, &desc), what))
		return NULL;
	g->descs[g->num_descs++] = desc;
	return desc;
}

static void set(struct cudnn_graph *g, void *desc, int name, int type, int64_t count, const void *values,
		const char *what)
{
	if (!g->ret)
		ok(g, cairn_cudnn.cudnnBackendSetAttribute(desc, name, type, count, values), what);
}

/* Sets an attribute that is a descriptor, if there is one. */
static void set_desc(struct cudnn_graph *g, void *desc, int name, void *value, const char *what)
{
	if (value)
		set(g, desc, name, CUDNN_TYPE_DESCRIPTOR, 1, &value, what);
}

static void finalize(struct cudnn_graph *g, void *desc, const char *what)
{
	if (!g->ret)
		ok(g, cairn_cudnn.cudnnBackendFinalize(desc), what);
}

static void add_op(struct cudnn_graph *g, void *op, const char *what)
{
	finalize(g, op, what);
	if (g->ret)
		return;
	if (g->num_ops == CUDNN_MAX_OPS)
		g->ret = cairn_error(EIO, "%s: cuDNN: more than %d operations", g->op, CUDNN_MAX_OPS);
	else
		g->ops[g->num_ops++] = op;
}

static void *begin_tensor(struct cudnn_graph *g, int64_t uid, const struct cudnn_shape *shape)
{
	const int64_t alignment = shape->align ? shape->align : 16;
	void *t = create(g, CUDNN_TENSOR, "tensor");

	set(g, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &shape->dtype, "tensor");
	set(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape->dim, "tensor");
	set(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, shape->stride, "tensor");
	set(g, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid, "tensor");
	set(g, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment, "tensor");
	return t;
}

static void *end_tensor(struct cudnn_graph *g, void *t, void *ragged)
{
	set_desc(g, t, CUDNN_ATTR_TENSOR_RAGGED_OFFSET, ragged, "ragged tensor");
	finalize(g, t, "tensor");
	return t;
}

void *cairn_cudnn_tensor(struct cudnn_graph *g, int64_t uid, const struct cudnn_shape *shape, void *ragged)
{
	void *t = begin_tensor(g, uid, shape);

	if (!g->ret)
		g->uids[g->num_uids++] = uid;
	return end_tensor(g, t, ragged);
}

static int64_t take_uid(struct cudnn_graph *g)
{
	if (!g->next_uid)
		g->next_uid = FIRST_VIRTUAL;
	return g->next_uid++;
}

void *cairn_cudnn_virtual(struct cudnn_graph *g, const struct cudnn_shape *shape, void *ragged)
{
	const char yes = 1;
	void *t = begin_tensor(g, take_uid(g), shape);

	set(g, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes, "tensor");
	return end_tensor(g, t, ragged);
}

static void *value(struct cudnn_graph *g, struct cudnn_value v, int dtype)
{
	const struct cudnn_shape one = { { 1, 1, 1, 1 }, { 1, 1, 1, 1 }, dtype, 0 };
	const char yes = 1;
	void *t;

	v.uid = take_uid(g);
	t = begin_tensor(g, v.uid, &one);
	set(g, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes, "value");
	if (!g->ret && g->num_values == CUDNN_MAX_VALUES)
		g->ret = cairn_error(EIO, "%s: cuDNN: more than %d values", g->op, CUDNN_MAX_VALUES);
	if (!g->ret)
		g->values[g->num_values++] = v;
	return end_tensor(g, t, NULL);
}

void *cairn_cudnn_float(struct cudnn_graph *g, float x)
{
	return value(g, (struct cudnn_value){ .f = x }, CUDNN_DATA_FLOAT);
}

void *cairn_cudnn_int(struct cudnn_graph *g, int32_t x)
{
	return value(g, (struct cudnn_value){ .i = x }, CUDNN_DATA_INT32);
}

void cairn_cudnn_matmul(struct cudnn_graph *g, const struct cudnn_matmul *m)
{
	const int compute = CUDNN_DATA_FLOAT;
	void *desc = create(g, CUDNN_MATMUL, "matmul"), *op;

	set(g, desc, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute, "matmul");
	finalize(g, desc, "matmul");
	op = create(g, CUDNN_OPERATION_MATMUL, "matmul");
	set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_A, m->a, "matmul");
	set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_B, m->b, "matmul");
	set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_C, m->c, "matmul");
	set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, desc, "matmul");
	set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_M_OVERRIDE, m->m, "matmul");
	set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_N_OVERRIDE, m->n, "matmul");
	set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_K_OVERRIDE, m->k, "matmul");
	add_op(g, op, "matmul");
}

void cairn_cudnn_pointwise(struct cudnn_graph *g, const struct cudnn_pointwise *p)
{
	void *desc = create(g, CUDNN_POINTWISE, "pointwise"), *op;

	set(g, desc, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &p->mode, "pointwise");
	set(g, desc, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &p->compute, "pointwise");
	if (p->mode == CUDNN_GEN_INDEX)
		set(g, desc, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &p->axis, "pointwise");
	finalize(g, desc, "pointwise");
	op = create(g, CUDNN_OPERATION_POINTWISE, "pointwise");
	set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_DESC, desc, "pointwise");
	set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_X, p->x, "pointwise");
	set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_B, p->b, "pointwise");
	set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_T, p->t, "pointwise");
	set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_Y, p->y, "pointwise");
	add_op(g, op, "pointwise");
}

void cairn_cudnn_reduce(struct cudnn_graph *g, int mode, void *x, void *y)
{
	const int compute = CUDNN_DATA_FLOAT;
	void *desc = create(g, CUDNN_REDUCTION, "reduction"), *op;

	set(g, desc, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR, 1, &mode, "reduction");
	set(g, desc, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute, "reduction");
	finalize(g, desc, "reduction");
	op = create(g, CUDNN_OPERATION_REDUCTION, "reduction");
	set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, desc, "reduction");
	set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_X, x, "reduction");
	set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_Y, y, "reduction");
	add_op(g, op, "reduction");
}

void cairn_cudnn_reshape(struct cudnn_graph *g, void *x, void *y)
{
	void *op = create(g, CUDNN_OPERATION_RESHAPE, "reshape");

	set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_X, x, "reshape");
	set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_Y, y, "reshape");
	add_op(g, op, "reshape");
}

/* Makes the plan of an engine's configuration, unless the library refuses it. */
static void add_plan(struct cudnn_graph *g, void *config)
{
	const struct cudnn_lib *lib = &cairn_cudnn;
	int64_t bytes = 0, got = 0;
	void *plan = NULL;

	if (lib->cudnnBackendCreateDescriptor(CUDNN_EXECUTION_PLAN, &plan))
		return;
	if (lib->cudnnBackendSetAttribute(plan, CUDNN_ATTR_PLAN_ENGINE_CONFIG, CUDNN_TYPE_DESCRIPTOR, 1,
					  &config) ||
	    lib->cudnnBackendFinalize(plan) ||
	    lib->cudnnBackendGetAttribute(plan, CUDNN_ATTR_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &got,
					  &bytes)) {
		lib->cudnnBackendDestroyDescriptor(plan);
		return;
	}
	g->plans[g->num_plans++] = plan;
	if (bytes > g->workspace_bytes)
		g->workspace_bytes = bytes;
}

/* Asks the heuristics of one mode for configurations, and makes plans of the first ones. */
static void ask(struct cudnn_graph *g, void *op_graph, int mode, int most)
{
	void *heur = create(g, CUDNN_ENGINEHEUR, "heuristics"), *configs[CUDNN_MAX_PLANS];
	int64_t num = 0;

	set_desc(g, heur, CUDNN_ATTR_ENGINEHEUR_GRAPH, op_graph, "heuristics");
	set(g, heur, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode, "heuristics");
	finalize(g, heur, "heuristics");
	for (int i = 0; i < most; i++)
		configs[i] = create(g, CUDNN_ENGINECFG, "heuristics");
	if (!g->ret)
		ok(g, cairn_cudnn.cudnnBackendGetAttribute(heur, CUDNN_ATTR_ENGINEHEUR_RESULTS,
							   CUDNN_TYPE_DESCRIPTOR, most, &num, configs),
		   "heuristics");
	for (int i = 0; i < num && i < most && !g->ret && g->num_plans < most; i++)
		add_plan(g, configs[i]);
}

int cairn_cudnn_plan(struct cudnn_graph *g, int most)
{
	void *op_graph = create(g, CUDNN_OPERATIONGRAPH, "graph"), *handle = NULL;

	if (most > CUDNN_MAX_PLANS)
		most = CUDNN_MAX_PLANS;
	if (!g->ret)
		g->ret = cairn_cudnn_handle(g->op, &handle);
	set(g, op_graph, CUDNN_ATTR_GRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle, "graph");
	set(g, op_graph, CUDNN_ATTR_GRAPH_OPS, CUDNN_TYPE_DESCRIPTOR, g->num_ops, g->ops, "graph");
	finalize(g, op_graph, "graph");
	ask(g, op_graph, CUDNN_HEUR_A, most);
	if (!g->ret && !g->num_plans)
		ask(g, op_graph, CUDNN_HEUR_FALLBACK, most);
	if (!g->ret && !g->num_plans)
		g->ret = cairn_error(EOPNOTSUPP, "%s: cuDNN has no plan for this shape", g->op);
	return g->ret;
}

int cairn_cudnn_run(const struct cudnn_graph *g, int plan, void *const pointers[CUDNN_MAX_POINTERS],
		    void *workspace, void *stream)
{
	const struct cudnn_lib *lib = &cairn_cudnn;
	int64_t uids[CUDNN_MAX_POINTERS + CUDNN_MAX_VALUES];
	void *at[CUDNN_MAX_POINTERS + CUDNN_MAX_VALUES], *pack = NULL, *handle;
	int n = 0, status;

	CAIRN_TRY(cairn_cudnn_handle(g->op, &handle));
	for (int i = 0; i < g->num_uids; i++, n++) {
		uids[n] = g->uids[i];
		at[n] = pointers[g->uids[i]];
	}
	for (int i = 0; i < g->num_values; i++, n++) {
		uids[n] = g->values[i].uid;
		at[n] = (void *)&g->values[i].f;
	}
	status = lib->cudnnSetStream(handle, stream);
	if (!status)
		status = lib->cudnnBackendCreateDescriptor(CUDNN_VARIANT_PACK, &pack);
	if (!status)
		status = lib->cudnnBackendSetAttribute(pack, CUDNN_ATTR_PACK_DATA_POINTERS,
						       CUDNN_TYPE_VOID_PTR, n, at);
	if (!status)
		status = lib->cudnnBackendSetAttribute(pack, CUDNN_ATTR_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n,
						       uids);
	if (!status)
		status = lib->cudnnBackendSetAttribute(pack, CUDNN_ATTR_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR,
						       1, &workspace);
	if (!status)
		status = lib->cudnnBackendFinalize(pack);
	if (!status)
		status = lib->cudnnBackendExecute(handle, g->plans[plan], pack);
	if (pack)
		lib->cudnnBackendDestroyDescriptor(pack);
	return status ? cairn_cudnn_error(g->op, status, "run") : 0;
}

void cairn_cudnn_free(struct cudnn_graph *g)
{
	while (g->num_plans > 0)
		cairn_cudnn.cudnnBackendDestroyDescriptor(g->plans[--g->num_plans]);
	while (g->num_descs > 0)
		cairn_cudnn.cudnnBackendDestroyDescriptor(g->descs[--g->num_descs]);
	memset(g, 0, sizeof(*g));
}

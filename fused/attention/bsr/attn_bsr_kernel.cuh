/* SPDX-License-Identifier: Apache-2.0 */
/* attn_bsr_kernel - the kernel of attn_bsr as a template, and descriptions of its instances */
#ifndef CAIRN_ATTN_BSR_KERNEL_CUH
#define CAIRN_ATTN_BSR_KERNEL_CUH

#include "fused/attention/bsr/attn_bsr_fetch.cuh"

template <int dtype, class F>
static __global__ __launch_bounds__(F::threads, 1) void
attn_bsr_kernel(const __grid_constant__ struct attn_bsr_call c,
		const __grid_constant__ struct attn_bsr_maps maps)
{
	extern __shared__ __align__(1024) uint8_t s_all[];
	struct attn_smem<struct attn_bsr_tile> s = attn_lay_out<F, struct attn_bsr_tile>(s_all);

	if (threadIdx.x == 0) {
		for (int i = 0; i < F::raw_stages; i++) {
			ptx_mbarrier_init(ptx_smem(&attn_extra<F>(s)->full[i]), ATTN_ARRIVALS);
			ptx_mbarrier_init(ptx_smem(&attn_extra<F>(s)->empty[i]), 4 * ELECTED_LANES);
		}
		attn_init_barriers<F>(s, ATTN_ARRIVALS);
	}
	__syncthreads();
	ptx_griddepcontrol_wait();
	ptx_griddepcontrol_launch_dependents();
	if (threadIdx.x >= (F::groups + 1) * 128) {
		if constexpr (F::converter_regs > 0) {
			ptx_setmaxnreg_dec<F::converter_regs>();
			attn_convert_tiles<F, dtype>(s);
		}
	} else if (threadIdx.x >= F::groups * 128) {
		if constexpr (F::threads > 256)
			ptx_setmaxnreg_dec<F::producer_regs>();
		attn_bsr_produce<F, dtype>(c, maps, s);
	} else {
		if constexpr (F::threads > 256)
			ptx_setmaxnreg_inc<F::regs>();
		attn_consume<dtype, F, struct attn_bsr_view<F>>(c, s);
	}
}

/*
 * Returns whether the warpgroups request no more registers than the CTA starts with. A CTA of two
 * warpgroups has enough without a request.
 */
template <class F> ATTN_CONST attn_fits(void)
{
	return F::groups * F::regs + F::producer_regs + F::converter_regs <=
	       65536 / F::threads / 8 * 8 * (F::threads / 128);
}

/* F is the form for 16-bit keys, F8 the one for 8-bit keys. */
template <class F, class F8> static struct attn_bsr_kernel attn_bsr_instance(void)
{
	static_assert(F::rows == F8::rows && F::keys == F8::keys, "one division");
	static_assert(attn_fits<F>() && attn_fits<F8>(), "setmaxnreg would wait for ever");
	static_assert(attn_bsr_smem<F>() <= 227 << 10 && attn_bsr_smem<F8>() <= 227 << 10, "shared memory");
	return { { { (const void *)attn_bsr_kernel<CAIRN_F16, F>,
		     (const void *)attn_bsr_kernel<CAIRN_F16, F8> },
		   { (const void *)attn_bsr_kernel<CAIRN_BF16, F>,
		     (const void *)attn_bsr_kernel<CAIRN_BF16, F8> } },
		 F::rows, F::keys, { F::threads, F8::threads }, { attn_bsr_smem<F>(), attn_bsr_smem<F8>() } };
}

#endif

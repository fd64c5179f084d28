/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx_screen - wrappers of the instructions that primitives/machine/screen alone uses
 *
 * Special functions (PTX ISA 9.7.3), %smid as it is now (10), and wgmma of every type (9.7.16) in one shape,
 * m64n128 with 32 bytes of k, with both operands in shared memory as wgmma.cuh describes them. d is 64 words
 * of 32 bits: fp32, or int32 for S8.
 */
#ifndef CAIRN_PTX_SCREEN_CUH
#define CAIRN_PTX_SCREEN_CUH

#include "primitives/ptx/wgmma.cuh"

/* volatile: ptx_smid() may be read once for two places, but a CTA that is preempted may move between them */
PTX uint32_t ptx_smid_now(void)
{
	uint32_t v;

	asm volatile("mov.u32 %0, %%smid;" : "=r"(v) : : "memory");
	return v;
}

#define PTX_SPECIAL(name, mnemonic) \
	PTX float name(float x) { float y; asm(mnemonic " %0, %1;" : "=f"(y) : "f"(x)); return y; }

PTX_SPECIAL(ptx_lg2_approx_ftz, "lg2.approx.ftz.f32")
PTX_SPECIAL(ptx_rsqrt_approx_ftz, "rsqrt.approx.ftz.f32")
PTX_SPECIAL(ptx_sqrt_approx_ftz, "sqrt.approx.ftz.f32")
PTX_SPECIAL(ptx_sin_approx_ftz, "sin.approx.ftz.f32")
PTX_SPECIAL(ptx_cos_approx_ftz, "cos.approx.ftz.f32")
PTX_SPECIAL(ptx_tanh_approx, "tanh.approx.f32")
#undef PTX_SPECIAL

#define R10(t)	"%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, " \
		"%" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9"
#define R64	R10() ", " R10(1) ", " R10(2) ", " R10(3) ", " R10(4) ", " R10(5) ", %60, %61, %62, %63"
#define D8(d)	"+r"((d)[0]), "+r"((d)[1]), "+r"((d)[2]), "+r"((d)[3]), \
		"+r"((d)[4]), "+r"((d)[5]), "+r"((d)[6]), "+r"((d)[7])
#define D64(d)	D8(d), D8((d) + 8), D8((d) + 16), D8((d) + 24), D8((d) + 32), D8((d) + 40), D8((d) + 48), \
		D8((d) + 56)

/* add 0: d = a b, else d += a b */
#define WGMMA_128(name, types, immediates) \
	PTX void name(uint32_t *d, uint64_t a, uint64_t b, int add) \
	{ \
		asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\t" \
			     "wgmma.mma_async.sync.aligned.m64n128" types " {" R64 "}, %64, %65, p" \
			     immediates ";\n\t}" : D64(d) : "l"(a), "l"(b), "r"(add) : "memory"); \
	}

/* immediates: factors 1 of a and b, and for types of 16 bits no transposition */
WGMMA_128(ptx_wgmma_128_f16, "k16.f32.f16.f16", ", 1, 1, 0, 0")
WGMMA_128(ptx_wgmma_128_bf16, "k16.f32.bf16.bf16", ", 1, 1, 0, 0")
WGMMA_128(ptx_wgmma_128_tf32, "k8.f32.tf32.tf32", ", 1, 1")
WGMMA_128(ptx_wgmma_128_e4m3, "k32.f32.e4m3.e4m3", ", 1, 1")
WGMMA_128(ptx_wgmma_128_e5m2, "k32.f32.e5m2.e5m2", ", 1, 1")
WGMMA_128(ptx_wgmma_128_s8, "k32.s32.s8.s8", "")

#undef R10
#undef R64
#undef D8
#undef D64
#undef WGMMA_128

#endif

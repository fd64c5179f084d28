/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wgmma - matrix products of a warpgroup with operands in shared memory (PTX ISA 9.7.16)
 *
 * d = a b or d += a b, with d in fp32 registers.
 *   a  64 x 16, from shared memory (ss) or registers (rs, rs_k: the A fragment of mma.m16n8k16; warp i of the
 *      warpgroup holds rows 16 i .. 16 i + 15)
 *   b  16 x n, from shared memory: contiguous along k in ss and rs_k (b[n][k], the layout of keys for Q K^T),
 *      contiguous along n in rs (b[k][n], the layout of values for P V); ss_t has a[k][m], contiguous
 *      along m, and b[k][n]; ss_ta has a[k][m] and b[n][k]
 *   d  lane l holds 4 floats for every 8 columns: rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next,
 *      as with mma.m16n8k16
 *
 * Tiles in shared memory are panels with rows of 64 elements (128 bytes), aligned to 1024 bytes. Their
 * 16-byte pieces are swizzled by row % 8: piece c of row r lies at r * 128 + ((c ^ (r & 7)) << 4).
 * wgmma_desc() takes the address of a tile's first row and column. A descriptor counts in units of 16 bytes:
 * adding 2 moves it by 16 columns within a panel, adding 128 by 16 rows.
 *
 * In products of e4m3, a is 64 x 32 and b is 32 x n, with 8 bits per element, both contiguous along k. A row
 * of a panel has 128 elements, and 32 columns take 32 bytes, as 16 columns do above. In registers, lane l
 * holds columns c .. c + 3 (a[0], a[1]) and c + 16 .. c + 19 (a[2], a[3]), c = 4 (l % 4), of rows l / 4
 * (a[0], a[2]) and l / 4 + 8 (a[1], a[3]). ss_k is ss with the low halves of descriptors. d is as above, but
 * sums have fewer than 24 bits: fused/attention/fp8/attn_fp8.h says how many.
 *
 * Order of calls: ptx_wgmma_fence() before the first product of a batch, wgmma_keep() on d before and after
 * the batch, commit, wait.
 */
#ifndef CAIRN_WGMMA_CUH
#define CAIRN_WGMMA_CUH

#include "primitives/base/dtype.h"
#include "primitives/ptx/ptx.cuh"

PTX void ptx_wgmma_fence(void) { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }
PTX void ptx_wgmma_commit_group(void) { asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory"); }

template <int n> PTX void ptx_wgmma_wait_group(void)
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(n) : "memory");
}

/*
 * Keeps d in its registers until products end, because the compiler does not know that they are asynchronous.
 */
template <int n> PTX void wgmma_keep(float *d)
{
#pragma unroll
	for (int i = 0; i < n; i++)
		asm volatile("" : "+f"(d[i]) : : "memory");
}

/*
 * The descriptor of a panel at addr: layout type 1 (128-byte swizzle), group_bytes between groups of eight
 * rows. panel_bytes is the distance between panels if n spans several of them (rs), else it has no meaning.
 */
PTX uint64_t wgmma_desc_groups(uint32_t addr, uint32_t panel_bytes, uint32_t group_bytes)
{
	return (uint64_t)1 << 62 | (uint64_t)(group_bytes >> 4) << 32 | (uint64_t)(panel_bytes >> 4) << 16 |
	       (addr & 0x3ffff) >> 4;
}

/* As wgmma_desc_groups(), for a panel whose rows follow each other. */
PTX uint64_t wgmma_desc(uint32_t addr, uint32_t panel_bytes)
{
	return wgmma_desc_groups(addr, panel_bytes, 1024);
}

/*
 * As wgmma_desc(), for a tile with rows of 64 bytes: layout type 2 (64-byte swizzle), 512 bytes between
 * groups.
 */
PTX uint64_t wgmma_desc_64(uint32_t addr)
{
	return (uint64_t)2 << 62 | (uint64_t)(512 >> 4) << 32 | (addr & 0x3ffff) >> 4;
}

/* Rn: the list of asm operands %0 to %(n - 1); Dn: n floats of d as operands that are read and written */
#define R10(t)	"%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, " \
		"%" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9"
#define R8	"%0, %1, %2, %3, %4, %5, %6, %7"
#define R16	R10() ", %10, %11, %12, %13, %14, %15"
#define R24	R10() ", " R10(1) ", %20, %21, %22, %23"
#define R32	R10() ", " R10(1) ", " R10(2) ", %30, %31"
#define R40	R10() ", " R10(1) ", " R10(2) ", " R10(3)
#define R48	R40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define R56	R40 ", " R10(4) ", %50, %51, %52, %53, %54, %55"
#define R64	R10() ", " R10(1) ", " R10(2) ", " R10(3) ", " R10(4) ", " R10(5) ", %60, %61, %62, %63"
#define R72	R40 ", " R10(4) ", " R10(5) ", " R10(6) ", %70, %71"
#define R80	R10() ", " R10(1) ", " R10(2) ", " R10(3) ", " R10(4) ", " R10(5) ", " R10(6) ", " R10(7)
#define R88	R80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define R96	R80 ", " R10(8) ", %90, %91, %92, %93, %94, %95"
#define R104	R80 ", " R10(8) ", " R10(9) ", %100, %101, %102, %103"
#define R112	R80 ", " R10(8) ", " R10(9) ", " R10(10) ", %110, %111"
#define R120	R80 ", " R10(8) ", " R10(9) ", " R10(10) ", " R10(11)
#define R128	R10() ", " R10(1) ", " R10(2) ", " R10(3) ", " R10(4) ", " R10(5) ", " R10(6) \
		", " R10(7) ", " R10(8) ", " R10(9) ", " R10(10) ", " R10(11) \
		", %120, %121, %122, %123, %124, %125, %126, %127"
#define D4(d)	"+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3])
#define D8(d)	D4(d), D4((d) + 4)
#define D16(d)	D4(d), D4((d) + 4), D4((d) + 8), D4((d) + 12)
#define D24(d)	D16(d), D8((d) + 16)
#define D32(d)	D16(d), D16((d) + 16)
#define D40(d)	D32(d), D8((d) + 32)
#define D48(d)	D32(d), D16((d) + 32)
#define D56(d)	D32(d), D24((d) + 32)
#define D64(d)	D32(d), D32((d) + 32)
#define D72(d)	D64(d), D8((d) + 64)
#define D80(d)	D64(d), D16((d) + 64)
#define D96(d)	D64(d), D32((d) + 64)
#define D88(d)	D64(d), D16((d) + 64), D8((d) + 80)
#define D104(d)	D96(d), D8((d) + 96)
#define D112(d)	D96(d), D16((d) + 96)
#define D120(d)	D96(d), D16((d) + 96), D8((d) + 112)
#define D128(d)	D64(d), D64((d) + 64)

/* n: columns; f: registers of d; a1..a3, b_at, p_at: numbers of the operands a[1..3], b and add */
#define WGMMA_SS(n, type, f, b_at, p_at) \
	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #p_at ", 0;\n\t" \
		     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" R##f "}, %" #f \
		     ", %" #b_at ", p, 1, 1, 0, 0;\n\t}" \
		     : D##f(d) : "l"(a), "l"(b), "r"(add) : "memory")
#define WGMMA_RS(n, type, f, a1, a2, a3, b_at, p_at) \
	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #p_at ", 0;\n\t" \
		     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" R##f "}, {%" #f \
		     ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", p, 1, 1, 1;\n\t}" \
		     : D##f(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add) : "memory")

/* d is n / 2 floats per thread; add 0: d = a b, else d += a b. */
template <int dtype, int n> PTX void ptx_wgmma_ss(float *d, uint64_t a, uint64_t b, int add)
{
	static_assert(n % 16 == 0 && n >= 16 && n <= 256, "no such product");
	if constexpr (n == 16 && dtype == CAIRN_F16)
		WGMMA_SS(16, "f16", 8, 9, 10);
	else if constexpr (n == 16)
		WGMMA_SS(16, "bf16", 8, 9, 10);
	else if constexpr (n == 32 && dtype == CAIRN_F16)
		WGMMA_SS(32, "f16", 16, 17, 18);
	else if constexpr (n == 32)
		WGMMA_SS(32, "bf16", 16, 17, 18);
	else if constexpr (n == 48 && dtype == CAIRN_F16)
		WGMMA_SS(48, "f16", 24, 25, 26);
	else if constexpr (n == 48)
		WGMMA_SS(48, "bf16", 24, 25, 26);
	else if constexpr (n == 64 && dtype == CAIRN_F16)
		WGMMA_SS(64, "f16", 32, 33, 34);
	else if constexpr (n == 64)
		WGMMA_SS(64, "bf16", 32, 33, 34);
	else if constexpr (n == 80 && dtype == CAIRN_F16)
		WGMMA_SS(80, "f16", 40, 41, 42);
	else if constexpr (n == 80)
		WGMMA_SS(80, "bf16", 40, 41, 42);
	else if constexpr (n == 96 && dtype == CAIRN_F16)
		WGMMA_SS(96, "f16", 48, 49, 50);
	else if constexpr (n == 96)
		WGMMA_SS(96, "bf16", 48, 49, 50);
	else if constexpr (n == 112 && dtype == CAIRN_F16)
		WGMMA_SS(112, "f16", 56, 57, 58);
	else if constexpr (n == 112)
		WGMMA_SS(112, "bf16", 56, 57, 58);
	else if constexpr (n == 144 && dtype == CAIRN_F16)
		WGMMA_SS(144, "f16", 72, 73, 74);
	else if constexpr (n == 144)
		WGMMA_SS(144, "bf16", 72, 73, 74);
	else if constexpr (n == 160 && dtype == CAIRN_F16)
		WGMMA_SS(160, "f16", 80, 81, 82);
	else if constexpr (n == 160)
		WGMMA_SS(160, "bf16", 80, 81, 82);
	else if constexpr (n == 176 && dtype == CAIRN_F16)
		WGMMA_SS(176, "f16", 88, 89, 90);
	else if constexpr (n == 176)
		WGMMA_SS(176, "bf16", 88, 89, 90);
	else if constexpr (n == 192 && dtype == CAIRN_F16)
		WGMMA_SS(192, "f16", 96, 97, 98);
	else if constexpr (n == 192)
		WGMMA_SS(192, "bf16", 96, 97, 98);
	else if constexpr (n == 208 && dtype == CAIRN_F16)
		WGMMA_SS(208, "f16", 104, 105, 106);
	else if constexpr (n == 208)
		WGMMA_SS(208, "bf16", 104, 105, 106);
	else if constexpr (n == 224 && dtype == CAIRN_F16)
		WGMMA_SS(224, "f16", 112, 113, 114);
	else if constexpr (n == 224)
		WGMMA_SS(224, "bf16", 112, 113, 114);
	else if constexpr (n == 240 && dtype == CAIRN_F16)
		WGMMA_SS(240, "f16", 120, 121, 122);
	else if constexpr (n == 240)
		WGMMA_SS(240, "bf16", 120, 121, 122);
	else if constexpr (n == 256 && dtype == CAIRN_F16)
		WGMMA_SS(256, "f16", 128, 129, 130);
	else if constexpr (n == 256)
		WGMMA_SS(256, "bf16", 128, 129, 130);
	else if constexpr (dtype == CAIRN_F16)
		WGMMA_SS(128, "f16", 64, 65, 66);
	else
		WGMMA_SS(128, "bf16", 64, 65, 66);
}

template <int dtype, int n> PTX void ptx_wgmma_rs(float *d, const uint32_t a[4], uint64_t b, int add)
{
	static_assert(n == 64 || n == 96 || n == 128 || n == 192 || n == 256, "no such product");
	if constexpr (n == 64 && dtype == CAIRN_F16)
		WGMMA_RS(64, "f16", 32, 33, 34, 35, 36, 37);
	else if constexpr (n == 64)
		WGMMA_RS(64, "bf16", 32, 33, 34, 35, 36, 37);
	else if constexpr (n == 96 && dtype == CAIRN_F16)
		WGMMA_RS(96, "f16", 48, 49, 50, 51, 52, 53);
	else if constexpr (n == 96)
		WGMMA_RS(96, "bf16", 48, 49, 50, 51, 52, 53);
	else if constexpr (n == 128 && dtype == CAIRN_F16)
		WGMMA_RS(128, "f16", 64, 65, 66, 67, 68, 69);
	else if constexpr (n == 128)
		WGMMA_RS(128, "bf16", 64, 65, 66, 67, 68, 69);
	else if constexpr (n == 192 && dtype == CAIRN_F16)
		WGMMA_RS(192, "f16", 96, 97, 98, 99, 100, 101);
	else if constexpr (n == 192)
		WGMMA_RS(192, "bf16", 96, 97, 98, 99, 100, 101);
	else if constexpr (dtype == CAIRN_F16)
		WGMMA_RS(256, "f16", 128, 129, 130, 131, 132, 133);
	else
		WGMMA_RS(256, "bf16", 128, 129, 130, 131, 132, 133);
}

/* The trans flags of both operands are set: a[k][m] and b[k][n]. */
#define WGMMA_SS_T(n, type, f, b_at, p_at) \
	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #p_at ", 0;\n\t" \
		     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" R##f "}, %" #f \
		     ", %" #b_at ", p, 1, 1, 1, 1;\n\t}" \
		     : D##f(d) : "l"(a), "l"(b), "r"(add) : "memory")

template <int dtype, int n> PTX void ptx_wgmma_ss_t(float *d, uint64_t a, uint64_t b, int add)
{
	static_assert(n == 64, "no such product");
	if constexpr (dtype == CAIRN_F16)
		WGMMA_SS_T(64, "f16", 32, 33, 34);
	else
		WGMMA_SS_T(64, "bf16", 32, 33, 34);
}

/* The trans flag of a is set: a[k][m], and b[n][k] as in ss. */
#define WGMMA_SS_TA(n, type, f, b_at, p_at) \
	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #p_at ", 0;\n\t" \
		     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" R##f "}, %" #f \
		     ", %" #b_at ", p, 1, 1, 1, 0;\n\t}" \
		     : D##f(d) : "l"(a), "l"(b), "r"(add) : "memory")

template <int dtype, int n> PTX void ptx_wgmma_ss_ta(float *d, uint64_t a, uint64_t b, int add)
{
	static_assert(n == 16 || n == 32, "no such product");
	if constexpr (n == 16 && dtype == CAIRN_F16)
		WGMMA_SS_TA(16, "f16", 8, 9, 10);
	else if constexpr (n == 16)
		WGMMA_SS_TA(16, "bf16", 8, 9, 10);
	else if constexpr (dtype == CAIRN_F16)
		WGMMA_SS_TA(32, "f16", 16, 17, 18);
	else
		WGMMA_SS_TA(32, "bf16", 16, 17, 18);
}

/* b: the low half of wgmma_desc(addr, 0); the upper half is a constant */
#define WGMMA_RS_K(n, type, f, a1, a2, a3, b_at, p_at) \
	asm volatile("{\n\t.reg .pred p;\n\t.reg .b64 b;\n\tsetp.ne.b32 p, %" #p_at ", 0;\n\t" \
		     "mov.b64 b, {%" #b_at ", 0x40000040};\n\t" \
		     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" R##f "}, {%" #f \
		     ", %" #a1 ", %" #a2 ", %" #a3 "}, b, p, 1, 1, 0;\n\t}" \
		     : D##f(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add) : "memory")

template <int dtype, int n> PTX void ptx_wgmma_rs_k(float *d, const uint32_t a[4], uint32_t b, int add)
{
	static_assert(n == 32 || n == 64 || n == 128, "no such product");
	if constexpr (n == 32 && dtype == CAIRN_F16)
		WGMMA_RS_K(32, "f16", 16, 17, 18, 19, 20, 21);
	else if constexpr (n == 32)
		WGMMA_RS_K(32, "bf16", 16, 17, 18, 19, 20, 21);
	else if constexpr (n == 64 && dtype == CAIRN_F16)
		WGMMA_RS_K(64, "f16", 32, 33, 34, 35, 36, 37);
	else if constexpr (n == 64)
		WGMMA_RS_K(64, "bf16", 32, 33, 34, 35, 36, 37);
	else if constexpr (dtype == CAIRN_F16)
		WGMMA_RS_K(128, "f16", 64, 65, 66, 67, 68, 69);
	else
		WGMMA_RS_K(128, "bf16", 64, 65, 66, 67, 68, 69);
}

#define WGMMA_E4M3_SS(n, f, b_at, p_at) \
	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #p_at ", 0;\n\t" \
		     "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" R##f "}, %" #f \
		     ", %" #b_at ", p, 1, 1;\n\t}" \
		     : D##f(d) : "l"(a), "l"(b), "r"(add) : "memory")
/* a, b: the low halves of wgmma_desc(addr, 0), whose sums of 32 bits take fewer instructions */
#define WGMMA_E4M3_SS_K(n, f, b_at, p_at) \
	asm volatile("{\n\t.reg .pred p;\n\t.reg .b64 a, b;\n\tsetp.ne.b32 p, %" #p_at ", 0;\n\t" \
		     "mov.b64 a, {%" #f ", 0x40000040};\n\tmov.b64 b, {%" #b_at ", 0x40000040};\n\t" \
		     "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" R##f "}" \
		     ", a, b, p, 1, 1;\n\t}" \
		     : D##f(d) : "r"(a), "r"(b), "r"(add) : "memory")
#define WGMMA_E4M3_RS(n, f, a1, a2, a3, b_at, p_at) \
	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #p_at ", 0;\n\t" \
		     "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" R##f "}, {%" #f \
		     ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", p, 1, 1;\n\t}" \
		     : D##f(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add) : "memory")

template <int n> PTX void ptx_wgmma_e4m3_ss(float *d, uint64_t a, uint64_t b, int add)
{
	static_assert(n == 64 || n == 128, "no such product");
	if constexpr (n == 64)
		WGMMA_E4M3_SS(64, 32, 33, 34);
	else
		WGMMA_E4M3_SS(128, 64, 65, 66);
}

template <int n> PTX void ptx_wgmma_e4m3_ss_k(float *d, uint32_t a, uint32_t b, int add)
{
	static_assert(n == 16 || n == 32 || n == 64 || n == 128, "no such product");
	if constexpr (n == 16)
		WGMMA_E4M3_SS_K(16, 8, 9, 10);
	else if constexpr (n == 32)
		WGMMA_E4M3_SS_K(32, 16, 17, 18);
	else if constexpr (n == 64)
		WGMMA_E4M3_SS_K(64, 32, 33, 34);
	else
		WGMMA_E4M3_SS_K(128, 64, 65, 66);
}

template <int n> PTX void ptx_wgmma_e4m3_rs(float *d, const uint32_t a[4], uint64_t b, int add)
{
	static_assert(n == 64 || n == 128, "no such product");
	if constexpr (n == 64)
		WGMMA_E4M3_RS(64, 32, 33, 34, 35, 36, 37);
	else
		WGMMA_E4M3_RS(128, 64, 65, 66, 67, 68, 69);
}

#undef R10
#undef R8
#undef R16
#undef R24
#undef R32
#undef R40
#undef R48
#undef R56
#undef R64
#undef R72
#undef R80
#undef R88
#undef R96
#undef R104
#undef R112
#undef R120
#undef R128
#undef D4
#undef D8
#undef D16
#undef D24
#undef D32
#undef D40
#undef D48
#undef D56
#undef D64
#undef D72
#undef D80
#undef D88
#undef D96
#undef D104
#undef D112
#undef D120
#undef D128
#undef WGMMA_SS
#undef WGMMA_SS_T
#undef WGMMA_SS_TA
#undef WGMMA_RS
#undef WGMMA_RS_K
#undef WGMMA_E4M3_SS
#undef WGMMA_E4M3_SS_K
#undef WGMMA_E4M3_RS

#endif

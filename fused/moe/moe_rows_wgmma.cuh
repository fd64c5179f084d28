/* SPDX-License-Identifier: Apache-2.0 */
/*
 * moe_rows_wgmma - wgmma with as many columns as a tile has places: d += a b
 *
 * Operands are as in wgmma.cuh: a is 64 x 16 from shared memory (ss) or registers (rs), b is 16 x n from
 * shared memory, b[n][k]; both are K-major.
 */
#ifndef CAIRN_MOE_ROWS_WGMMA_CUH
#define CAIRN_MOE_ROWS_WGMMA_CUH

#include "primitives/ptx/wgmma.cuh"

/* Registers of d, in tens */
#define R10(t)	"%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, " \
		"%" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9"
#define R40	R10() ", " R10(1) ", " R10(2) ", " R10(3)
#define R8	"%0, %1, %2, %3, %4, %5, %6, %7"
#define R16	R10() ", %10, %11, %12, %13, %14, %15"
#define R32	R10() ", " R10(1) ", " R10(2) ", %30, %31"
#define R48	R40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define R56	R40 ", " R10(4) ", %50, %51, %52, %53, %54, %55"
#define R64	R40 ", " R10(4) ", " R10(5) ", %60, %61, %62, %63"
#define R72	R40 ", " R10(4) ", " R10(5) ", " R10(6) ", %70, %71"
#define R80	R40 ", " R10(4) ", " R10(5) ", " R10(6) ", " R10(7)
#define D8(d)	"+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3]), \
		"+f"((d)[4]), "+f"((d)[5]), "+f"((d)[6]), "+f"((d)[7])
#define D16(d)	D8(d), D8((d) + 8)
#define D32(d)	D16(d), D16((d) + 16)
#define D48(d)	D32(d), D16((d) + 32)
#define D56(d)	D48(d), D8((d) + 48)
#define D64(d)	D32(d), D32((d) + 32)
#define D72(d)	D64(d), D8((d) + 64)
#define D80(d)	D64(d), D16((d) + 64)

/* n: columns; f: registers of d; a_at, b_at, p_at: operand numbers of a, b and add */
#define SS(n, type, f, a_at, b_at, p_at) \
	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #p_at ", 0;\n\t" \
		     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" R##f "}, %" #a_at \
		     ", %" #b_at ", p, 1, 1, 0, 0;\n\t}" \
		     : D##f(d) : "l"(a), "l"(b), "r"(add) : "memory")
#define RS(n, type, f, a0, a1, a2, a3, b_at, p_at) \
	asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #p_at ", 0;\n\t" \
		     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" R##f "}, {%" #a0 \
		     ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", p, 1, 1, 0;\n\t}" \
		     : D##f(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add) : "memory")

#define SS_OF(width, f, b, p) \
	if constexpr (n == width && dtype == CAIRN_F16) \
		SS(width, "f16", f, f, b, p); \
	else if constexpr (n == width) \
		SS(width, "bf16", f, f, b, p)
#define RS_OF(width, f, a1, a2, a3, b, p) \
	if constexpr (n == width && dtype == CAIRN_F16) \
		RS(width, "f16", f, f, a1, a2, a3, b, p); \
	else if constexpr (n == width) \
		RS(width, "bf16", f, f, a1, a2, a3, b, p)

static constexpr __host__ __device__ bool wgmma_width(int n)
{
	return n == 16 || n == 32 || n == 64 || n == 96 || n == 112 || n == 128 || n == 144 || n == 160;
}

/* d: n / 2 floats; add 0: d = a b */
template <int dtype, int n> PTX void wgmma_rows_ss(float *d, uint64_t a, uint64_t b, int add)
{
	static_assert(wgmma_width(n), "no such product");
	SS_OF(16, 8, 9, 10);
	SS_OF(32, 16, 17, 18);
	SS_OF(64, 32, 33, 34);
	SS_OF(96, 48, 49, 50);
	SS_OF(112, 56, 57, 58);
	SS_OF(128, 64, 65, 66);
	SS_OF(144, 72, 73, 74);
	SS_OF(160, 80, 81, 82);
}

template <int dtype, int n> PTX void wgmma_rows_rs(float *d, const uint32_t a[4], uint64_t b, int add)
{
	static_assert(wgmma_width(n), "no such product");
	RS_OF(16, 8, 9, 10, 11, 12, 13);
	RS_OF(32, 16, 17, 18, 19, 20, 21);
	RS_OF(64, 32, 33, 34, 35, 36, 37);
	RS_OF(96, 48, 49, 50, 51, 52, 53);
	RS_OF(112, 56, 57, 58, 59, 60, 61);
	RS_OF(128, 64, 65, 66, 67, 68, 69);
	RS_OF(144, 72, 73, 74, 75, 76, 77);
	RS_OF(160, 80, 81, 82, 83, 84, 85);
}

#undef R10
#undef R40
#undef R8
#undef R16
#undef R32
#undef R48
#undef R56
#undef R64
#undef R72
#undef R80
#undef D8
#undef D16
#undef D32
#undef D48
#undef D56
#undef D64
#undef D72
#undef D80
#undef SS
#undef RS
#undef SS_OF
#undef RS_OF

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ends - sizes at the ends of tiles
 *
 * Kernels go wrong where a size ends just before, at or just behind the end of a tile, and often only if
 * another size does so too: in the last row of 64 if there is one column more than 128, for example. A family
 * therefore has a covering array (pairs.h) whose factors are its sizes, with these levels, so that any two
 * sizes of any two axes occur together. 255 and 257 end before and behind a tile of every power of two up to
 * 256; the others do so for smaller tiles, or leave a tile half full. Most pairs of remainders, such as 63 of
 * 64 rows and 1 of 128 columns, occur in several cases, which differ in their other features.
 *
 * Features that such a defect may need as a third condition, such as bias and type, are one factor with a
 * level for each combination, so that all combinations occur with each size.
 *
 * These cases are many and small. One kind of input is enough, because a wrong element shows in any of them:
 * EXACT where results must be equal, else NORMAL.
 */
#ifndef CAIRN_ENDS_H
#define CAIRN_ENDS_H

#include <stdint.h>

#define CAIRN_NUM_ENDS		10
#define CAIRN_FEW_ENDS		6	/* the first ones, for families whose cases are expensive */

static const int32_t cairn_ends[CAIRN_NUM_ENDS] = { 1, 17, 63, 65, 127, 129, 255, 257, 191, 96 };

#endif

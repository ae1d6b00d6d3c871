/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Log-linear histogram: units of 64 ns, the first 32 buckets one unit wide,
 * then 32 buckets to every power of two: no bucket is wider than 3.1 % of its
 * values. pkg/rtt has the same arithmetic in Go; a test holds the two together.
 */
#ifndef HEADGATE_HIST_H
#define HEADGATE_HIST_H

#define HIST_UNIT_SHIFT 6
#define HIST_SUB_BITS 5
#define HIST_MAX_UNITS 0x7fffffffU
#define HIST_BUCKETS ((31 - HIST_SUB_BITS + 1) << HIST_SUB_BITS)

static __always_inline __u32 hist_log2(__u32 v)
{
	__u32 shift, r;

	r = (v > 0xffff) << 4;
	v >>= r;
	shift = (v > 0xff) << 3;
	v >>= shift;
	r |= shift;
	shift = (v > 0xf) << 2;
	v >>= shift;
	r |= shift;
	shift = (v > 0x3) << 1;
	v >>= shift;
	r |= shift;
	return r | (v >> 1);
}

static __always_inline __u32 hist_index(__u64 ns)
{
	__u64 units = ns >> HIST_UNIT_SHIFT;
	__u32 v = units > HIST_MAX_UNITS ? HIST_MAX_UNITS : units;
	__u32 e;

	if (v < 1 << HIST_SUB_BITS)
		return v;
	e = hist_log2(v) - HIST_SUB_BITS;
	return (e << HIST_SUB_BITS) + (v >> e);
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * In which network namespace is this? sk_lookup programs cannot ask, tc ones
 * only on some kernels, and a constant takes a program for each namespace. The
 * kernel takes 60 and 150 ms to check those that decide: so these are loaded once, and
 * what is attached to each namespace is a few instructions which note where
 * they are and go on to one of them.
 */
#ifndef HEADGATE_NETNS_H
#define HEADGATE_NETNS_H

#include "kernel.h"

/* The cookie of the namespace that a copy of a program is for. */
volatile const __u64 this_netns = 0;

/*
 * What those that are attached go on to. The content ends with the last file
 * descriptor or pin of the map, whatever programs use it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} lookups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} arrivals SEC(".maps");

/*
 * Where the program on this CPU is, from its first instructions to the next
 * ones. Programs of one agent write it and those of its successor may read it:
 * who changes what it means changes its name.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} places SEC(".maps");

/*
 * What a cookie is noted under. A packet that comes in has its CPU to itself
 * until it is done. But processes, too, have listeners looked up (inet_diag, and
 * bpf_sk_lookup_tcp() in programs of others), where packets and, on some
 * kernels, other processes come in between. No two of these have the same context
 * at a time: what is noted with one and read with another is no namespace.
 */
static __always_inline __u64 netns_seal(void *ctx, __u64 *place)
{
	return ((__u64)ctx - (__u64)place) * 0x9e3779b97f4a7c15ULL;
}

/* Notes the namespace. False: it cannot be. */
static __always_inline bool netns_note(void *ctx)
{
	__u32 zero = 0;
	__u64 *place = bpf_map_lookup_elem(&places, &zero);

	if (!place)
		return false;
	*place = this_netns ^ netns_seal(ctx, place);
	return true;
}

/* The namespace that was noted, for the program that was gone on to. */
static __always_inline __u64 netns_noted(void *ctx)
{
	__u32 zero = 0;
	__u64 *place = bpf_map_lookup_elem(&places, &zero);

	return place ? *place ^ netns_seal(ctx, place) : 0;
}

#endif

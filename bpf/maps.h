/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Every map has one writer: the agent (ports, confs, policies, sources) or the programs
 * (all others), so that no read-modify-write of one loses an update of the
 * other. Sizes of the per-target maps are set by the loader.
 */
#ifndef HEADGATE_MAPS_H
#define HEADGATE_MAPS_H

#include "kernel.h"
#include "types.h"

#define TARGETS 64

#define E2BIG 7
#define EEXIST 17

/* Which target a (namespace, port) is. A power of two, a quarter full at most. */
#define PORTS (4 * TARGETS)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PORTS);
	__type(key, __u32);
	__type(value, struct port);
} ports SEC(".maps");

/* max_entries of ports - 1; set by the loader. */
volatile const __u32 ports_mask = PORTS - 1;

/* Most places that a search looks at; the agent adds no target that is farther off. */
#define PROBES 16

/*
 * What the agent writes and reads of all targets in each window it has in its own
 * memory: no call to the kernel for that, which takes half a microsecond a value.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TARGETS);
	__type(key, __u32);
	__type(value, struct target_conf);
} confs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TARGETS);
	__type(key, __u32);
	__type(value, struct target_state);
} states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TARGETS);
	__type(key, __u32);
	__type(value, struct cohort);
} cohorts SEC(".maps");

/*
 * Of each target, those of each CPU. Index: target * cpus + CPU; a per-CPU map
 * cannot be had in the agent's memory.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TARGETS);
	__type(key, __u32);
	__type(value, struct target_counters);
} counters SEC(".maps");

/* How many CPUs there may ever be; set by the loader. */
volatile const __u32 cpus = 1;

/* Index: target * SIGNALS + signal. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TARGETS * SIGNALS);
	__type(key, __u32);
	__type(value, struct histogram);
} histograms SEC(".maps");

/* Slots taken by handshakes in progress. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct pending_key);
	__type(value, struct pending);
} pendings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TARGETS);
	__type(key, __u32);
	__type(value, struct flood);
} floods SEC(".maps");

/*
 * Clients that have completed a handshake: while a target was in flood mode, or
 * ever where strangers are limited.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct address);
	__type(value, struct acquaintance);
} acquaintances SEC(".maps");

/* SYNs that wait. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct pending_key);
	__type(value, struct hold);
} holds SEC(".maps");

/*
 * SYNs that were let in until a moment ago, as the programs on devices know them:
 * one that is sent again shortly before, or doubled on its way, may come after
 * its handshake is over. At more than some 2700 a second they are known for less
 * than RESERVATION_TTL; who comes later than that takes a slot for PROVISIONAL_TTL.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct pending_key);
	__type(value, struct claimed);
} claims SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} wakes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct conn);
} conns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TARGETS);
	__type(key, __u32);
	__type(value, struct policy);
} policies SEC(".maps");

/* All targets' prefixes: memory is taken by those that there are. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct source_key);
	__type(value, struct source);
} sources SEC(".maps");

/* How many units of each source are here: only of sources that have one. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, __u64);
} source_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TARGETS);
	__type(key, __u32);
	__type(value, struct parts);
} classes SEC(".maps");

/* When the expired reservations were last looked for, ns. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} sweeps SEC(".maps");

static __always_inline struct target_conf *conf_of(__u32 target)
{
	return bpf_map_lookup_elem(&confs, &target);
}

static __always_inline struct target_state *state_of(__u32 target)
{
	return bpf_map_lookup_elem(&states, &target);
}

/* Multiplicative hashing: the upper bits of the product are the mixed ones. */
static __always_inline __u32 port_hash(target_key key)
{
	return key * 0x9e3779b97f4a7c15ULL >> 32;
}

static __always_inline __u32 *target_of(__u64 netns, __u16 port)
{
	target_key key = netns << 16 | port;
	__u32 at = port_hash(key), i, place;
	struct port *p;

#pragma clang loop unroll(disable)
	for (i = 0; i < PROBES; i++) {
		place = (at + i) & ports_mask;
		p = bpf_map_lookup_elem(&ports, &place);
		if (!p || p->key == PORT_FREE)
			return NULL;
		if (p->key == key)
			return &p->target;
	}
	return NULL;
}

/* A program stays on the CPU where it began. */
static __always_inline struct target_counters *counters_of(__u32 target)
{
	__u32 at = target * cpus + bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&counters, &at);
}

/*
 * The per-CPU values are added to atomically: a program that runs in process
 * context can be interrupted by one in softirq on the same CPU.
 */
#define COUNT(target_id, what)                                                 \
	do {                                                                   \
		struct target_counters *c_ = counters_of(target_id);           \
									       \
		if (c_)                                                        \
			__sync_fetch_and_add(&c_->what, 1);                    \
	} while (0)

/* The histogram first: while samples is what it was, nothing in it is new to the agent. */
static __always_inline void sample(__u32 target, enum signal signal, __u64 ns)
{
	__u32 index = target * SIGNALS + signal;
	struct histogram *h = bpf_map_lookup_elem(&histograms, &index);
	struct target_counters *c;

	if (!h)
		return;
	index = hist_index(ns);
	if (index < HIST_BUCKETS)
		__sync_fetch_and_add(&h->bucket[index], 1);

	c = counters_of(target);
	if (!c)
		return;
	__sync_fetch_and_add(&c->samples[signal], 1);
	__sync_fetch_and_add(&c->sum[signal], ns);
}

#endif

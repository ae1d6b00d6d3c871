/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The few kernel types these programs look into, declared by hand with only
 * the members that are read. Offsets come from the running kernel's BTF.
 */
#ifndef HEADGATE_KERNEL_H
#define HEADGATE_KERNEL_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define CORE __attribute__((preserve_access_index))

#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6
#define SOL_TCP 6

/* Not in the headers of Debian 12; uapi since Linux 6.12. */
#define SETSOCKOPT_CB_FLAGS 1008

/* From the kernel's net/sock.h: in sk_userlocks, the application has named the port. */
#define SOCK_BINDPORT_LOCK 8

/*
 * Verdicts on a device. TCX and clsact agree on these two numbers; TCX came
 * with Linux 6.6.
 */
#define TCX_NEXT -1
#define TCX_DROP 2

struct net {
	__u64 net_cookie;
} CORE;

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	union {
		__u32 u6_addr32[4];
	} in6_u;
} CORE;

struct sock_common {
	__u32 skc_daddr;
	struct in6_addr skc_v6_daddr;
	unsigned short skc_family;
	__u16 skc_num;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
} CORE;

struct socket;

struct sock {
	struct sock_common __sk_common;
	struct socket *sk_socket;
	unsigned int sk_kern_sock : 1;
	unsigned char sk_userlocks;
} CORE;

struct socket {
	struct sock *sk;
} CORE;

struct request_sock_queue {
	__u8 rskq_defer_accept; /* how often a client is asked to speak (TCP_DEFER_ACCEPT) */
} CORE;

struct inet_connection_sock {
	struct request_sock_queue icsk_accept_queue;
} CORE;

struct tcp_rack {
	__u32 rtt_us; /* of the newest that was acknowledged; 0: unknown, as without SACK */
} CORE;

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	struct tcp_rack rack;
	__u32 srtt_us;   /* smoothed, in eighths */
	__u32 delivered; /* segments that were acknowledged */
	__u32 rcv_nxt; /* the next that is missing */
	__u32 rcv_wup; /* the same, when the window was last announced */
	__u32 rcv_wnd; /* how much that was */
	__u32 snd_nxt;
	__u8 bpf_sock_ops_cb_flags;
} CORE;

struct bpf_map;
struct bpf_iter_meta;

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
} CORE;

/*
 * Reads a word of a program's context by one load at a constant offset. Left
 * alone, clang merges the loads of two branches into one at a computed
 * address, which the verifier refuses.
 */
#define CTX_WORD(ctx, member, i)                                                \
	({                                                                      \
		__u32 word;                                                     \
		asm volatile("%0 = *(u32 *)(%1 + %2)"                           \
			     : "=r"(word)                                       \
			     : "r"(ctx), "i"(offsetof(typeof(*(ctx)), member) + \
					     4 * (i)));                         \
		word;                                                           \
	})

#endif

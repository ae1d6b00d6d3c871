// SPDX-License-Identifier: GPL-2.0-only
/*
 * Runs single functions of headgate's programs for the tests of pkg/loader.
 * Nothing of this is part of the product.
 */
#include "../netns.h"
#include "../service.h"

char _license[] SEC("license") = "GPL";

struct duration {
	__u64 ns;
};

SEC("syscall")
int test_hist_index(struct duration *d)
{
	return hist_index(d->ns);
}

struct notes {
	__u64 netns; /* what was noted */
	__u64 mine, others;
};

/* What is noted with one context, read with this one and with another. */
SEC("syscall")
int test_netns(struct notes *n)
{
	__u32 another;

	if (!netns_note(n))
		return 1;
	n->netns = this_netns;
	n->mine = netns_noted(n);
	n->others = netns_noted(&another);
	return 0;
}

/* What the socket of the next packet knows; afterwards, what it then knows. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct conn);
} given SEC(".maps");

/* A test run's packet has a new socket each time. */
static __always_inline int with_conn(struct __sk_buff *skb, void (*f)(struct __sk_buff *))
{
	struct bpf_sock *sk = skb->sk;
	struct conn *known, *c;
	__u32 zero = 0;

	sk = sk ? bpf_sk_fullsock(sk) : NULL;
	known = bpf_map_lookup_elem(&given, &zero);
	if (!sk || !known)
		return 0;
	c = bpf_sk_storage_get(&conns, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!c)
		return 0;
	*c = *known;
	f(skb);
	*known = *c;
	return 1;
}

#define TEST_WINDOW 65536

/* The socket is none of TCP: as if it had received all that is known of. */
static __always_inline void test_segment_in(struct __sk_buff *skb)
{
	struct bpf_sock *sk = socket_of(skb);
	struct conn *c = sk ? conn_of(sk) : NULL;
	struct received r;

	if (!c)
		return;
	r.next = c->in_end;
	r.most = c->in_end + TEST_WINDOW;
	segment_in(skb, c, &r);
}

SEC("cgroup_skb/ingress")
int test_packet_in(struct __sk_buff *skb)
{
	return with_conn(skb, test_segment_in);
}

/* Whether a test run shows its packet to programs of this type. */
SEC("cgroup_skb/ingress")
int test_packet_shown(struct __sk_buff *skb)
{
	return skb->data < skb->data_end;
}

SEC("cgroup_skb/egress")
int test_packet_out(struct __sk_buff *skb)
{
	return with_conn(skb, packet_out);
}

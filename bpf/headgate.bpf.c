// SPDX-License-Identifier: GPL-2.0-only
/*
 * headgate's programs, one for each hook. What they do is in the headers:
 *   netns.h    in which namespace is this?
 *   slots.h    how many are in flight, how many wait?
 *   source.h   who is it, and how many of its kind are here?
 *   class.h    what of the limit is its class's own?
 *   pace.h     when is the next one due?
 *   flood.h    is anybody behind these SYNs?
 *   admit.h    may this arrival come in?
 *   event.h    who is refused, for people to read?
 *   syn.h      where the arrival is a connection  sk_lookup, tc
 *   arrival.h  where it is a request              tc
 *   claim.h    may one that waited come in now?   run by the agent
 *   conn.h     when does a connection begin and end, and its TCP RTT?
 *                                                sockops, cgroup/sock_release
 *   tls.h      what of a client's payload is no request?
 *   postgres.h the same
 *   service.h  how long does the service take?   cgroup_skb
 *   cohort.h   which units does a probe time?
 *   adopt.h    connections older than we are     iter/tcp
 *   recount.h  are the counts right?             run by the agent
 */
#include "claim.h"
#include "netns.h"
#include "recount.h"
#include "service.h"

char _license[] SEC("license") = "GPL";

/*
 * One run for each packet that belongs to no connection: a SYN, the ACK that
 * answers a SYN cookie, and strays. None for the packets of a connection. A
 * dropped lookup makes the kernel answer with a RST. Attached to each namespace;
 * where it can go on to no other everything passes.
 */
SEC("sk_lookup")
int headgate_lookup(struct bpf_sk_lookup *ctx)
{
	if (ctx->protocol == IPPROTO_TCP && netns_note(ctx))
		bpf_tail_call(ctx, &lookups, 0);
	return SK_PASS;
}

/* What that goes on to, in all of them. */
SEC("sk_lookup")
int headgate_admit(struct bpf_sk_lookup *ctx)
{
	__u64 netns = netns_noted(ctx);
	struct pending_key key = {};
	struct target_conf *conf;
	struct target_state *st;
	__u32 *target;

	target = target_of(netns, ctx->local_port);
	if (!target)
		return SK_PASS;
	key.target = *target;
	conf = conf_of(key.target);
	st = state_of(key.target);
	if (!conf || !st || conf->flags & TARGET_REQUEST || ctx->ingress_ifindex == NOT_A_PACKET)
		return SK_PASS;

	key.remote_port = ctx->remote_port;
	key.local_port = ctx->local_port;
	KEY_ADDRESSES(&key, ctx);
	return syn_may_pass(conf, st, &key) ? SK_PASS : SK_DROP;
}

/*
 * Every packet that comes in on a device of a scope where something may be held.
 * Attached to each device, like the lookup.
 */
SEC("tc")
int headgate_arrive(struct __sk_buff *skb)
{
	if (netns_note(skb))
		bpf_tail_call(skb, &arrivals, 0);
	return TCX_NEXT;
}

/* What that goes on to, in all namespaces. */
SEC("tc")
int headgate_packet(struct __sk_buff *skb)
{
	return arrive(skb, netns_noted(skb));
}

/* Run by the agent, not attached. In cb is the namespace that it asks for. */
SEC("tc")
int headgate_claim(struct __sk_buff *skb)
{
	return claim(skb, (__u64)skb->cb[1] << 32 | skb->cb[0]);
}

/* Called for every TCP socket of the host: most operations are none of ours. */
SEC("sockops")
int headgate_sockops(struct bpf_sock_ops *ctx)
{
	switch (ctx->op) {
	case BPF_SOCK_OPS_TIMEOUT_INIT:
		syn_answered(ctx); /* the reply stays 0: the usual timeout */
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		conn_open(ctx);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		conn_state(ctx);
		break;
	case BPF_SOCK_OPS_RTT_CB:
		conn_rtt(ctx);
		break;
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		listener_open(ctx);
		break;
	}
	return 1;
}

SEC("cgroup/sock_release")
int headgate_release(struct bpf_sock *sk)
{
	struct conn *c = bpf_sk_storage_get(&conns, sk, 0, 0);

	if (c)
		conn_finish(c, false);
	return 1;
}

SEC("cgroup_skb/ingress")
int headgate_ingress(struct __sk_buff *skb)
{
	return packet_in(skb);
}

SEC("cgroup_skb/egress")
int headgate_egress(struct __sk_buff *skb)
{
	packet_out(skb);
	return 1;
}

/* An application has read from a TCP socket: any of the host. Attached only where a rule asks for it. */
SEC("tp_btf/tcp_rcv_space_adjust")
int headgate_read(__u64 *ctx)
{
	struct conn *c = bpf_sk_storage_get(&conns, (struct sock *)ctx[0], 0, 0);

	if (c)
		conn_touched(c);
	return 0;
}

SEC("iter/tcp")
int headgate_adopt(struct bpf_iter__tcp *ctx)
{
	struct sock_common *skc = ctx->sk_common;
	struct tcp_sock *tp;

	if (!skc)
		return 0;
	tp = bpf_skc_to_tcp_sock(skc); /* NULL for request and TIME_WAIT sockets */
	if (tp)
		conn_adopt(tp);
	return 0;
}

/* Run by an agent before it begins to hold. */
SEC("syscall")
int headgate_forget(void *ctx)
{
	forget_holds();
	return 0;
}

/* The agent's part of the sweep, so that counts are right on an idle port too. */
SEC("syscall")
int headgate_sweep(void *ctx)
{
	sweep(bpf_ktime_get_ns(), SWEEP_INTERVAL);
	return 0;
}

/* A recount: these two, one after the other, and what they find in tallies. */
SEC("syscall")
int headgate_tally(void *ctx)
{
	tally_begin();
	return 0;
}

SEC("iter/bpf_sk_storage_map")
int headgate_recount(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sock *sk = ctx->sk;
	struct conn *c = ctx->value;

	if (sk && c)
		tally_conn(c, sk);
	return 0;
}

/* Connections that are counted: what nobody else ends of them. */
SEC("iter/bpf_sk_storage_map")
int headgate_settle(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct conn *c = ctx->value;
	struct target_conf *conf = c ? conf_of(c->target) : NULL;

	if (conf && c->counted)
		conn_settle(c, conf);
	return 0;
}

SEC("syscall")
int headgate_correct(struct correction *ctx)
{
	correct(ctx);
	return 0;
}

SEC("syscall")
int headgate_correct_party(struct party_correction *ctx)
{
	correct_party(ctx);
	return 0;
}

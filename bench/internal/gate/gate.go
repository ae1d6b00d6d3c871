// Package gate puts limiters in front of a port of a host, to be compared.
package gate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"headgate/internal/lab"
	"headgate/pkg/agent"
	"headgate/pkg/config"
	"headgate/pkg/controller"
)

// Lower takes a gate away again.
type Lower func() error

// NFT has nftables refuse connections above so many to a port.
func NFT(ctx context.Context, h *lab.Host, port, limit int) (Lower, error) {
	return nft(ctx, h, fmt.Sprintf("tcp dport %[1]d ct state new add @open { tcp dport ct count over %[2]d }", port, limit))
}

// NFTRate has nftables refuse connections above so many a second to a port.
func NFTRate(ctx context.Context, h *lab.Host, port, perSecond int) (Lower, error) {
	return nft(ctx, h, fmt.Sprintf("tcp dport %d ct state new limit rate over %d/second", port, perSecond))
}

// NFTReject has nftables refuse what comes to a port.
func NFTReject(ctx context.Context, h *lab.Host, port int) (Lower, error) {
	return nft(ctx, h, fmt.Sprintf("tcp dport %d", port))
}

// nft has nftables reset what comes in and matches.
func nft(ctx context.Context, h *lab.Host, match string) (Lower, error) {
	const table = "bench"
	run := func(ctx context.Context, rules string) error {
		cmd := h.Command(ctx, "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft (apt-get install nftables): %w: %s", err, out)
		}
		return nil
	}
	err := run(ctx, fmt.Sprintf(`table inet %s {
	set open { type inet_service; flags dynamic; size 65536; }
	chain in {
		type filter hook input priority filter;
		%s reject with tcp reset
	}
}
`, table, match))
	if err != nil {
		return nil, err
	}
	return func() error { return run(context.Background(), "delete table inet "+table+"\n") }, nil
}

// Connlimit has the connlimit of iptables refuse what comes to a port: it lets in none.
func Connlimit(ctx context.Context, h *lab.Host, port int) (Lower, error) {
	rule := func(ctx context.Context, do string) error {
		args := strings.Fields(fmt.Sprintf("-w %s INPUT -p tcp --syn --dport %d -m connlimit --connlimit-above 0 --connlimit-mask 0 -j REJECT --reject-with tcp-reset", do, port))
		if out, err := h.Command(ctx, "iptables", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("iptables (apt-get install iptables): %w: %s", err, out)
		}
		return nil
	}
	if err := rule(ctx, "-A"); err != nil {
		return nil, err
	}
	return func() error { return rule(context.Background(), "-D") }, nil
}

// HAProxy is a proxy in front of a port.
type HAProxy struct {
	Port    int           // where it listens
	Behind  int           // the port that it passes on to, of loopback
	MaxConn int           // connections to there
	Queue   time.Duration // how long the others wait at most; then they are refused
	HTTP    bool          // else bytes
	Reuse   bool          // of HTTP: connections to there are kept for others; else each has one request
}

// Start starts it and waits until it listens. Its configuration goes into dir.
func (p HAProxy) Start(ctx context.Context, h *lab.Host, dir string) (Lower, error) {
	mode := "mode tcp"
	switch {
	case p.HTTP && p.Reuse:
		mode = "mode http\n\thttp-reuse always"
	case p.HTTP:
		mode = "mode http\n\toption http-server-close"
	}
	file := filepath.Join(dir, "haproxy.cfg")
	text := fmt.Sprintf(`global
	maxconn 9000
	nbthread 1
defaults
	%s
	timeout connect 1s
	timeout client 10s
	timeout server 10s
	timeout queue %dms
frontend in
	bind :::%d v4v6
	default_backend behind
backend behind
	server one 127.0.0.1:%d maxconn %d
`, mode, p.Queue.Milliseconds(), p.Port, p.Behind, p.MaxConn)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, err
	}
	var complaint bytes.Buffer // complete when it has ended
	cmd := h.Command(ctx, "haproxy", "-db", "-f", file)
	cmd.Stderr = &complaint
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("haproxy (apt-get install haproxy): %w", err)
	}
	lower := func() error {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait() // how it ended is no matter
		return nil
	}
	for end := time.Now().Add(10 * time.Second); !h.Listens(p.Port); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			err := lower()
			return nil, errors.Join(fmt.Errorf("haproxy does not listen on port %d: %s", p.Port, complaint.String()), err)
		}
	}
	return lower, nil
}

// Headgate starts an agent with one rule for a port; state is a directory on a
// bpffs. Its Remove takes it away again.
func Headgate(h *lab.Host, port int, state string, set func(*config.Rule)) (*agent.Agent, error) {
	cfg := config.Default()
	cfg.State = state
	r := config.DefaultRule()
	r.Name = "bench"
	r.Ports = []uint16{uint16(port)}
	r.Scope = config.Scope{Netns: h.NetNS}
	r.Mode = config.ModeEnforce
	set(&r)
	cfg.Rules = []config.Rule{r}
	return agent.Start(cfg, "bench", slog.New(slog.DiscardHandler))
}

// Fixed sets a rule to a limit that never changes.
func Fixed(limit int) func(*config.Rule) {
	return func(r *config.Rule) {
		r.Limit = config.Limit{Algorithm: "fixed", Params: controller.Params{Initial: &limit}}
	}
}

// Algorithm sets a rule to an algorithm, with its defaults; the warm-up that
// blog has is left out.
func Algorithm(name string) func(*config.Rule) {
	return func(r *config.Rule) {
		var none time.Duration
		r.Limit = config.Limit{Algorithm: name}
		if name == "blog" {
			r.WarmUp = &none
		}
	}
}

// Command screenshot draws what `headgate top` shows of a real agent after a
// minute under load: the table, and below it all about one target.
//
//	go run ./tools/screenshot > docs/img/top.png     (root, about a minute)
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
	"headgate/internal/lab/load"
	"headgate/pkg/agent"
	"headgate/pkg/config"
	"headgate/pkg/controller"
	"headgate/pkg/explain"
	"headgate/pkg/status"
	"headgate/pkg/top"
)

// watched is for how long the view is looked at before it is drawn.
const watched = 62 * time.Second

// The screen: 80 columns, as everybody has, and few lines of them empty.
const (
	columns     = 80
	tableLines  = 10
	detailLines = 36
)

func main() {
	if handled, code := lab.ServerMain(os.Args[1:]); handled {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "screenshot:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	l, err := lab.New("server", "clients")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	bpffs, unmount, err := lab.MountBPF()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unmount()) }()

	server := l.Host("server")
	cfg, err := setUp(ctx, server)
	if err != nil {
		return err
	}
	cfg.State = filepath.Join(bpffs, "state")
	a, err := agent.Start(cfg, "1.0.0", slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Remove()) }()

	ctx, cancel := context.WithTimeout(ctx, watched)
	defer cancel()
	var loads sync.WaitGroup
	defer loads.Wait()
	for port, arrivals := range waves() {
		loads.Go(func() {
			to := netip.AddrPortFrom(server.Addr4, port)
			// It ends with the time.
			_ = l.Host("clients").Do(func() error {
				return load.Run(ctx, load.Config{Target: to, Arrivals: arrivals, Request: load.Get("/")}, func(load.Result) {})
			})
		})
	}
	frames, err := watch(ctx, here{a, server.NetNS})
	if err != nil {
		return err
	}
	return drawLines(out, columns, frames)
}

const (
	shop    = 8080
	reports = 9000
	signUp  = 8081
)

// setUp starts the servers and returns how they are protected.
func setUp(ctx context.Context, server *lab.Host) (*config.Config, error) {
	cfg := config.Default()
	for _, s := range []struct {
		name      string
		port      uint16
		workers   int
		service   time.Duration
		algorithm string
		initial   int
		mode      config.Mode
	}{
		{"shop", shop, 16, 20 * time.Millisecond, "guarded", 20, config.ModeEnforce},
		{"reports", reports, 4, 150 * time.Millisecond, "fixed", 6, config.ModeEnforce},
		{"sign-up", signUp, 8, 30 * time.Millisecond, "guarded", 20, config.ModeObserve},
	} {
		spec := backend.Spec{Protocol: "http", Listen: []string{fmt.Sprintf(":%d", s.port)}, Workers: s.workers, Service: s.service}
		own, err := server.SubCgroup(s.name)
		if err != nil {
			return nil, err
		}
		if _, err := server.StartServerIn(ctx, own, spec); err != nil {
			return nil, err
		}
		r := config.DefaultRule()
		r.Name, r.Ports, r.Mode = s.name, []uint16{s.port}, s.mode
		r.Scope = config.Scope{Netns: server.NetNS}
		r.Limit = config.Limit{Algorithm: s.algorithm, Params: controller.Params{Initial: &s.initial}}
		cfg.Rules = append(cfg.Rules, r)
	}
	return cfg, nil
}

// waves is what comes in at each port: more and less than the server carries.
func waves() map[uint16]load.Arrivals {
	steps := func(rates ...float64) load.Arrivals {
		var all []load.Step
		for _, r := range rates {
			all = append(all, load.Step{Rate: r, For: watched / time.Duration(len(rates))})
		}
		return load.Poisson(1, all...)
	}
	return map[uint16]load.Arrivals{
		shop:    steps(200, 400, 700, 1200, 1600, 1200, 600, 300, 500, 900, 1500),
		reports: steps(10, 20, 40, 30, 15, 20, 35, 45),
		signUp:  steps(50, 150, 250, 350, 250, 100),
	}
}

// watch follows the agent for as long as ctx and returns what the view shows then.
func watch(ctx context.Context, s here) ([]string, error) {
	m := top.New(context.WithoutCancel(ctx), s, time.Now)
	m.Update(tea.WindowSizeMsg{Width: columns, Height: tableLines})
	fetch := m.Init()
	for every := time.NewTicker(top.Every); ctx.Err() == nil; {
		m.Update(fetch())
		select {
		case <-ctx.Done():
		case <-every.C:
		}
	}
	m.Update(tea.KeyPressMsg{Code: tea.KeyDown}) // the second of the names: shop
	frames := m.Frame()
	m.Update(tea.WindowSizeMsg{Width: columns, Height: detailLines})
	_, explain := m.Update(tea.KeyPressMsg{Code: tea.KeyEnter})
	if explain == nil {
		return nil, errors.New("no target is selected")
	}
	m.Update(explain())
	return append(append(frames, ""), m.Frame()...), nil
}

// here is an agent in this process, whose scope is shown as the host's.
type here struct {
	agent *agent.Agent
	netns string
}

func (h here) Status(context.Context) (*status.Status, error) {
	s := h.agent.Status()
	for i := range s.Targets {
		s.Targets[i].Scope = "host"
	}
	return &s, nil
}

func (h here) Explain(_ context.Context, _ string, port uint16) (*explain.Explanation, error) {
	e, ok := h.agent.Explain("netns:"+h.netns, port)
	if !ok {
		return nil, fmt.Errorf("port %d is not protected", port)
	}
	e.Headline = strings.Replace(e.Headline, "netns:"+h.netns, "host", 1)
	return e, nil
}

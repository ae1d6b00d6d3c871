package e2e

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/internal/lab"
	"headgate/pkg/agent"
	"headgate/pkg/config"
	"headgate/pkg/control"
	"headgate/pkg/events"
	"headgate/pkg/explain"
)

// refusals is what the agent told of refusals, of one type, until now.
func refusals(t *testing.T, a *agent.Agent, typ events.Type) (told []events.Event, leftOut uint64) {
	t.Helper()
	r := a.Events().After(0)
	for e, ok := r.Poll(); ok; e, ok = r.Poll() {
		if e.Type == typ {
			told = append(told, e)
			leftOut += e.LeftOut
		}
	}
	return told, leftOut
}

// Who is refused is told with address and reason, wherever it is decided; what
// is not told is counted, so that both together are all refusals.
func TestRefusalsAreTold(t *testing.T) {
	const clients = 40
	l := lab.ForTest(t, "srv", "cli")
	srv, cli := l.Host("srv"), l.Host("cli")
	observed := func(r *config.Rule) {
		fixed(1)(r)
		r.Mode = config.ModeObserve
	}
	for _, tt := range []struct {
		name   string
		set    func(*config.Rule)
		to     netip.Addr
		from   *lab.Host
		client netip.Addr
		typ    events.Type
		reason string
		letIn  bool
	}{
		{"limit", fixed(1), srv.Addr4, cli, cli.Addr4, events.Rejection, "limit", false},
		{"limit over IPv6", fixed(1), srv.Addr6, cli, cli.Addr6, events.Rejection, "limit", false},
		{"limit over loopback", fixed(1), netip.MustParseAddr("127.0.0.1"), srv, netip.MustParseAddr("127.0.0.1"), events.Rejection, "limit", false},
		{"observe", observed, srv.Addr4, cli, cli.Addr4, events.Rejection, "limit", true},
		{"pace", paced(0.1, 0), srv.Addr4, cli, cli.Addr4, events.Rejection, "pace", false},
		{"held in vain", holding(1, 50*time.Millisecond), srv.Addr4, cli, cli.Addr4, events.HoldTimeout, "hold_timeout", false},
		{"observed requests", func(r *config.Rule) { observed(r); r.Unit = config.UnitRequest }, srv.Addr6, cli, cli.Addr6, events.Rejection, "limit", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := keep(t, srv, "tcp", ":8080")
			a := startHolding(t, srv, tt.set)
			to := netip.AddrPortFrom(tt.to, port)
			c := newCrowd(t, tt.from, to, clients)
			c.wait(t, patience)
			for _, fd := range c.connected {
				if _, err := unix.Write(fd, []byte(aGet)); err != nil {
					t.Fatal(err)
				}
			}
			var told []events.Event
			await(t, "all but one are told or counted", func() (any, bool) {
				all, leftOut := refusals(t, a, tt.typ)
				told = all
				return target(a), len(all)+int(leftOut) == clients-1
			})
			for _, e := range told {
				if e.Client == nil || e.Client.Addr() != tt.client || e.Client.Port() < 1024 || e.Reason != tt.reason ||
					e.LetIn != tt.letIn || e.Rule != "test" || e.Port != port || e.Scope != "netns:"+srv.NetNS {
					t.Errorf("%+v from %v", e, e.Client)
				}
				if age := time.Since(e.Time); age < 0 || age > 2*patience {
					t.Errorf("told of something that was %v ago", age)
				}
			}
			if n := len(told); n == 0 || n > 16 {
				t.Errorf("%d of %d were told", n, clients)
			}
			k.closeAll()
		})
	}
}

// What an agent says of a target is what happens to it.
func TestExplain(t *testing.T) {
	srv, cli, to := hosts(t)
	a := protect(t, srv, 1)
	says := func(what string, lines func(*explain.Explanation) []string) {
		t.Helper()
		await(t, what, func() (any, bool) {
			e, ok := a.Explain("netns:"+srv.NetNS, port)
			return e, ok && strings.Contains(strings.Join(lines(e), "\n"), what)
		})
	}
	notes := func(e *explain.Explanation) []string { return e.Notes }
	refused := func(e *explain.Explanation) []string { return e.Refusals }
	says("Nobody listens on port 8080", notes)
	k := keep(t, srv, "tcp4", ":8080")
	await(t, "somebody listens", func() (any, bool) {
		e, ok := a.Explain("netns:"+srv.NetNS, port)
		return e, ok && len(e.Notes) == 0
	})
	says("Nobody was refused", refused)
	c := newCrowd(t, cli, to, 20)
	c.wait(t, patience)
	k.await(t, 1)
	says("19 refused because the limit was reached, in all.", refused)
	says("19 in the last second.", refused)
	e, _ := a.Explain("netns:"+srv.NetNS, port)
	if e.LastRefused == nil || e.LastRefused.Client.Addr() != cli.Addr4 || e.LastRefused.SecondsAgo > patience.Seconds() {
		t.Errorf("refused last: %+v", e.LastRefused)
	}
	says("None in the last second.", refused)
	a.SetMode(config.ModeObserve)
	says("The mode is observe", notes)
	if _, ok := a.Explain("host", port); ok {
		t.Error("a port of another scope is explained")
	}
}

// What somebody changes by hand is told, and so is what becomes of a reload.
func TestChangesAreTold(t *testing.T) {
	srv, _, _ := hosts(t)
	a := protect(t, srv, 5)
	told := func(typ events.Type, ok bool, what string) {
		t.Helper()
		await(t, what, func() (any, bool) {
			all, _ := refusals(t, a, typ)
			for _, e := range all {
				if (e.OK == nil || *e.OK == ok) && strings.Contains(e.Text(), what) {
					return all, true
				}
			}
			return all, false
		})
	}
	change := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := a.SetLimit(control.Limit{Target: "8080", Limit: 9, ForSeconds: 1.5})
	change(err)
	told(events.Operator, true, "limit set to 9 by hand for 1.5s")
	told(events.LimitChange, true, "limit 5 -> 9: set by hand")
	told(events.LimitChange, true, "limit 9 -> 5: what was set by hand has expired")
	told(events.Operator, true, "what was set by hand has expired: the limit is that of fixed again, 5")
	_, err = a.SetLimit(control.Limit{Target: "8080", Limit: 5})
	change(err)
	_, err = a.SetLimit(control.Limit{Target: "8080", Clear: true})
	change(err)
	told(events.Operator, true, "cleared by hand: the limit is that of fixed again, 5")
	_, err = a.SetModes(control.Mode{Mode: "observe"})
	change(err)
	told(events.Operator, true, "mode set to observe by hand")

	broken := errors.New("x.yaml:1:1: it is broken")
	if err := a.Reload(func() (*config.Config, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	st := a.Status()
	if wrong := strings.Join(st.Wrong(), "\n"); !strings.Contains(wrong, "the configuration before stays in force: x.yaml:1:1: it is broken") {
		t.Errorf("a reload that failed is not seen in the status: %q", wrong)
	}
	if reasons := a.NotReady(); len(reasons) > 0 {
		t.Errorf("a reload that failed makes an agent unready: %q", reasons)
	}
	told(events.Reload, false, "stays in force: x.yaml:1:1: it is broken")
	cfg := configFor(srv, port, fixed(5))
	cfg.Window = 20 * time.Millisecond
	change(a.Reload(func() (*config.Config, error) { return cfg, nil }))
	told(events.Reload, true, "the configuration is reloaded, with 1 targets")
	next := configFor(srv, port, fixed(7))
	next.Window = cfg.Window
	change(a.Reload(func() (*config.Config, error) { return next, nil }))
	told(events.LimitChange, true, "limit 5 -> 7: the rule has changed")
	if c := target(a).LastChange; c.Reason != "the rule has changed" {
		t.Errorf("the last change is that %s", c.Reason)
	}
}
